package um

import (
	"container/heap"
	"sort"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/prefetch"
)

// planEvents is how many events a plan outlives: fetching and evicting in order
// of need changes little from one operation to the next.
const planEvents = 48

// plan is what to move, in order.
type plan struct {
	valid       bool
	epoch       uint64
	version     uint64
	fetch       []*tensor
	evict       []*tensor
	evictBlocks int32   // how many of their blocks must leave
	births      []int32 // sizes in blocks of the coming allocations
	freshBlocks int32   // most that they and the coming frees take together
}

// room is how many blocks may come to the device now.
func (r *Runtime) room() int32 {
	plain := int32((r.plainBytes + BlockBytes - 1) / BlockBytes)
	return int32(r.config.BudgetBytes/BlockBytes) - plain - r.arena.resident - r.arriving
}

// planned returns the current plan, made anew when it is out of date.
func (r *Runtime) planned() *plan {
	p := &r.plan
	if p.valid && p.version == r.history.Version() && r.epoch-p.epoch < planEvents {
		return p
	}
	*p = plan{valid: true, epoch: r.epoch, version: r.history.Version(), fetch: p.fetch[:0], evict: p.evict[:0], births: p.births[:0]}
	switch r.config.Policy.Fetch {
	case FetchOnFault:
		return p // see nextForFaults
	case FetchTables:
		r.foretell()
	}
	r.look(p)
	return p
}

// look fills a plan by the look-ahead of package prefetch.
func (r *Runtime) look(p *plan) {
	ahead := r.config.Policy.Fetch == FetchAhead
	now := r.history.Now()
	start := now
	if len(r.pending) > 0 {
		start = r.pending[0].position
	}
	var needs []prefetch.Need
	var absent []*tensor
	order := &victimHeap{policy: r.config.Policy.Victims}
	kept := make(map[*tensor]bool)
	if x := r.head(); x != nil {
		for _, t := range x.tensors {
			if !t.freed {
				continue
			}
			// Its blocks may be another tensor's by now; they are needed all the same.
			for b := t.first; b < t.first+t.n; b++ {
				kept[r.arena.owner[b]] = true
			}
			if _, away := r.away(t); away > 0 {
				needs = append(needs, prefetch.Need{Position: x.position, ID: uint32(len(absent)), Bytes: int64(away) * BlockBytes})
				absent = append(absent, t)
			}
		}
	}
	for _, t := range r.slots {
		if t == nil {
			continue
		}
		next := r.nextUse(t)
		if t.missing()-t.arriving > 0 && t.leaving == 0 && r.wanted(t, next) {
			position := next
			if !ahead && len(t.queued) == 0 {
				position = now + 1 // foretold, or fresh
			}
			needs = append(needs, prefetch.Need{Position: position, ID: uint32(len(absent)), Bytes: int64(t.missing()-t.arriving) * BlockBytes})
			absent = append(absent, t)
		}
		if t.present-t.leaving > 0 && t.open == 0 && t.arriving == 0 && !kept[t] {
			order.candidates = append(order.candidates, victim{t, r.candidate(t)})
		}
	}
	sort.SliceStable(needs, func(i, j int) bool { return needs[i].Position < needs[j].Position })
	heap.Init(order)

	// Dead blocks that queued work still uses can serve allocations of their own
	// stream, which come after it, but make no room before it is done.
	idle := int64(r.idleOnDevice()) * BlockBytes
	busy := int64(r.arena.freeOnDevice)*BlockBytes - idle
	free := int64(r.room()+r.leaving)*BlockBytes + idle
	steps := []prefetch.Step{{Position: now, FreedBytes: busy}}
	if ahead {
		var net int64
		r.history.Future(func(position, fresh, freed int64) bool {
			if position < now+birthOps {
				net += fresh - freed
				p.freshBlocks = max(p.freshBlocks, int32(net/BlockBytes))
			}
			if fresh != 0 || freed != 0 {
				steps = append(steps, prefetch.Step{Position: position, FreshBytes: fresh, FreedBytes: freed})
			}
			return r.config.LookaheadOps == 0 || position < now+r.config.LookaheadOps
		})
		r.history.Births(now+birthOps, func(bytes int64) { p.births = append(p.births, int32(bytes/BlockBytes)) })
	} else {
		w := evict.DefaultWatermarks(r.config.BudgetBytes)
		if short := w.Shortfall(free+busy, r.leaving > 0); short > 0 {
			steps = append(steps, prefetch.Step{Position: now + 1, FreshBytes: w.HighBytes})
		}
	}
	var blocks int32
	outcome := prefetch.Look(start, free, needs, steps, prefetch.Limits{}, func(position int64) (int64, bool) {
		for order.Len() > 0 {
			v := heap.Pop(order).(victim)
			if !r.mayLeave(v.tensor, position, ahead) {
				if ahead && v.NextUse != correlate.Never {
					return 0, false // every other one is needed sooner still
				}
				continue
			}
			p.evict = append(p.evict, v.tensor)
			n := v.tensor.present - v.tensor.leaving
			blocks += n
			return int64(n) * BlockBytes, true
		}
		return 0, false
	})
	p.evictBlocks = blocks
	for _, n := range needs[:outcome.Fetch] {
		p.fetch = append(p.fetch, absent[n.ID])
	}
}

// idleOnDevice counts the free blocks on the device that nothing can touch any more.
func (r *Runtime) idleOnDevice() (n int32) {
	for i := range r.arena.free {
		if e := &r.arena.free[i]; e.onDevice && e.idle(r.passed) {
			n += e.n
		}
	}
	return n
}

const birthOps = 512 // operations ahead for which free blocks are made ready

// wanted says whether an absent tensor is to be fetched at all.
func (r *Runtime) wanted(t *tensor, next int64) bool {
	switch {
	case len(t.queued) > 0:
		return true
	case !t.named:
		return !t.offered
	case r.config.Policy.Fetch == FetchTables:
		return r.foretold[t.slot]
	case r.config.Policy.Fetch == FetchAhead:
		return next < correlate.Unknown
	}
	return false
}

// mayLeave says whether a tensor may leave to make room at a position.
func (r *Runtime) mayLeave(t *tensor, position int64, ahead bool) bool {
	if len(t.queued) > 0 && t.queued[0] <= position {
		return false
	}
	if !ahead {
		return !r.foretold[t.slot] || position < r.history.Now()
	}
	if next := r.nextUse(t); next != correlate.Never {
		return next > position
	}
	return r.history.Death(t.instance) > position
}

// victim is a tensor with its description.
type victim struct {
	tensor *tensor
	evict.Candidate
}

type victimHeap struct {
	policy     evict.Policy
	candidates []victim
}

func (h *victimHeap) Len() int { return len(h.candidates) }
func (h *victimHeap) Less(i, j int) bool {
	return h.policy.Before(&h.candidates[i].Candidate, &h.candidates[j].Candidate)
}
func (h *victimHeap) Swap(i, j int) {
	h.candidates[i], h.candidates[j] = h.candidates[j], h.candidates[i]
}
func (h *victimHeap) Push(x any) { h.candidates = append(h.candidates, x.(victim)) }
func (h *victimHeap) Pop() any {
	n := len(h.candidates) - 1
	v := h.candidates[n]
	h.candidates = h.candidates[:n]
	return v
}
