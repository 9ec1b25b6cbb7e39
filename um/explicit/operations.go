package explicit

import (
	"fmt"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um"
)

// operations is the floor of what has been reported and not finished: what may go, what waits, and for what.
type operations struct {
	reclaimer
	recent    recent
	mostNamed int64 // bytes that one operation has named at most, as op.asked counts them
}

// noteWait counts what an operation waits for.
func (r *operations) noteWait(x *op) {
	r.stats.WaitedOps++
	for i, t := range x.Tensors {
		if t.state == Guarded && !x.reads[i] {
			r.stats.GuardWaits++
			break
		}
	}
	if strings.Contains(x.Name, foreachKernel) {
		r.stats.WaitedForeach++
	}
	for _, t := range x.Tensors {
		if t.state != Absent {
			continue
		}
		for i := range t.chunks {
			switch t.chunks[i].where {
			case blank:
				r.stats.WaitedForMap++
				return
			case leaving:
				r.stats.WaitedForLeaving++
				return
			case onHost, dropped:
				r.stats.WaitedForFetch++
				return
			}
		}
	}
}

// ready says whether an operation may be launched.
func (r *operations) ready(x *op) bool {
	for i, t := range x.Tensors {
		if !t.Freed && (t.state == Absent || t.state == Guarded && !x.reads[i]) {
			return false
		}
	}
	return true
}

// Ready says whether an operation that was reported may be launched.
func (r *operations) Ready(seq uint64) bool {
	x := r.find(seq)
	return x == nil || r.ready(x)
}

// Settled says whether everything that an operation names is on the device, with
// no copy left to wait for.
func (r *operations) Settled(seq uint64) bool {
	x := r.find(seq)
	if x == nil {
		return true
	}
	for i, t := range x.Tensors {
		if !t.Freed && t.state != Resident && (t.state != Guarded || !x.reads[i]) {
			return false
		}
	}
	return true
}

func (r *operations) find(seq uint64) *op {
	if x, ok := r.Pending.From(seq); ok && x.Seq == seq {
		return x
	}
	return nil
}

// head is the oldest operation that cannot be launched yet, or nil.
func (r *operations) head() *op {
	for x := range r.Pending.All() {
		if x.waiting {
			if x.waiting = !r.ready(x); x.waiting {
				return x
			}
		}
	}
	return nil
}

// Held says whether any operation waits.
func (r *operations) Held() bool { return r.head() != nil }

// Running says for how long an operation has been unfinished that has been launched: when it ends, what it uses may
// leave. One that waits here does not run, nor does the one with the number asking, which waits for something else.
func (r *operations) Running(asking uint64) time.Duration {
	for x := range r.Pending.All() {
		if x.Seq != asking && (!x.waiting || r.ready(x)) {
			return r.process.Now() - x.at
		}
	}
	return 0
}

// Explain says what the oldest operation that waits is waiting for.
func (r *operations) Explain() string {
	x := r.head()
	if x == nil {
		return "no operation waits"
	}
	var used, fresh, kept, idle, dead, deadBusy, held int64 // of device memory
	for _, t := range r.Slots.All() {
		switch {
		case t == nil || t.Freed:
		case t.Busy():
			used += t.deviceBytes()
		case !t.Named:
			fresh += t.deviceBytes()
		case t.kept:
			kept += t.deviceBytes()
		default:
			idle += t.deviceBytes()
		}
	}
	for _, t := range r.dead.order {
		if r.idle(t) {
			dead += t.deviceBytes()
		} else {
			deadBusy += t.deviceBytes()
		}
		if t.held {
			held += t.deviceBytes()
		}
	}
	text := fmt.Sprintf("%s touches %s, %s of it absent; of the budget of %s plain memory has %s and asks for %s, %d unfinished operations use %s, %s were never used, %s stay because their addresses were copied to memory of others, %s could leave, "+
		"%s are freed (%s of all that the job may take again, %d ranges were not taken back when last looked at) and %s freed and in use, %s are spare, %s on their way in, %s out, %s being released",
		nameOf(x.Name), size.Text(x.bytes()), size.Text(x.lacks()), size.Text(r.config.BudgetBytes), size.Text(r.PlainBytes), size.Text(r.plainNeed), r.Pending.Len(), size.Text(used), size.Text(fresh), size.Text(kept),
		size.Text(idle), size.Text(dead), size.Text(held), r.notRecalled, size.Text(deadBusy), size.Text(r.physical.spares), size.Text(r.incoming), size.Text(r.outgoing), size.Text(r.physical.releasing))
	for s := range r.Streams() { // one that stands still is what the others wait for
		if first, ok := r.Pending.FirstOn(s); ok && first != x {
			text += fmt.Sprintf("; stream %d was given operations up to %d and has not finished %d, %s", s, r.ReportedOn(s), first.Seq, nameOf(first.Name))
		}
	}
	return text
}

// Hopeless is why the oldest operation that waits can never run: beside plain
// memory there is no room for a single chunk of what it lacks. nil when it can,
// or when none waits.
func (r *operations) Hopeless() error {
	x := r.head()
	if x == nil {
		return nil
	}
	needs := x.bytes()
	var chunk int64
	for _, t := range x.Tensors {
		for i := range t.chunks {
			if c := &t.chunks[i]; c.where == blank || c.where == onHost || c.where == dropped {
				chunk = max(chunk, c.bytes)
			}
		}
	}
	if chunk <= r.config.BudgetBytes-r.PlainBytes {
		return nil
	}
	return fmt.Errorf("%w: %s touches %s, and of the device budget of %s plain memory takes %s: give --budget %dMiB or more",
		um.ErrOutOfMemory, nameOf(x.Name), size.Text(needs), size.Text(r.config.BudgetBytes), size.Text(r.PlainBytes), (needs+r.PlainBytes+1<<20-1)>>20)
}

// ShowWaits has each wait that is over told: of which operation, for what, and from when to when.
func (r *operations) ShowWaits(tell func(seq uint64, cause um.StallCause, from, to time.Duration)) {
	r.Stalls.Ended = func(x *op, cause um.StallCause, from, to time.Duration) { tell(x.Seq, cause, from, to) }
}

// Stalling says whether an operation waits with nothing before it left to run.
func (r *operations) Stalling() bool { return r.Stalls.Of != nil }

// accountStall measures how long the oldest operation has waited of those that have
// nothing before them on their stream left to run: in the launch hook, and then on its
// stream for copies that are under way.
func (r *operations) accountStall() {
	var x *op
	cause := um.ForMap
	for s := range r.Streams() {
		first, ok := r.Pending.FirstOn(s)
		if !ok || x != nil && first.Seq > x.Seq {
			continue
		}
		switch {
		case first.waiting && !r.ready(first):
			x, cause = first, um.ForMap
		case first.awaits():
			x, cause = first, um.ForFetch
		}
	}
	if x == r.Stalls.Of && cause == um.ForFetch {
		r.Stalls.Blame(cause)
	}
	r.Stalls.Wait(x, cause)
}

// blame says what an operation waits for from now on, if it is the stalled one.
func (r *operations) blame(x *op, cause um.StallCause) {
	if x == r.Stalls.Of {
		r.Stalls.Blame(cause)
	}
}
