package explicit

import (
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/prefetch"
	"github.com/penstock-gpu/penstock/um"
)

const (
	// planEvents is how many events a plan outlives: the order of need changes
	// little from one operation to the next.
	planEvents = 192
	// changedEvents is how many events a plan outlives after which another one may be better: to make one takes as long as to map.
	changedEvents = 64
	// idleEvents is how many events a plan outlives that has nothing left to do.
	idleEvents = 64
	// planTensors is for how many tensors a plan outlives so many events once more: to make it takes as long as there are tensors.
	planTensors = 1024
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
	// leaveBytes, or the leavePart of the budget, is how much a plan has leave: more than can before the next plan.
	leaveBytes = 1 << 30
	leavePart  = 4
	// makeOps is how many operations ahead of its use something is made again: that is done at once, and until then the room
	// is better what takes time to come.
	makeOps = 96
)

// planning is the floor that decides what comes and what leaves.
type planning struct {
	packer
	planner    prefetch.Planner[*tensor]
	drafting   *Draft        // the plan that is being made
	spareDraft Draft         // its memory
	born       map[int64]int // scratch of lookAtFuture
	looked     int           // tensors that the newest plan looked at
	farthest   int64         // the last position at which one of them is known to be used next
	nothing    [2]uint64     // by direction: the epoch, and one, at which there was nothing to do by the plan
}

// plan is what to move, in order.
type plan struct {
	valid   bool
	changed bool // something is otherwise than when it was made, which may make another one better
	serial  uint64
	epoch   uint64
	version uint64
	fetch   []*tensor // what is copied in
	makes   []*tensor // what is made again
	evict   []*tensor // what is copied out; each has serial == serial, and leaves
	drops   []*tensor // what can be made again: the same
	waiting []*tensor // of both, what a move reads that verifies: it leaves when that is known
	births  []birth   // the coming allocations within farOps that find no dead range made by then, in order
	near    int       // how many of them come within birthOps
	soon    int       // how many of them come before most of what is fetched is needed
	// wanted are the positions of more of them, by size: the second dead range of a size is
	// for the second.
	wanted map[int64][]int64
}

// birth is an allocation that is to come before the operation at a position.
type birth struct{ position, size int64 }

// nextFetch is the first tensor to copy in, or nil.
func (p *plan) nextFetch() *tensor { return firstAbsent(&p.fetch) }

// nextMake is the first tensor to make again, or nil.
func (p *plan) nextMake() *tensor { return firstAbsent(&p.makes) }

// firstAbsent is the first of a plan's tensors that is still to come, or nil; those before it are taken off the list.
func firstAbsent(list *[]*tensor) *tensor {
	for ; len(*list) > 0; *list = (*list)[1:] {
		if t := (*list)[0]; !t.Freed && t.absent > 0 {
			return t
		}
	}
	return nil
}

// resume puts what waited for a move that has verified back on its list, as the first to leave.
func (p *plan) resume() {
	waiting := p.waiting[:0]
	for _, t := range p.waiting {
		switch {
		case t.pins > 0 || t.remake != nil && t.remake.moving:
			waiting = append(waiting, t)
		case t.cheap:
			p.drops = slices.Insert(p.drops, 0, t)
		default:
			p.evict = slices.Insert(p.evict, 0, t)
		}
	}
	p.waiting = waiting
}

// anyComes and anyLeaves say whether anything is left that does.
func (p *plan) anyComes() bool  { return len(p.fetch)+len(p.makes) > 0 }
func (p *plan) anyLeaves() bool { return len(p.evict)+len(p.drops)+len(p.waiting) > 0 }

// planned returns the current plan, made anew when it is out of date.
func (r *planning) planned() *plan { return r.plannedWithin(1) }

// timesIn is how many times as old as for the other worker a plan may be for the one that brings in: it is the busier one, so that
// the other should make the plans.
const timesIn = 2

// lately returns a plan for the worker that brings in.
func (r *planning) lately() *plan { return r.plannedWithin(timesIn) }

// plannedWithin returns the current plan, made anew when it is older than so many times what it may be.
func (r *planning) plannedWithin(times uint64) *plan {
	if r.drafting == nil && r.outdated(times) {
		d := r.draft()
		d.Decide()
		r.install(d)
	}
	return &r.plan
}

// outdated says whether the plan is older than so many times what it may be.
func (r *planning) outdated(times uint64) bool {
	p := &r.plan
	age := (r.Epoch() - p.epoch) / times / uint64(1+r.looked/planTensors)
	return !p.valid || p.version != r.History.Version() || age >= planEvents || p.changed && age >= changedEvents || age >= idleEvents && !p.anyComes() && !p.anyLeaves()
}

// lookAtTensors enters what live tensors need, and which of them could leave.
func (r *planning) lookAtTensors(now int64) {
	o := &r.planner
	r.looked, r.farthest = 0, now
	for _, t := range r.Slots.All() {
		if t == nil || t.Freed {
			continue
		}
		r.looked++
		if t.absent > 0 {
			next := r.nextUse(t)
			r.reaches(next)
			switch {
			case r.wanted(t, next) && t.away() && next > now+makeOps:
				o.Step(prefetch.Step{Position: next - makeOps, FreshBytes: t.absent})
			case r.wanted(t, next):
				o.Need(t, next, t.absent)
			case !t.Named: // it will be, soon
				o.Step(prefetch.Step{Position: next + 1, FreshBytes: t.absent})
			case next == correlate.Never && !t.retained: // its end will free nothing on the device
				if death := r.History.Death(t.Instance); death < correlate.Unknown {
					o.Step(prefetch.Step{Position: death, FreshBytes: t.absent})
				}
			}
		}
		if t.Named && !t.kept && !t.retained && r.config.Ahead {
			if from, until, ok := r.History.Rest(t.Instance, shortRest); ok {
				c := t.candidate(now, until, t.size)
				if t.remake != nil && t.remake.ready && r.inRow(t) < mostInRow || r.makeable(t) {
					c.NextUse = cheap(c.NextUse)
				}
				o.MayLeaveLater(t, from, until, c)
			}
		}
		if r.evictable(t) {
			if here := t.deviceBytes(); here > 0 {
				t.until = r.freeUntil(t)
				r.reaches(t.until)
				c := t.candidate(now, t.until, here)
				if t.cheap = r.drops(t) || r.worthMaking(t); t.cheap {
					c.NextUse = cheap(c.NextUse)
				}
				o.MayLeave(t, c)
			}
		}
	}
}

// reaches notes that something that is there is used next at a position, if it is known to be.
func (r *planning) reaches(next int64) {
	if next < correlate.Unknown {
		r.farthest = max(r.farthest, next)
	}
}

// lookAtDrops enters what is to be allocated and can then be dropped for some time: nothing has to be moved in its place.
func (r *planning) lookAtDrops(now int64) {
	period := r.History.Period()
	if r.config.Replay == um.ReplayOff || period == 0 {
		return
	}
	for number := r.newest + 1; number < r.lives.end(); number++ {
		x := r.lives.of(number)
		if x == nil || x.repeated || x.rest.until-x.rest.from < shortRest || x.born+period <= now {
			continue
		}
		if from, until := x.rest.from+period+restOps, x.rest.until+period; from < until {
			r.planner.Step(prefetch.Step{Position: from, FreedBytes: WholePages(x.bytes)})
			r.planner.Step(prefetch.Step{Position: until, FreshBytes: WholePages(x.bytes)})
		}
	}
}

// cheap is the next use by which a tensor is ordered that costs nearly nothing to leave and to come back: before all that is moved.
func cheap(next int64) int64 {
	const far = correlate.Unknown / 2
	return min(next, far-1) + far
}

// lookAtFuture enters the predicted allocations and frees.
func (r *planning) lookAtFuture(p *plan, now int64) {
	last := correlate.Never
	if r.History.Varies() { // what is repeated may be many iterations old, and what follows it is as long
		last = r.farthest
	}
	r.History.Future(func(position, fresh, freed int64) bool {
		if fresh != 0 || freed != 0 {
			r.planner.Coming(prefetch.Step{Position: position, FreshBytes: fresh, FreedBytes: freed})
		}
		return position < last
	})
	r.lookAtDrops(now)
	// What dies before the next is born serves it, in turn: memory is wanted for as
	// many of a size as there are at a time.
	clear(r.born)
	clear(r.fitting)
	var filled, emptied int64
	r.History.Turns(now+wantedOps, func(position, bytes, lasts int64, death bool) {
		if r.shares(bytes, lasts) {
			count := &filled
			if death {
				count = &emptied
			}
			if *count += bytes; *count < r.sharedSize() {
				return
			}
			*count -= r.sharedSize()
			bytes = r.sharedSize()
		}
		bytes = r.fit(bytes)
		if death {
			r.born[bytes]--
			return
		}
		r.born[bytes]++
		if r.born[bytes] <= len(p.wanted[bytes]) {
			return
		}
		p.wanted[bytes] = append(p.wanted[bytes], position)
		if position <= now+farOps {
			p.births = append(p.births, birth{position, bytes})
		}
		if position <= now+birthOps {
			p.near++
		}
		if position <= now+soonOps {
			p.soon++
		}
	})
}

// nextUse is the position of the next operation that needs the tensor, queued or predicted: that names it, or what
// is to be made of it.
func (r *planning) nextUse(t *tensor) int64 {
	r.again.visits++
	return r.nextUseOf(t)
}

// nextUseOf is that, where each tensor is looked at once: many are made of the same.
func (r *planning) nextUseOf(t *tensor) int64 {
	next := correlate.Never
	if !t.retained {
		next = r.nextNamed(t)
	}
	for _, x := range t.readers {
		if x.visited != r.again.visits {
			x.visited = r.again.visits
			next = min(next, r.nextUseOf(x))
		}
	}
	return next
}

// nextNamed is the position of the next operation that names it.
func (r *planning) nextNamed(t *tensor) int64 {
	if t.Busy() {
		return t.Queued.First()
	}
	now := r.History.Now()
	if !t.Named {
		return now // fresh memory is used soon
	}
	return r.credible(t, now, r.History.NextUse(t.Instance))
}

// overdueOps is how many operations late a use may be, beside twice as many as it was foretold before.
const overdueOps = 256

// credible is a predicted next use, unless it has been foretold for so long that nobody believes it any more: what is
// always about to be used would never leave. One that is overdue is still to come before that.
func (r *planning) credible(t *tensor, now, next int64) int64 {
	switch {
	case next >= correlate.Unknown:
		return next
	case t.foretold <= t.LastUse || next > now+overdueOps: // not since it was used, or it is another one
		t.foretold, t.foretoldAt = next, now
	case now-t.foretold > t.foretold-t.foretoldAt+overdueOps:
		return correlate.Unknown
	}
	return max(next, now)
}

// freeUntil is the position up to which a tensor's leaving makes room that would not be
// there otherwise: its next use, or its death when it is not used again.
func (r *planning) freeUntil(t *tensor) int64 {
	next := r.nextUse(t)
	if next == correlate.Never && r.config.Ahead && !t.retained {
		return min(next, r.History.Death(t.Instance))
	}
	return next
}

// wanted says whether an absent tensor is to be brought in at all. One that nothing
// has named yet could not leave again, so it is not mapped before it is named.
func (r *planning) wanted(t *tensor, next int64) bool {
	return t.Busy() || t.Named && r.config.Ahead && next < correlate.Unknown
}

// evictable says whether a tensor may leave at all: nothing that was reported
// still uses it, nor does a making, something has used it, and nobody may use it unseen.
func (r *planning) evictable(t *tensor) bool {
	return t.Named && !t.kept && !t.Freed && !t.Busy() && t.pins == 0
}
