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
	// soonOps how many ahead of everything else.
	birthOps = 128
	soonOps  = 96
	// wantedOps is how far ahead of coming allocations dead ranges are kept for them,
	// lateOps how far ahead it matters most.
	wantedOps = 1280
	lateOps   = 512
)

// plan is what to move, in order.
type plan struct {
	valid   bool
	serial  uint64
	epoch   uint64
	version uint64
	fetch   []*tensor
	evict   []*tensor // each has serial == serial, and leaves
	births  []int64   // sizes of the coming allocations that find no dead range made by then, in order
	soon    int       // how many of them come before most of what is fetched is needed
	// wanted are the positions of more of them, by size: the second dead range of a size is
	// for the second.
	wanted map[int64][]int64
}

// outlook collects what a plan is made from.
type outlook struct {
	now     int64
	needs   []prefetch.Need
	absent  []*tensor // by Need.ID
	victims evict.Heap[*tensor]
	steps   []prefetch.Step
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
		victims: o.victims,
	}
	o.victims.Reset(r.config.Victims)
	start := o.now
	if first, ok := r.pending.First(); ok {
		start = first.position
	}
	r.lookAtTensors(o)
	slices.SortStableFunc(o.needs, func(a, b prefetch.Need) int { return cmp.Compare(a.Position, b.Position) })
	o.victims.Init()
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
	outcome := prefetch.Look(start, free, o.needs, o.steps, prefetch.Limits{Bytes: r.config.LookaheadBytes}, func(position int64) (prefetch.Victim, bool) {
		for o.victims.Len() > 0 {
			v := o.victims.First()
			t := v.Of
			if !r.mayLeave(t, position) {
				if r.config.Ahead && exhausted(o.now, v.NextUse, position) {
					return prefetch.Victim{}, false // every other one is needed by then
				}
				o.victims.Pop()
				continue
			}
			if t.serial != p.serial {
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
	})
	for _, n := range o.needs[:outcome.Fetch] {
		p.fetch = append(p.fetch, o.absent[n.ID])
	}
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
		if r.evictable(t) {
			if here := t.deviceBytes(); here > 0 {
				o.victims.Add(evict.Victim[*tensor]{Of: t, Candidate: evict.Candidate{
					NextUse: farther(o.now, r.nextUse(t), t.chunks[0].bytes), LastUse: t.lastUse, Migrated: t.arrived, Bytes: here,
				}})
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
		if position <= o.now+birthOps {
			p.births = append(p.births, bytes)
		}
		if position <= o.now+soonOps {
			p.soon++
		}
	})
}

// nextUse is the position of the next operation that names the tensor, queued or predicted.
func (r *Runtime) nextUse(t *tensor) int64 {
	if len(t.queued) > 0 {
		return t.queued[0]
	}
	now := r.history.Now()
	if !t.named {
		return now // fresh memory is used soon
	}
	next := r.history.NextUse(t.instance)
	return max(next, now) // an overdue use is still to come
}

// wanted says whether an absent tensor is to be brought in at all. One that nothing
// has named yet could not leave again, so it is not mapped before it is named.
func (r *Runtime) wanted(t *tensor, next int64) bool {
	return len(t.queued) > 0 || t.named && r.config.Ahead && next < correlate.Unknown
}

// evictable says whether a tensor may leave at all: nothing that was reported
// still uses it, and something has used it.
func (r *Runtime) evictable(t *tensor) bool {
	return t.named && !t.freed && len(t.queued) == 0
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
