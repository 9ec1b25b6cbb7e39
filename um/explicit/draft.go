package explicit

import (
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/prefetch"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for how a plan is made: what is there is looked at first (plan.go), then it is decided what comes and what leaves, which
// needs nothing else, and at last that takes the place of the plan before.

// Draft is a plan that is being made: what is there has been looked at, and [Draft.Decide], which takes most of the time, reads
// nothing that others may change, so the Runtime may be used meanwhile. There is one at a time.
type Draft struct {
	r      *planning
	plan   plan
	now    int64
	start  int64
	free   int64
	limits prefetch.Limits
	chosen []*tensor // what leaves, or may later
}

// Draft begins a plan for the worker of a direction, if it should make one before it asks for its next move; else it is nil. The caller
// has it decide, and then calls [Runtime.Install].
func (r *scheduler) Draft(d um.Direction) *Draft {
	times := uint64(1)
	if d == um.In {
		times = timesIn
	}
	if r.drafting != nil || r.idleWorker(d) || !r.outdated(times) {
		return nil
	}
	return r.draft()
}

// Install makes a draft that has been decided the plan.
func (r *planning) Install(d *Draft) {
	r.install(d)
	r.Happened() // the other worker may have found nothing to do by the plan before
}

// draft looks at what is there. What happens to the plan from now on happens to the one that is being made.
func (r *planning) draft() *Draft {
	r.worthReplay()
	d := &r.spareDraft
	p := &d.plan
	*p = plan{
		valid: true, serial: r.plan.serial + 1, epoch: r.Epoch(), version: r.History.Version(),
		fetch: p.fetch[:0], makes: p.makes[:0], evict: p.evict[:0], drops: p.drops[:0], waiting: p.waiting[:0], births: p.births[:0], wanted: p.wanted,
	}
	if p.wanted == nil {
		p.wanted = map[int64][]int64{}
	}
	for size, positions := range p.wanted {
		p.wanted[size] = positions[:0]
	}
	d.r, d.chosen = r, d.chosen[:0]
	r.drafting = d
	r.plan.valid, r.plan.changed = true, false
	r.look(d)
	return d
}

// look enters what a plan is made from.
func (r *planning) look(d *Draft) {
	now, o := r.History.Now(), &r.planner
	o.Reset(r.config.Victims)
	start := now
	if first, ok := r.Pending.First(); ok {
		start = first.Position
	}
	r.lookAtTensors(now)
	free := r.config.BudgetBytes - r.PlainBytes - r.plainNeed - r.physical.mapped - r.physical.releasing + r.outgoing + r.dead.bytes
	if free < 0 { // room is short already
		at := start
		if r.plainNeed > 0 {
			at = min(start, now-1) // a thread waits before it launches anything: what is used next may have to leave
		}
		o.Step(prefetch.Step{Position: at})
	}
	if r.config.Ahead {
		r.lookAtFuture(&d.plan, now)
	} else {
		w := evict.DefaultWatermarks(r.config.BudgetBytes)
		if short := w.Shortfall(free, r.outgoing > 0); short > 0 {
			o.Step(prefetch.Step{Position: now + 1, FreshBytes: w.HighBytes})
		}
	}
	limits := prefetch.Limits{Bytes: r.config.LookaheadBytes}
	if r.config.Replay != um.ReplayOff { // there are many plans then, and the walk is most of what one takes
		limits.Leave = max(leaveBytes, r.config.BudgetBytes/leavePart)
	}
	d.now, d.start, d.free, d.limits = now, start, free, limits
}

// Decide fills the plan.
func (d *Draft) Decide() {
	d.plan.fetch, _ = d.r.planner.Plan(d.plan.fetch, d.start, d.free, restOps, d.limits, d.choose)
}

// choose says whether a tensor leaves to make room at a position, and how much of it at a time: of what is not used
// between its leaving and that position the one that is wanted last after it (Belady's rule). That may be one
// that is yet to be used before: it then leaves later, by another plan, and nothing that
// would have to come back sooner leaves in its place now.
func (d *Draft) choose(v *evict.Victim[prefetch.Leaver[*tensor]], position int64) (prefetch.Choice, int64) {
	t := v.Of.Of
	planned := t.drafted == d.plan.serial
	switch {
	case v.Of.From > 0 && (planned || v.Of.Until <= position):
		return prefetch.Pass, 0
	case v.Of.From > 0:
		d.chose(t)
		return prefetch.Take, v.Bytes
	case planned && t.draftedBytes == 0: // later
		return prefetch.Pass, 0
	case !d.r.config.Ahead || t.until > position:
	case evict.Exhausted(d.now, v.NextUse, position, PageBytes):
		return prefetch.Stop, 0 // every other one is needed by then
	default:
		return prefetch.Pass, 0
	}
	if !planned {
		d.chose(t)
		if t.cheap {
			d.plan.drops = append(d.plan.drops, t)
		} else {
			d.plan.evict = append(d.plan.evict, t)
		}
	}
	piece := min(v.Bytes, d.r.config.ChunkBytes)
	t.draftedBytes += piece
	return prefetch.Take, piece
}

// chose notes that a tensor leaves, now or later.
func (d *Draft) chose(t *tensor) {
	t.drafted, t.draftedBytes = d.plan.serial, 0
	d.chosen = append(d.chosen, t)
}

// install makes a draft the plan.
func (r *planning) install(d *Draft) {
	p := &d.plan
	for _, t := range d.chosen {
		t.serial, t.leaves = p.serial, t.draftedBytes
	}
	fetch := p.fetch[:0]
	for _, t := range p.fetch {
		if t.away() {
			p.makes = append(p.makes, t)
		} else {
			fetch = append(fetch, t)
		}
	}
	p.fetch, p.valid, p.changed = fetch, r.plan.valid, r.plan.changed
	r.plan, d.plan = d.plan, r.plan
	r.drafting = nil
	r.nothing = [2]uint64{} // there may be something to do now
	r.stats.Plans++
}
