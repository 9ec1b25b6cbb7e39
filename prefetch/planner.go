package prefetch

import (
	"cmp"
	"slices"

	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/internal/heap"
)

// Planner decides what comes and what leaves, in order, from an engine's view of its
// tensors T: what is needed and away, what could leave, and what is to be allocated and
// freed. It is filled anew for each plan, and keeps its memory.
type Planner[T any] struct {
	needs   []Need
	absent  []T // by Need.ID
	steps   []Step
	coming  []Step // in order
	merged  []Step // of both
	victims evict.Heap[Leaver[T]]
	later   []evict.Victim[Leaver[T]]
	next    []laterEntry // a heap of them, that are not among the victims yet
}

// laterEntry is one of Planner.later, and when it may leave.
type laterEntry struct {
	from  int64
	index int32
}

// sooner orders them by when they may leave: few of many are looked at, so they are kept as a heap and not sorted.
func sooner(a, b laterEntry) bool { return a.from < b.from || a.from == b.from && a.index < b.index }

// Leaver is a tensor that could leave: now, or from a position on, where it has been
// used for the time being, until it is used again.
type Leaver[T any] struct {
	Of          T
	From, Until int64 // From 0: now
}

// Choice is what an engine says of the victim that is to leave next.
type Choice int

// Choices.
const (
	Pass Choice = iota // it does not leave by this plan
	Stop               // nor does any after it
	Take               // it leaves
)

// Chooser says whether a victim leaves to make room at a position, and how many of its bytes at a time.
type Chooser[T any] func(v *evict.Victim[Leaver[T]], position int64) (c Choice, bytes int64)

// Reset forgets what the last plan was made from.
func (p *Planner[T]) Reset(victims evict.Policy) {
	p.needs, p.absent, p.steps, p.coming, p.later, p.next = p.needs[:0], p.absent[:0], p.steps[:0], p.coming[:0], p.later[:0], p.next[:0]
	p.victims.Reset(victims)
}

// Need enters that so many bytes of a tensor have to be there for an operation, and are away.
func (p *Planner[T]) Need(of T, position, bytes int64) {
	p.needs = append(p.needs, Need{Position: position, ID: uint32(len(p.absent)), Bytes: bytes})
	p.absent = append(p.absent, of)
}

// Step enters a change of what is allocated.
func (p *Planner[T]) Step(s Step) { p.steps = append(p.steps, s) }

// Coming enters a change that comes no sooner than any that was entered so before.
func (p *Planner[T]) Coming(s Step) { p.coming = append(p.coming, s) }

// MayLeave enters a tensor that could leave now.
func (p *Planner[T]) MayLeave(of T, c evict.Candidate) {
	p.victims.Add(evict.Victim[Leaver[T]]{Of: Leaver[T]{Of: of}, Candidate: c})
}

// MayLeaveLater enters one that could from a position on, until another.
func (p *Planner[T]) MayLeaveLater(of T, from, until int64, c evict.Candidate) {
	p.later = append(p.later, evict.Victim[Leaver[T]]{Of: Leaver[T]{of, from, until}, Candidate: c})
}

// Plan answers what is to be fetched now, in order, appended to fetch; what leaves has been told to choose.
// What may leave later must do so rest operations before it makes room, to have left by then.
func (p *Planner[T]) Plan(fetch []T, start, freeBytes, rest int64, limits Limits, choose Chooser[T]) ([]T, Plan) {
	slices.SortStableFunc(p.needs, func(a, b Need) int { return cmp.Compare(a.Position, b.Position) })
	for i := range p.later {
		p.next = append(p.next, laterEntry{p.later[i].Of.From, int32(i)})
	}
	heap.Init(p.next, sooner)
	p.victims.Init()
	plan := Look(start, freeBytes, p.needs, p.allSteps(), limits, func(position int64) (Victim, bool) {
		for len(p.next) > 0 && p.next[0].from+rest <= position {
			var first laterEntry
			first, p.next = heap.Pop(p.next, sooner)
			p.victims.Push(p.later[first.index])
		}
		return p.victim(position, choose)
	})
	for _, n := range p.needs[:plan.Fetch] {
		fetch = append(fetch, p.absent[n.ID])
	}
	return fetch, plan
}

// allSteps are the steps in order.
func (p *Planner[T]) allSteps() []Step {
	slices.SortStableFunc(p.steps, func(a, b Step) int { return cmp.Compare(a.Position, b.Position) })
	if len(p.coming) == 0 {
		return p.steps
	}
	p.merged = p.merged[:0]
	i := 0
	for _, s := range p.coming {
		for ; i < len(p.steps) && p.steps[i].Position <= s.Position; i++ {
			p.merged = append(p.merged, p.steps[i])
		}
		p.merged = append(p.merged, s)
	}
	p.merged = append(p.merged, p.steps[i:]...)
	return p.merged
}

// victim is what leaves next to make room at a position.
func (p *Planner[T]) victim(position int64, choose Chooser[T]) (Victim, bool) {
	for p.victims.Len() > 0 {
		v := p.victims.First()
		c, bytes := choose(v, position)
		if c == Stop {
			break
		}
		later := v.Of.From > 0
		if v.Bytes -= bytes; c == Pass || later || v.Bytes == 0 {
			p.victims.Pop()
		}
		if c == Take {
			return Victim{Bytes: bytes, Later: later}, true
		}
	}
	return Victim{}, false
}
