package process

import "time"

// Idle is for how long nothing has moved, of the time in which its owner looked. A
// process that was stopped, or a thread that had no processor, has not waited in vain.
type Idle struct {
	time.Duration
	looked time.Time
}

// SlowPatience is for what waits, before it is said; after WarnEvery it is said again.
const (
	SlowPatience = 2 * time.Second
	WarnEvery    = time.Minute
)

// MostBetween is the most that counts between two looks, which are far closer together.
const MostBetween = 100 * time.Millisecond

// Look adds the time since the last look.
func (i *Idle) Look(now time.Time) time.Duration {
	if !i.looked.IsZero() {
		i.Duration += min(now.Sub(i.looked), MostBetween)
	}
	i.looked = now
	return i.Duration
}

// End says that something has moved.
func (i *Idle) End() { i.Duration = 0 }

// Nagger says when it is to be said that something waits.
type Nagger struct{ next time.Duration }

// Due says so of what has waited for so long.
func (n *Nagger) Due(waited time.Duration) bool {
	if waited < SlowPatience {
		n.next = SlowPatience
	}
	if waited < n.next {
		return false
	}
	n.next += WarnEvery
	return true
}
