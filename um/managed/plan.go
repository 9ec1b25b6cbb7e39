package managed

import (
	"cmp"
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/prefetch"
	"github.com/penstock-gpu/penstock/um"
)

// planning is the floor that decides what comes and what leaves.
type planning struct {
	gates
	tables  *correlate.Tables // of the deepum policy
	outlook outlook
}

// planEvents is how many events a plan outlives: fetching and evicting in order
// of need changes little from one operation to the next.
const planEvents = 48

// leastEvents is how many events a plan outlives that has nothing left to do.
const leastEvents = 4

// birthOps is how many operations ahead free blocks are made ready. Where the
// driver evicts, populating is what evicts, and reaches further.
const (
	birthOps       = 512
	driverBirthOps = 1500
)

// deferOps is how many operations before a use its room must be there, for the
// copy in to end in time.
const deferOps = 32

func (r *planning) birthOps() int64 {
	if r.recency != nil {
		return driverBirthOps
	}
	return birthOps
}

// plan is what to move, in order.
type plan struct {
	valid       bool
	serial      uint64
	epoch       uint64
	version     uint64
	fetch       []*tensor
	evict       []*tensor // each has leaves == serial
	dry         bool      // nothing of evict is left to displace
	ahead       int32     // how many more may be displaced for what is only predicted
	aheadDry    bool      // and none of them is left
	stuck       bool      // something is needed, and nothing could be done for it
	turns       []int32   // sizes in blocks of the coming allocations, in order; less than 0 where one is freed
	largest     int32     // of them
	freshBlocks int32     // most that they and the coming frees take together
	spareBlocks int32     // what will be free when all that is queued is done, and needed by nothing before
	shortAt     int64     // up to this position it is needed
	farBlocks   int32     // could leave, and are not needed before the next operation to be queued
	frees       []freeing
	readied     bool // nothing is left to make ready for them
}

// planned returns the current plan, made anew when it is out of date.
func (r *planning) planned() *plan {
	p := &r.plan
	age := r.Epoch() - p.epoch
	// One event may have changed that, and be the last for long. Where the driver evicts, a fault makes the room.
	stuck := p.stuck && age > 0 && r.flying == 0 && r.recency == nil
	quiet := r.recency != nil && age > 0 && r.Pending.Len() == 0 // no event may follow for long, and there is time to make room ahead
	if p.valid && p.version == r.History.Version() && age < planEvents && (age < leastEvents || len(p.fetch) > 0 && !p.dry) && !stuck && !quiet {
		return p
	}
	*p = plan{
		valid: true, serial: p.serial + 1, epoch: r.Epoch(), version: r.History.Version(),
		fetch: p.fetch[:0], evict: p.evict[:0], turns: p.turns[:0], frees: p.frees[:0],
	}
	switch r.config.Policy.Fetch {
	case um.FetchOnFault:
		return p // see nextForFaults
	case um.FetchTables:
		r.foretell()
	}
	r.look(p)
	return p
}

// outlook is what a plan is made from.
type outlook struct {
	prefetch.Planner[*tensor]
	ahead bool
	now   int64
	start int64 // the first position that is to come
}

func (o *outlook) need(t *tensor, position int64, blocks int32) {
	o.Need(t, position, int64(blocks)*BlockBytes)
}

func (o *outlook) free(position int64, blocks int32) {
	if blocks > 0 {
		o.Step(prefetch.Step{Position: max(position, o.start), FreedBytes: int64(blocks) * BlockBytes})
	}
}

// look fills a plan.
func (r *planning) look(p *plan) {
	o := &r.outlook
	o.ahead, o.now, o.start = r.config.Policy.Fetch == um.FetchAhead, r.History.Now(), r.History.Now()
	o.Reset(r.config.Policy.Victims)
	if first, ok := r.Pending.First(); ok {
		o.start = first.Position
	}
	r.lookAtDeferred(p, o)
	idle := r.lookAtFree(p, o)
	r.lookAtTensors(p, o)
	free := int64(r.room()+r.leaving-r.displacing+idle+r.populating) * BlockBytes
	if o.ahead {
		r.lookAtFuture(p, o)
	} else {
		w := evict.DefaultWatermarks(r.config.BudgetBytes)
		if short := w.Shortfall(free+int64(r.arena.freeOnDevice-idle)*BlockBytes, r.leaving > 0); short > 0 {
			o.Step(prefetch.Step{Position: o.now + 1, FreshBytes: w.HighBytes})
		}
	}
	var outcome prefetch.Plan
	p.fetch, outcome = o.Plan(p.fetch, o.start, free, deferOps, prefetch.Limits{Bytes: r.config.LookaheadBytes, Exact: r.recency != nil, Spare: o.now},
		func(v *evict.Victim[prefetch.Leaver[*tensor]], position int64) (prefetch.Choice, int64) {
			return r.choose(p, o, v, position)
		})
	p.stuck = outcome.BlockedAt >= 0 && outcome.Fetch+outcome.Evict == 0
	p.spareBlocks, p.shortAt = int32(outcome.SpareBytes/BlockBytes), outcome.ShortAt
	r.stats.Plans++
}

// freeing says that blocks become free once an operation is done.
type freeing struct {
	position int64
	blocks   int32
}

// spareAfter is the operation after which those blocks become free that nothing
// needs before the next operation to be queued; 0 when that is so of all free
// blocks. A tensor that is allocated now does best on them: on blocks that are
// free before it would lie idle while something else leaves for what is needed sooner. Not a
// large one for which blocks are made ready (makeReady).
func (r *planning) spareAfter(blocks int32) uint64 {
	p := &r.plan
	ready := r.recency != nil && r.config.Policy.Fetch == um.FetchAhead && blocks >= largeBlocks
	if !p.valid || ready || p.spareBlocks < blocks/8 && p.farBlocks >= blocks {
		return 0
	}
	spare, from := p.spareBlocks, r.History.Now()
	for i := len(p.frees) - 1; i >= 0 && spare > 0; i-- {
		spare -= p.frees[i].blocks
		from = p.frees[i].position
	}
	if spare > 0 {
		from = 0
	}
	if from = max(from, p.shortAt); from == 0 {
		return 0
	}
	if x, ok := r.Pending.Where(func(x *op) bool { return x.Position+1 >= from }); ok {
		return x.Seq
	}
	return r.lastSeq + 1
}

// spend enters an allocation into what is spare: where that is not enough,
// something leaves for it.
func (p *plan) spend(blocks int32, now int64) {
	if p.spareBlocks -= blocks; p.spareBlocks < 0 {
		p.farBlocks += p.spareBlocks
		p.spareBlocks, p.shortAt = 0, now
	}
}

// choose says whether a tensor leaves, whole, to make room at a position.
func (r *planning) choose(p *plan, o *outlook, v *evict.Victim[prefetch.Leaver[*tensor]], position int64) (prefetch.Choice, int64) {
	t := v.Of.Of
	switch {
	case t.counted == p.serial: // it is a victim already, now or later
		return prefetch.Pass, 0
	case v.Of.From > 0 && v.Of.Until <= position:
		return prefetch.Pass, 0
	case v.Of.From > 0:
		t.counted = p.serial
		return prefetch.Take, v.Bytes
	case r.mayLeave(t, position, o.ahead):
	case o.ahead && v.NextUse != correlate.Never:
		return prefetch.Stop, 0 // every other one is needed sooner still
	default:
		return prefetch.Pass, 0
	}
	t.counted = p.serial
	if position <= o.now && v.NextUse > o.now {
		p.farBlocks -= int32(v.Bytes / BlockBytes)
	}
	switch {
	case r.recency == nil || position <= o.now:
		t.leaves, t.leavesAhead = p.serial, false
		p.evict = append(p.evict, t)
	case position <= o.now+evictAheadOps:
		t.leaves, t.leavesAhead = p.serial, true
		p.ahead++
	}
	return prefetch.Take, v.Bytes
}

// lookAtDeferred enters what dead tensors still need.
func (r *planning) lookAtDeferred(p *plan, o *outlook) {
	a := r.arena
	for _, t := range r.deferred { // in the order of their deaths: who had a block first needs it first
		var absent, here int32
		for b := t.first; b < t.first+t.n; b++ {
			switch {
			case a.moving[b]:
			case a.onDevice[b]:
				if r.holds(t, b) {
					here++
				}
			case a.claimed[b] != p.serial:
				a.claimed[b] = p.serial
				absent++
			}
		}
		if absent > 0 {
			o.need(t, t.Queued.First(), absent)
		}
		switch {
		case !t.released: // a move is in the way
			o.free(t.Queued.Last()+1, t.n)
		case here > 0 && !t.pinned():
			t.forgetFinished()
			c := r.candidate(t, here)
			if c.NextUse > o.now {
				p.farBlocks += here
			}
			o.MayLeave(t, c)
		}
	}
}

// lookAtFree enters when free blocks that are on the device, or will be because
// freed tensors need them there, can be let go of: when the work queued before the free
// is done. It answers how many can be now.
func (r *planning) lookAtFree(p *plan, o *outlook) (idle int32) {
	a := r.arena
	for i := range a.free {
		e := &a.free[i]
		if e.onDevice && r.dead(e) {
			idle += e.n
			continue
		}
		n := e.n
		if !e.onDevice {
			n = 0
			for b := e.first; b < e.end(); b++ {
				if g := a.deferred[b]; g != nil && g.Busy() {
					n++
				}
			}
		}
		if n > 0 {
			at := r.idleAt(e)
			o.free(at, n)
			p.frees = append(p.frees, freeing{at, n})
		}
	}
	slices.SortFunc(p.frees, func(a, b freeing) int { return cmp.Compare(a.position, b.position) })
	return idle
}

// idleAt is the position at which the work is done that may still use an extent.
func (r *planning) idleAt(e *extent) (position int64) {
	after := func(seq uint64) int64 {
		if x, ok := r.Pending.From(seq); ok {
			return x.Position + 1
		}
		return r.History.Now() + 1
	}
	if e.stream != anyStream {
		position = after(e.seq)
	}
	for _, other := range e.others {
		position = max(position, after(other.Seq))
	}
	return position
}

// lookAtTensors enters what live tensors need, and which of them could leave.
func (r *planning) lookAtTensors(p *plan, o *outlook) {
	a := r.arena
	for _, t := range r.Slots.All() {
		if t == nil {
			continue
		}
		t.forgetFinished()
		if missing := t.missing() - t.arriving; missing > 0 {
			next := r.ownNextUse(t)
			if r.wanted(t, next) {
				if len(t.prior) > 0 { // what freed tensors bring in comes for them
					missing = 0
					for b := t.first; b < t.first+t.n; b++ {
						if !a.onDevice[b] && !a.moving[b] && a.claimed[b] != p.serial {
							missing++
						}
					}
				}
				if !o.ahead && !t.Busy() {
					next = o.now + 1 // foretold, or fresh
				}
				if missing > 0 {
					o.need(t, next, missing)
				}
			}
		}
		r.lookAtLater(o, t)
		if here := t.present - t.leaving; here > 0 && !t.pinned() {
			c := r.candidate(t, here)
			if c.NextUse > o.now {
				p.farBlocks += here
			}
			o.MayLeave(t, c)
		}
	}
}

// lookAtLater enters a tensor that is queued to be used, as one that may leave
// after that: all of it, for what is missing will have come. Only where the
// driver evicts: an eviction of ours takes several times as long as a fetch, and
// waiting for a better victim then costs more than that is worth.
func (r *planning) lookAtLater(o *outlook, t *tensor) {
	if !o.ahead || r.recency == nil {
		return
	}
	last, ok := t.lastQueued()
	if !ok {
		return
	}
	// What dies first is a coming free already.
	if next := r.predictedUse(t); r.History.Death(t.Instance) > next {
		c := r.candidate(t, t.n)
		c.NextUse = next
		o.MayLeaveLater(t, last+1, next, c)
	}
}

// lookAtFuture enters the predicted allocations and frees.
func (r *planning) lookAtFuture(p *plan, o *outlook) {
	var net int64
	r.History.Future(func(position, fresh, freed int64) bool {
		if position < o.now+r.birthOps() {
			net += fresh - freed
			p.freshBlocks = max(p.freshBlocks, int32(net/BlockBytes))
		}
		if fresh != 0 || freed != 0 {
			o.Step(prefetch.Step{Position: position, FreshBytes: fresh, FreedBytes: freed})
		}
		return true
	})
	r.History.Turns(o.now+r.birthOps(), func(_, bytes, _ int64, death bool) {
		n := int32(bytes / BlockBytes)
		if death {
			n = -n
		}
		p.turns, p.largest = append(p.turns, n), max(p.largest, n)
	})
}

// idleOnDevice counts the free blocks on the device that nothing can touch any more.
func (r *planning) idleOnDevice() (n int32) {
	for i := range r.arena.free {
		if e := &r.arena.free[i]; e.onDevice && r.dead(e) {
			n += e.n
		}
	}
	return n
}

// wanted says whether an absent tensor is to be fetched at all.
func (r *planning) wanted(t *tensor, next int64) bool {
	switch {
	case t.Busy():
		return true
	case !t.Named:
		return !t.offered
	case r.config.Policy.Fetch == um.FetchTables:
		return r.foretold[t.Slot]
	case r.config.Policy.Fetch == um.FetchAhead:
		return next < correlate.Unknown
	}
	return false
}

// mayLeave says whether a tensor may leave to make room at a position.
func (r *planning) mayLeave(t *tensor, position int64, ahead bool) bool {
	if q, ok := t.soonestQueued(); ok && q <= position {
		return false
	}
	if t.Freed {
		return true
	}
	if !ahead {
		return !r.foretold[t.Slot] || position < r.History.Now()
	}
	if next := r.nextUse(t); next != correlate.Never {
		return next > position
	}
	return r.History.Death(t.Instance) > position
}
