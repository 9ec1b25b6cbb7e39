package swapped

import "time"

// paceOver is how long a direction of the bus is looked at: the end of a copy is seen late by some hundred microseconds.
const paceOver = 50 * time.Millisecond

// pace is the fastest that a direction of the bus was, in bytes a second, over a while in which it was never without a copy.
type pace struct {
	since   time.Duration // a copy ended then; 0: none since the direction had nothing to copy
	bytes   int64         // that have come since
	fastest float64
}

func (p *pace) ended(bytes int64, now time.Duration) {
	if p.since == 0 {
		p.since, p.bytes = now, 0
		return
	}
	p.bytes += bytes
	if over := now - p.since; over >= paceOver {
		p.fastest = max(p.fastest, float64(p.bytes)/over.Seconds())
		p.since, p.bytes = now, 0
	}
}

func (p *pace) idle() { p.since = 0 }
