package plan

import (
	"cmp"
	"slices"
)

// exact searches for a placement below a capacity by depth first search over
// canonical placements, after the published idea of MiniMalloc (Moffitt, "MiniMalloc:
// A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning", ASPLOS
// '23). In a canonical placement every buffer rests on another or on the floor, and
// buffers are put down in order of (offset, rank); every placement can be pushed
// down into one, so no other needs to be looked at. What is pruned:
//
//   - dominance: what is put down next must lie below the lowest top that any open
//     buffer could have now, or that buffer would fit underneath;
//   - sections: at every time, the open buffers there are jobs of one machine, with
//     the lowest offset each can still have as release date. Scheduled by release
//     date they end as early as they can, and that must be below the capacity;
//   - what was passed over (it could have lain lower, or has a lower rank at the
//     same offset) must be raised by another open buffer, and so lies above one;
//   - hatless: a buffer with nothing open above it may as well lie where it can;
//   - twins: of buffers alike in all, the first lies lowest;
//   - parts: when what is open falls into parts that share no time, each is solved
//     alone, and when one cannot be, no other choice in another will help.
//
// Which rank is right nobody knows, and a search with the wrong one does not end:
// see search.go.
type exact struct {
	p        *problem
	capacity int64
	stop     func() bool

	rank      []int32   // by buffer: which goes first at equal offset
	neighbors [][]int32 // alive together, the smallest first
	twin      []int32   // the buffer before this that is like it; -1: none

	floor   []int64 // by buffer: the lowest offset above all that was put down
	open    []bool  // by buffer: not put down
	offsets []int64
	level   []int64 // by time: scratch of the sections
	cover   []int32 // by time: scratch of the parts
	raised  []raise // what to undo
	scratch []item  // a stack of parts

	nodes, nodeLimit int64
	stopped          bool
	dead             []float64 // by time: how often a section ended a branch, over all runs
}

// item is an open buffer of a part. A part is kept sorted by (release, rank):
// from one node to the next little changes.
type item struct {
	release int64 // the lowest offset that it can still have
	rank    int32
	buffer  int32
}

func (a item) before(b item) bool {
	return a.release < b.release || a.release == b.release && a.rank < b.rank
}

type raise struct {
	buffer int32
	floor  int64 // before
}

const never = int64(1) << 62

// newExact prepares a search. The problem has no wrapped and no pinned buffers.
func newExact(p *problem) *exact {
	n := len(p.buffers)
	s := &exact{p: p,
		rank: make([]int32, n), neighbors: make([][]int32, n), twin: make([]int32, n),
		floor: make([]int64, n), open: make([]bool, n), offsets: make([]int64, n),
		level: make([]int64, p.times), cover: make([]int32, p.times+1), dead: make([]float64, p.times)}
	for i := range p.buffers {
		s.twin[i] = -1
		for j := range p.buffers {
			if i == j || !p.buffers[i].overlaps(&p.buffers[j]) {
				continue
			}
			s.neighbors[i] = append(s.neighbors[i], int32(j))
			if j < i && p.buffers[i] == p.buffers[j] {
				s.twin[i] = int32(j)
			}
		}
		slices.SortStableFunc(s.neighbors[i], func(j, k int32) int {
			return cmp.Compare(p.buffers[j].bytes, p.buffers[k].bytes)
		})
	}
	return s
}

// run searches with the given order of buffers for at most so many nodes. Unless
// stopped it is certain: false means that there is no such placement.
func (s *exact) run(order []int32, nodeLimit int64) bool {
	s.nodes, s.nodeLimit, s.stopped = 0, nodeLimit, false
	s.raised, s.scratch = s.raised[:0], s.scratch[:0]
	for r, i := range order {
		s.rank[i], s.floor[i], s.open[i] = int32(r), 0, true
		s.scratch = append(s.scratch, item{-1, int32(r), i})
	}
	return s.parts(s.scratch, -1, -1)
}

// parts solves each part of the open buffers alone. All are open again when it fails.
func (s *exact) parts(items []item, last int64, lastRank int32) bool {
	if len(items) == 0 {
		return true
	}
	buffers := s.p.buffers
	begin, end := s.p.times, int32(0)
	for _, it := range items {
		begin, end = min(begin, buffers[it.buffer].lower), max(end, buffers[it.buffer].upper)
	}
	// A part ends where no open buffer goes on. Cover counts at each time those that
	// do, and then becomes the number of the part.
	cover := s.cover[begin : end+1]
	clear(cover)
	for _, it := range items {
		b := &buffers[it.buffer]
		cover[b.lower-begin+1]++
		cover[b.upper-begin]--
	}
	var crossing, part int32
	for t := 1; t < len(cover)-1; t++ {
		if crossing += cover[t]; crossing == 0 {
			part++
		}
		cover[t] = part
	}
	if part == 0 {
		return s.node(items, last, lastRank)
	}
	cover[0] = 0
	mark := len(s.scratch)
	defer func() { s.scratch = s.scratch[:mark] }()
	s.scratch = append(s.scratch, items...)
	sorted := s.scratch[mark:]
	ends := make([]int32, part+2)
	for _, it := range items {
		ends[cover[buffers[it.buffer].lower-begin]+1]++
	}
	for n := range part + 1 {
		ends[n+1] += ends[n]
	}
	next := slices.Clone(ends)
	for _, it := range items {
		n := cover[buffers[it.buffer].lower-begin]
		sorted[next[n]] = it
		next[n]++
	}
	for n := range part + 1 {
		if ends[n] < ends[n+1] && !s.node(sorted[ends[n]:ends[n+1]:ends[n+1]], last, lastRank) {
			for _, it := range items {
				s.open[it.buffer] = true
			}
			return false
		}
	}
	return true
}

// node puts down the next buffer of one part, in every way that is left. last and
// lastRank are those of the buffer put down before it. items is sorted in place.
func (s *exact) node(items []item, last int64, lastRank int32) bool {
	s.nodes++
	if s.nodes >= s.nodeLimit || s.nodes%256 == 0 && s.stop() {
		s.stopped = true
		return false
	}
	lowestTop, changed, ok := s.release(items, last, lastRank)
	if !ok || !s.sectionsFit(items, changed) {
		return false
	}
	mark := len(s.scratch)
	defer func() { s.scratch = s.scratch[:mark] }()
	for n, it := range items {
		i, at := it.buffer, s.floor[it.buffer]
		if at >= lowestTop {
			continue
		}
		if at < last || at == last && it.rank < lastRank || s.twin[i] >= 0 && s.open[s.twin[i]] {
			continue
		}
		undo := len(s.raised)
		fits, hatless := s.putDown(i, at)
		if fits {
			s.scratch = append(append(s.scratch[:mark], items[:n]...), items[n+1:]...)
			if s.parts(s.scratch[mark:len(s.scratch):len(s.scratch)], at, it.rank) {
				return true
			}
		}
		s.open[i] = true
		for len(s.raised) > undo {
			r := s.raised[len(s.raised)-1]
			s.raised = s.raised[:len(s.raised)-1]
			s.floor[r.buffer] = r.floor
		}
		if s.stopped || hatless && fits {
			return false
		}
	}
	return false
}

// release works out the lowest offset that each item can still have, sorts the
// items by it, and gives the lowest top that one could have now and the times at
// which something changed. It is false when an item can lie nowhere.
func (s *exact) release(items []item, last int64, lastRank int32) (lowestTop int64, changed times, ok bool) {
	buffers := s.p.buffers
	lowestTop = never
	changed = times{s.p.times, 0}
	for n := range items {
		it := &items[n]
		i := it.buffer
		b := &buffers[i]
		at := s.floor[i]
		lowestTop = min(lowestTop, at+b.bytes)
		if at < last || at == last && it.rank < lastRank {
			// Passed over: another one will have to raise it.
			at = never
			for _, k := range s.neighbors[i] {
				bytes := buffers[k].bytes
				if last+bytes >= at {
					break
				}
				if s.open[k] {
					at = min(at, max(s.floor[k], last)+bytes)
				}
			}
		}
		if at+b.bytes > s.capacity {
			return 0, changed, false
		}
		if at != it.release {
			it.release = at
			changed.lower, changed.upper = min(changed.lower, b.lower), max(changed.upper, b.upper)
		}
	}
	for n := 1; n < len(items); n++ {
		it := items[n]
		k := n
		for ; k > 0 && it.before(items[k-1]); k-- {
			items[k] = items[k-1]
		}
		items[k] = it
	}
	return lowestTop, changed, true
}

// times is a stretch of dense time.
type times struct{ lower, upper int32 }

// sectionsFit stacks the items at every time that changed, in order of release.
func (s *exact) sectionsFit(items []item, changed times) bool {
	if changed.lower >= changed.upper {
		return true
	}
	buffers := s.p.buffers
	clear(s.level[changed.lower:changed.upper])
	for _, it := range items {
		b := &buffers[it.buffer]
		lower, upper := max(b.lower, changed.lower), min(b.upper, changed.upper)
		if lower >= upper {
			continue
		}
		level := s.level[lower:upper]
		for t, top := range level {
			top = max(top, it.release) + b.bytes
			if top > s.capacity {
				s.dead[int(lower)+t]++
				return false
			}
			level[t] = top
		}
	}
	return true
}

// putDown gives a buffer its place and raises the floors of those alive with it.
func (s *exact) putDown(i int32, at int64) (fits, hatless bool) {
	buffers := s.p.buffers
	top := at + buffers[i].bytes
	s.open[i] = false
	s.offsets[i] = at
	fits, hatless = top <= s.capacity, true
	for _, j := range s.neighbors[i] {
		if !s.open[j] {
			continue
		}
		hatless = false
		if s.floor[j] >= top {
			continue
		}
		s.raised = append(s.raised, raise{j, s.floor[j]})
		s.floor[j] = alignUp(top, buffers[j].align)
		if s.floor[j]+buffers[j].bytes > s.capacity {
			return false, false
		}
	}
	return fits, hatless
}
