package live

import "time"

// idle is for how long nothing has moved, of the time in which its owner looked. A
// process that was stopped, or a thread that had no processor, has not waited in vain.
type idle struct {
	time.Duration
	looked time.Time
}

// mostBetween is the most that counts between two looks, which are far closer together.
const mostBetween = 100 * time.Millisecond

// look adds the time since the last look.
func (i *idle) look(now time.Time) time.Duration {
	if !i.looked.IsZero() {
		i.Duration += min(now.Sub(i.looked), mostBetween)
	}
	i.looked = now
	return i.Duration
}

// end says that something has moved.
func (i *idle) end() { i.Duration = 0 }

// nagger says when it is to be said that something waits.
type nagger struct{ next time.Duration }

// due says so of what has waited for so long: after slowPatience, and then every minute.
func (n *nagger) due(waited time.Duration) bool {
	if waited < slowPatience {
		n.next = slowPatience
	}
	if waited < n.next {
		return false
	}
	n.next += warnEvery
	return true
}
