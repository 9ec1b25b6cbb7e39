package follow

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/pool/plan"
)

// unplaced is the offset of a step without a place.
const unplaced = -1

// Step is one request of an iteration.
type Step struct {
	Bytes        int64 // rounded up
	Stream       uint64
	Offset       int64 // in the planned addresses; unplaced when it has none
	Lower, Upper int64 // ticks from the iteration's begin
	Again        int64 // ticks of the next iteration, in which it is alive until then; 0: none
	Lasting      bool  // it lives on longer than that
	Varies       bool  // another iteration asked for another size here, or not at all
	Gaps         []Gap // of a step that varies: what is free of planned steps during its life

	signature plan.Signature
}

// Gap is a stretch of planned addresses.
type Gap struct{ Lo, Hi int64 }

// Steps are the requests of an iteration, in order.
type Steps struct {
	List  []Step
	Start int   // of the repeating part: the steps before come once
	Ticks int64 // allocations and frees in the repeating part
	Bytes int64 // planned addresses
	// Begins says that the requests after these have only begun, when the steps were found.
	Begins bool

	bySignature map[plan.Signature][]int32
	overlaps    Overlaps
}

// Overlaps are for each step the others that lie where it does, wholly or in part.
type Overlaps struct {
	First []uint32 // where those of each step begin in Steps; one more than there are steps
	Steps []uint32
}

// mostOverlaps is how many are listed: more are not worth the memory.
const mostOverlaps = 1 << 21

// Overlaps are those of the steps as Plan has placed them; ok is false when there are too many to be listed, or no plan.
func (s *Steps) Overlaps() (o Overlaps, ok bool) { return s.overlaps, s.overlaps.First != nil }

// overlap lists them.
func (s *Steps) overlap() {
	s.overlaps = Overlaps{}
	var placed []uint32
	for i, x := range s.List {
		if x.Offset != unplaced {
			placed = append(placed, uint32(i))
		}
	}
	slices.SortFunc(placed, func(a, b uint32) int { return cmp.Compare(s.List[a].Offset, s.List[b].Offset) })
	others, all := make([][]uint32, len(s.List)), 0
	for k, i := range placed {
		for _, j := range placed[k+1:] {
			if s.List[j].Offset >= s.List[i].Offset+s.List[i].Bytes {
				break
			}
			others[i], others[j] = append(others[i], j), append(others[j], i)
			if all += 2; all > mostOverlaps {
				return
			}
		}
	}
	o := Overlaps{First: make([]uint32, 1, len(s.List)+1), Steps: make([]uint32, 0, all)}
	for _, x := range others {
		o.Steps = append(o.Steps, x...)
		o.First = append(o.First, uint32(len(o.Steps)))
	}
	s.overlaps = o
}

func (s *Steps) index() {
	s.bySignature = map[plan.Signature][]int32{}
	for i, x := range s.List {
		s.bySignature[x.signature] = append(s.bySignature[x.signature], int32(i))
	}
}

// Revise marks the steps that a follower missed in one whole turn as varying, if there are so many
// that the plan should be made without them; then it returns true, and the plan is void.
func (s *Steps) Revise(f *Follower) bool {
	var missed, hit int64
	for i, x := range s.List {
		switch {
		case x.Varies:
		case f.missed[i]:
			missed += x.Bytes
		case f.hit[i]:
			hit += x.Bytes
		}
	}
	if missed*tolerated <= hit {
		return false
	}
	for i := range s.List {
		x := &s.List[i]
		x.Varies = x.Varies || f.missed[i]
		x.Offset, x.Gaps = unplaced, nil
	}
	s.overlaps = Overlaps{}
	return true
}

// nearBound is the part of the least bytes possible, one in so many, that a plan may need more.
const nearBound = 256

// LiveBytes are most of the bytes that a plan places and that are live at once: it cannot need less.
func (s *Steps) LiveBytes() (most int64) {
	changes := make([]int64, s.Ticks+1)
	for _, x := range s.List {
		if !x.Varies && !x.Lasting {
			changes[x.Lower] += x.Bytes
			changes[x.Upper] -= x.Bytes
			changes[0] += min(x.Again, 1) * x.Bytes
			changes[x.Again] -= min(x.Again, 1) * x.Bytes
		}
	}
	live := int64(0)
	for _, c := range changes {
		live += c
		most = max(most, live)
	}
	return most
}

// tolerated is the part of the requested bytes, one in so many, that may be missed.
const tolerated = 50

// Plan places the steps that repeat exactly, and lists the gaps for those that
// vary. It reports what share of all requested bytes has a place.
func (s *Steps) Plan(ctx context.Context, limit time.Duration) (share float64, err error) {
	var requests []plan.Request
	var placed []int
	var all, static int64
	for i, x := range s.List {
		all += x.Bytes
		if x.Varies || x.Lasting {
			continue
		}
		static += x.Bytes
		placed = append(placed, i)
		requests = append(requests, plan.Request{Span: plan.Span{Lower: x.Lower, Upper: x.Upper}, Again: plan.Span{Upper: x.Again}, Bytes: x.Bytes, AlignBytes: plan.AlignBytes})
	}
	if len(placed) == 0 {
		return 0, nil
	}
	// One thread: the job's own calls into this library wait for the others. And no more of its
	// time than it takes to be near the bound: the job goes on without the plan.
	p, err := plan.Place(ctx, requests, plan.Options{TimeLimit: time.Nanosecond, Workers: 1})
	if err == nil && p.Bytes > p.BoundBytes+p.BoundBytes/nearBound {
		p, err = plan.Place(ctx, requests, plan.Options{TimeLimit: limit, Workers: 1, CapacityBytes: p.BoundBytes + p.BoundBytes/nearBound})
	}
	if err != nil {
		return 0, err
	}
	for k, i := range placed {
		s.List[i].Offset = p.Offsets[k]
	}
	s.Bytes = p.Bytes
	s.gaps()
	s.overlap()
	return float64(static) / float64(all), nil
}

// gaps lists for each step that varies what the placed ones leave during its life.
func (s *Steps) gaps() {
	for i := range s.List {
		x := &s.List[i]
		if !x.Varies || x.Lasting {
			continue
		}
		var taken []Gap
		for _, y := range s.List {
			if y.Offset != unplaced && (y.Lower < x.Upper && x.Lower < y.Upper || x.Lower < y.Again) {
				taken = append(taken, Gap{y.Offset, y.Offset + y.Bytes})
			}
		}
		slices.SortFunc(taken, func(a, b Gap) int { return cmp.Compare(a.Lo, b.Lo) })
		at := int64(0)
		for _, t := range append(taken, Gap{s.Bytes, s.Bytes}) {
			if t.Lo-at >= x.Bytes/2 {
				x.Gaps = append(x.Gaps, Gap{at, t.Lo})
			}
			at = max(at, t.Hi)
		}
		slices.SortFunc(x.Gaps, func(a, b Gap) int { return cmp.Compare(a.Hi-a.Lo, b.Hi-b.Lo) }) // best fit first
	}
}

// FromPlan makes steps of a whole job's plan. Its calls name streams by the order
// of their first use, and so do the steps.
func FromPlan(p *plan.Plan) (*Steps, error) {
	if len(p.Period) == 0 {
		return nil, errors.New("the plan has no iteration that repeats: record a longer run, and plan that")
	}
	s := &Steps{Ticks: p.PeriodEvents, Bytes: p.ArenaBytes}
	for i, calls := range [][]plan.Call{p.Prologue, p.Period} {
		if i == 1 {
			s.Start = len(s.List)
		}
		for _, c := range calls {
			if c.Bytes == 0 {
				continue // such a request needs no memory, and does not come here
			}
			s.List = append(s.List, Step{
				Bytes: plan.RoundUp(c.Bytes), Stream: uint64(c.Stream), Offset: c.Offset, Lower: c.Lower, Upper: c.Upper,
				Varies: c.Offset == plan.Unplanned, signature: c.Signature,
			})
		}
	}
	s.index()
	return s, nil
}
