package analyse

import "github.com/penstock-gpu/penstock/trace/phase"

// Cause is why a page was not there when it was touched.
type Cause uint8

// Causes of a fault; see the package comment for how they are told apart.
const (
	FirstTouch Cause = iota
	EvictedEarly
	PrefetchedLate
	NeverPredicted
	CPUTouched
	Thrash
	AlreadyThere

	Causes // how many there are
)

var causeNames = [Causes]string{"first touch", "evicted too early", "prefetched too late", "never predicted", "CPU touched it", "thrash", "already there"}

func (c Cause) String() string {
	if c < Causes {
		return causeNames[c]
	}
	return "unknown"
}

// Phase is a part of a training iteration.
type Phase = phase.Phase

// CauseCounts counts faults by cause.
type CauseCounts [Causes]int64

// Total is the sum over all causes.
func (c *CauseCounts) Total() (n int64) {
	for _, v := range c {
		n += v
	}
	return n
}

// Main is the commonest cause.
func (c *CauseCounts) Main() Cause {
	best := Cause(0)
	for i := range c {
		if c[i] > c[best] {
			best = Cause(i)
		}
	}
	return best
}
