package process

import (
	"slices"
	"time"
)

// emptyEvents are how long the device took from one event to the next with nothing in between, the last times.
type emptyEvents struct {
	took [63]time.Duration
	n    int
}

func (x *emptyEvents) add(took time.Duration) {
	x.took[x.n%len(x.took)] = took
	x.n++
}

func (x *emptyEvents) median() time.Duration {
	took := slices.Sorted(slices.Values(x.took[:min(x.n, len(x.took))]))
	return took[len(took)/2]
}

// Timings tells of operations that were timed. What events themselves take is not theirs. The caller holds the lock, and has drained.
func (p *Process) Timings() {
	if p.Hook == nil {
		return
	}
	p.Hook.Timings(func(seq uint64, took, empty time.Duration) {
		p.emptyEvents.add(empty)
		if took -= p.emptyEvents.median(); took <= 0 {
			return
		}
		if p.Sink != nil && !p.Paused {
			p.Sink.Timing(seq, took)
		}
		p.Engine.Timed(seq, took)
	})
}
