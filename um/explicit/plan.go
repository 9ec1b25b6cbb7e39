package explicit

import (
	"cmp"
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/prefetch"
)

const (
	// planEvents is how many events a plan outlives: the order of need changes
	// little from one operation to the next.
	planEvents = 192
	// idleEvents is how many events a plan outlives that has nothing left to do.
	idleEvents = 64
	// birthOps is how many operations ahead memory is mapped for coming allocations,
	// soonOps how many ahead of everything else, and farOps how many while nothing is to be
	// fetched: a job whose CPU keeps it back feels each wait, and large tensors, one after the
	// other, take longer to map than birthOps last.
	birthOps = 128
	soonOps  = 96
	farOps   = 1024
	// wantedOps is how far ahead of coming allocations dead ranges are kept for them,
	// lateOps how far ahead it matters most.
	wantedOps = 1280
	lateOps   = 256
	// shortRest is how many operations a tensor must be left alone for to be worth its way
	// out, and restOps how many operations before room is needed what makes it must have been
	// used, so that it has left by then.
	shortRest = 64
	restOps   = 64
)

// plan is what to move, in order.
type plan struct {
	valid   bool
	serial  uint64
	epoch   uint64
	version uint64
	fetch   []*tensor
	evict   []*tensor // each has serial == serial, and leaves
	births  []birth   // the coming allocations within farOps that find no dead range made by then, in order
	near    int       // how many of them come within birthOps
	soon    int       // how many of them come before most of what is fetched is needed
	// wanted are the positions of more of them, by size: the second dead range of a size is
	// for the second.
	wanted map[int64][]int64
}

// birth is an allocation that is to come before the operation at a position.
type birth struct{ position, size int64 }

// nextFetch is the first tensor to bring in, or nil.
func (p *plan) nextFetch() *tensor {
	for len(p.fetch) > 0 {
		if t := p.fetch[0]; !t.freed && t.absent > 0 {
			return t
		}
		p.fetch = p.fetch[1:]
	}
	return nil
}

// outlook collects what a plan is made from.
type outlook struct {
	now     int64
	needs   []prefetch.Need
	absent  []*tensor // by Need.ID
	victims evict.Heap[leaver]
	later   []leaver // may leave once they have been used, in that order
	entered int      // how many of these are among the victims
	steps   []prefetch.Step
}

// leaver is a tensor that could leave: now, or from a position on, where it has been
// used for the time being, until another.
type leaver struct {
	*tensor
	from, until int64 // 0: now
}

// planned returns the current plan, made anew when it is out of date.
func (r *Runtime) planned() *plan {
	p := &r.plan
	age := r.epoch - p.epoch
	if p.valid && p.version == r.history.Version() && age < planEvents && (age < idleEvents || len(p.fetch) > 0 || len(p.evict) > 0) {
		return p
	}
	*p = plan{
		valid: true, serial: p.serial + 1, epoch: r.epoch, version: r.history.Version(),
		fetch: p.fetch[:0], evict: p.evict[:0], births: p.births[:0], wanted: p.wanted,
	}
	if p.wanted == nil {
		p.wanted = map[int64][]int64{}
	}
	for size, positions := range p.wanted {
		p.wanted[size] = positions[:0]
	}
	r.look(p)
	r.nothing = [2]uint64{} // there may be something to do now
	r.stats.Plans++
	return p
}

// look fills a plan by the look-ahead of package prefetch.
func (r *Runtime) look(p *plan) {
	o := &r.outlook
	*o = outlook{
		now: r.history.Now(), needs: o.needs[:0], absent: o.absent[:0], steps: o.steps[:0],
		victims: o.victims, later: o.later[:0],
	}
	o.victims.Reset(r.config.Victims)
	start := o.now
	if first, ok := r.pending.First(); ok {
		start = first.position
	}
	r.lookAtTensors(o)
	slices.SortStableFunc(o.needs, func(a, b prefetch.Need) int { return cmp.Compare(a.Position, b.Position) })
	o.victims.Init()
	slices.SortFunc(o.later, func(a, b leaver) int { return cmp.Compare(a.from, b.from) })
	free := r.config.BudgetBytes - r.plainBytes - r.plainNeed - r.physical.mapped - r.physical.limbo + r.outgoing + r.graves.bytes
	if free < 0 { // room is short already
		at := start
		if r.plainNeed > 0 {
			at = min(start, o.now-1) // a thread waits before it launches anything: what is used next may have to leave
		}
		o.steps = append(o.steps, prefetch.Step{Position: at})
	}
	if r.config.Ahead {
		r.lookAtFuture(p, o)
	} else {
		w := evict.DefaultWatermarks(r.config.BudgetBytes)
		if short := w.Shortfall(free, r.outgoing > 0); short > 0 {
			o.steps = append(o.steps, prefetch.Step{Position: o.now + 1, FreshBytes: w.HighBytes})
		}
	}
	slices.SortStableFunc(o.steps, func(a, b prefetch.Step) int { return cmp.Compare(a.Position, b.Position) })
	outcome := prefetch.Look(start, free, o.needs, o.steps, prefetch.Limits{Bytes: r.config.LookaheadBytes},
		func(position int64) (prefetch.Victim, bool) { return r.victim(p, o, position) })
	for _, n := range o.needs[:outcome.Fetch] {
		p.fetch = append(p.fetch, o.absent[n.ID])
	}
}

// victim is what leaves next to make room at a position: of what is not used between its
// leaving and that position the one that is wanted last after it (Belady's rule). That may be one
// that is yet to be used before: it then leaves later, by another plan, and nothing that
// would have to come back sooner leaves in its place now.
func (r *Runtime) victim(p *plan, o *outlook, position int64) (prefetch.Victim, bool) {
	for o.entered < len(o.later) && o.later[o.entered].from+restOps <= position {
		x := o.later[o.entered]
		o.entered++
		o.victims.Push(evict.Victim[leaver]{Of: x, Candidate: x.candidate(o.now, x.until, x.size)})
	}
	for o.victims.Len() > 0 {
		v := o.victims.First()
		t := v.Of.tensor
		planned := t.serial == p.serial
		if v.Of.from > 0 {
			o.victims.Pop()
			if planned || v.Of.until <= position {
				continue
			}
			t.serial, t.leaves = p.serial, 0
			return prefetch.Victim{Bytes: v.Bytes, Later: true}, true
		}
		if planned && t.leaves == 0 { // later
			o.victims.Pop()
			continue
		}
		if !r.mayLeave(t, position) {
			if r.config.Ahead && exhausted(o.now, v.NextUse, position) {
				return prefetch.Victim{}, false // every other one is needed by then
			}
			o.victims.Pop()
			continue
		}
		if !planned {
			t.serial, t.leaves = p.serial, 0
			p.evict = append(p.evict, t)
		}
		piece := min(v.Bytes, r.config.ChunkBytes)
		t.leaves += piece
		if v.Bytes -= piece; v.Bytes == 0 {
			o.victims.Pop()
		}
		return prefetch.Victim{Bytes: piece}, true
	}
	return prefetch.Victim{}, false
}

// lookAtTensors enters what live tensors need, and which of them could leave.
func (r *Runtime) lookAtTensors(o *outlook) {
	for _, t := range r.slots {
		if t == nil || t.freed {
			continue
		}
		if t.absent > 0 {
			next := r.nextUse(t)
			switch {
			case r.wanted(t, next):
				o.needs = append(o.needs, prefetch.Need{Position: next, ID: uint32(len(o.absent)), Bytes: t.absent})
				o.absent = append(o.absent, t)
			case !t.named: // it will be, soon
				o.steps = append(o.steps, prefetch.Step{Position: next + 1, FreshBytes: t.absent})
			case next == correlate.Never: // its end will free nothing on the device
				if death := r.history.Death(t.instance); death < correlate.Unknown {
					o.steps = append(o.steps, prefetch.Step{Position: death, FreshBytes: t.absent})
				}
			}
		}
		if t.named && !t.kept && r.config.Ahead {
			if from, until, ok := r.history.Rest(t.instance, shortRest); ok {
				o.later = append(o.later, leaver{t, from, until})
			}
		}
		if r.evictable(t) {
			if here := t.deviceBytes(); here > 0 {
				o.victims.Add(evict.Victim[leaver]{Of: leaver{tensor: t}, Candidate: t.candidate(o.now, r.freeUntil(t), here)})
			}
		}
	}
}

// lookAtFuture enters the predicted allocations and frees.
func (r *Runtime) lookAtFuture(p *plan, o *outlook) {
	r.history.Future(func(position, fresh, freed int64) bool {
		if fresh != 0 || freed != 0 {
			o.steps = append(o.steps, prefetch.Step{Position: position, FreshBytes: fresh, FreedBytes: freed})
		}
		return true
	})
	// What dies before the next is born serves it, in turn: memory is wanted for as
	// many of a size as there are at a time.
	clear(r.born)
	r.history.Turns(o.now+wantedOps, func(position, bytes int64, death bool) {
		if death {
			r.born[bytes]--
			return
		}
		r.born[bytes]++
		if r.born[bytes] <= len(p.wanted[bytes]) {
			return
		}
		p.wanted[bytes] = append(p.wanted[bytes], position)
		if position <= o.now+farOps {
			p.births = append(p.births, birth{position, bytes})
		}
		if position <= o.now+birthOps {
			p.near++
		}
		if position <= o.now+soonOps {
			p.soon++
		}
	})
}

// nextUse is the position of the next operation that names the tensor, queued or predicted.
func (r *Runtime) nextUse(t *tensor) int64 {
	if t.busy() {
		return t.queued.First()
	}
	now := r.history.Now()
	if !t.named {
		return now // fresh memory is used soon
	}
	return r.credible(t, now, r.history.NextUse(t.instance))
}

// overdueOps is how many operations late a use may be, beside twice as many as it was foretold before.
const overdueOps = 256

// credible is a predicted next use, unless it has been foretold for so long that nobody believes it any more: what is
// always about to be used would never leave. One that is overdue is still to come before that.
func (r *Runtime) credible(t *tensor, now, next int64) int64 {
	switch {
	case next >= correlate.Unknown:
		return next
	case t.foretold <= t.lastUse || next > now+overdueOps: // not since it was used, or it is another one
		t.foretold, t.foretoldAt = next, now
	case now-t.foretold > t.foretold-t.foretoldAt+overdueOps:
		return correlate.Unknown
	}
	return max(next, now)
}

// freeUntil is the position up to which a tensor's leaving makes room that would not be
// there otherwise: its next use, or its death when it is not used again.
func (r *Runtime) freeUntil(t *tensor) int64 {
	next := r.nextUse(t)
	if next == correlate.Never && r.config.Ahead {
		return min(next, r.history.Death(t.instance))
	}
	return next
}

// wanted says whether an absent tensor is to be brought in at all. One that nothing
// has named yet could not leave again, so it is not mapped before it is named.
func (r *Runtime) wanted(t *tensor, next int64) bool {
	return t.busy() || t.named && r.config.Ahead && next < correlate.Unknown
}

// evictable says whether a tensor may leave at all: nothing that was reported
// still uses it, something has used it, and nobody may use it unseen.
func (r *Runtime) evictable(t *tensor) bool {
	return t.named && !t.kept && !t.freed && !t.busy()
}

// mayLeave says whether a tensor may leave to make room at a position.
func (r *Runtime) mayLeave(t *tensor, position int64) bool {
	if !r.config.Ahead {
		return true
	}
	if next := r.nextUse(t); next != correlate.Never {
		return next > position
	}
	return r.history.Death(t.instance) > position
}
