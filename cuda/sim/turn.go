package sim

import (
	"slices"
	"time"
)

// span is the time of a call that another thread's may not overlap.
type span struct{ from, to time.Duration }

// inTurn makes a call that creates, maps, unmaps or releases physical memory. The driver
// lets one thread at a time make such calls: measured on an H200
// (bench/results/vmm-threads.json), two threads that map do together what one does. A
// thread's clock may be ahead of another's, so a call takes the first gap that it fits
// into. cost is what it takes when it begins at a time.
func (t *Thread) inTurn(cost func(at time.Duration) time.Duration) {
	g := t.g
	at := t.begin()
	calls := slices.DeleteFunc(g.calling, func(s span) bool { return s.to <= g.now })
	i := 0
	for ; i < len(calls) && calls[i].from < at+cost(at); i++ {
		at = max(at, calls[i].to)
	}
	t.now = at + cost(at)
	g.calling = slices.Insert(calls, i, span{at, t.now})
}

// takes is the cost of a call that is the same at any time.
func takes(d time.Duration) func(time.Duration) time.Duration {
	return func(time.Duration) time.Duration { return d }
}
