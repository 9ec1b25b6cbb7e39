package again

import (
	"maps"
	"slices"
)

// Memory is what an operand of a launch names: below the number of tensors, that tensor's own memory, else
// scratch, whose size is Plan.Scratch[memory-tensors].
type Memory int32

// Launch is an operation that is issued again.
type Launch struct {
	Op       int
	Operands []Memory // parallel to the operation's
	Born     []Memory // taken for it
	Gone     []Memory // given back behind it: nothing later names it
}

// Make is what is issued before one of the job's operations.
type Make struct {
	Before   int
	Launches []Launch
}

// Drop gives a tensor's memory up behind an operation, without a copy. It is Born again in a Make before its next use.
type Drop struct {
	After  int
	Tensor int32
}

// Plan is what to do beside the job's own operations.
type Plan struct {
	Drops   []Drop  // in order
	Makes   []Make  // in order
	Keeps   []int32 // tensors that stay when the job frees them, until they are Gone
	Scratch []int64 // sizes; what is never Gone is a workspace, for as long as the plan is followed
}

// Plan makes a plan. It is empty where nothing is better made again.
func (p *Planner) Plan(o Options) *Plan {
	d := p.decide(o)
	for {
		s := d.steps()
		if len(s.lacking) == 0 {
			return s.finish()
		}
		for _, i := range s.lacking {
			d.fates[i] = moved
		}
	}
}

// steps carries decisions out on paper.
type steps struct {
	*decisions
	plan     Plan
	at, end  int   // the operation before which things stand, and the one that the window ends with
	lacking  []int // gaps that cannot be made again as things stand
	away     []bool
	scratch  map[version]Memory // of this window
	spaces   map[int32]Memory   // by workspace: the plan's own
	launches []Launch           // of the make that is being made
	count    int                // launches so far
	lastUse  map[Memory]int     // of scratch, and of what is kept: which launch
}

func (d *decisions) steps() *steps {
	s := &steps{decisions: d, away: make([]bool, len(d.Tensors)), scratch: map[version]Memory{}, spaces: map[int32]Memory{}, lastUse: map[Memory]int{}}
	for i, g := range d.gaps {
		if d.fates[i] == dropped {
			s.plan.Drops = append(s.plan.Drops, Drop{g.after, g.tensor})
		}
	}
	slices.SortStableFunc(s.plan.Drops, func(a, b Drop) int { return a.After - b.After })
	next := 0
	for _, w := range d.windows {
		clear(s.scratch)
		s.end = w.end
		for i := w.from; i < w.to; i++ {
			if d.fates[i] != dropped {
				continue
			}
			g := d.gaps[i]
			for ; next < len(s.plan.Drops) && s.plan.Drops[next].After < g.back; next++ {
				s.away[s.plan.Drops[next].Tensor] = true
			}
			if s.at = g.back; !s.away[g.tensor] {
				continue // it came with another
			}
			if _, ok := s.version(d.before(g.tensor, g.back)); !ok {
				s.lacking = append(s.lacking, i)
			}
			s.away[g.tensor] = false
			s.close()
		}
	}
	return s
}

// close ends the make before s.at.
func (s *steps) close() {
	if len(s.launches) == 0 {
		return
	}
	if n := len(s.plan.Makes); n > 0 && s.plan.Makes[n-1].Before == s.at {
		s.plan.Makes[n-1].Launches = append(s.plan.Makes[n-1].Launches, s.launches...)
	} else {
		s.plan.Makes = append(s.plan.Makes, Make{s.at, s.launches})
	}
	s.launches = nil
}

// where is the memory that holds a version now.
func (s *steps) where(v version) (Memory, bool) {
	t := &s.Tensors[v.tensor]
	if s.at < t.Death {
		if !s.away[v.tensor] && s.before(v.tensor, s.at) == v {
			return Memory(v.tensor), true
		}
	} else if until, kept := s.keep[v.tensor]; kept && s.at <= until && s.last(v) {
		return Memory(v.tensor), true
	}
	m, ok := s.scratch[v]
	return m, ok
}

// version sees to it that a version is there.
func (s *steps) version(v version) (Memory, bool) {
	if m, ok := s.where(v); ok {
		return m, true
	}
	makers := s.makers(v, s.o.Most)
	if makers == nil {
		return 0, false
	}
	target := s.home(v)
	for i, k := range makers {
		if !s.launch(int(k), v.tensor, target, i == 0) {
			return 0, false
		}
	}
	s.settled(v, target)
	return target, true
}

// home is where a version is to be made: in its tensor's own memory where that is to hold it soon, or in scratch.
func (s *steps) home(v version) Memory {
	if s.at < s.Tensors[v.tensor].Death && s.away[v.tensor] && s.before(v.tensor, s.at) == v && s.gaps[s.gapAt(v.tensor, s.at)].back <= s.end {
		return Memory(v.tensor)
	}
	return s.newScratch(v.tensor)
}

// settled says that a version is there from now on.
func (s *steps) settled(v version, m Memory) {
	if m == Memory(v.tensor) {
		s.away[v.tensor] = false
	} else {
		s.scratch[v] = m
	}
}

func (s *steps) newScratch(tensor int32) Memory {
	s.plan.Scratch = append(s.plan.Scratch, s.Tensors[tensor].Bytes)
	return Memory(len(s.Tensors) + len(s.plan.Scratch) - 1)
}

// launch issues an operation again, with a tensor of which a version is being made in target, or none.
func (s *steps) launch(k int, tensor int32, target Memory, first bool) bool {
	l := Launch{Op: k, Operands: make([]Memory, len(s.Ops[k].Operands))}
	if first && tensor != none {
		l.Born = append(l.Born, target)
	}
	// What it reads first: that may take launches of its own.
	for i, x := range s.Ops[k].Operands {
		switch {
		case x.Tensor == tensor:
			l.Operands[i] = target
		case x.Reads && !s.Tensors[x.Tensor].Workspace:
			m, ok := s.version(s.before(x.Tensor, k))
			if !ok || x.Writes {
				return false
			}
			l.Operands[i] = m
		}
	}
	// Then what an operation just before it leaves in a workspace: nothing may come in between.
	for i, x := range s.Ops[k].Operands {
		if !s.Tensors[x.Tensor].Workspace {
			continue
		}
		if left := s.left(x.Tensor, k); x.Reads && left != none {
			if class := s.Ops[left].Class; class == Never || class > s.o.Most || !s.launch(int(left), none, 0, false) {
				return false
			}
		}
		m, ok := s.spaces[x.Tensor]
		if !ok {
			m = s.newScratch(x.Tensor)
			s.spaces[x.Tensor] = m
			l.Born = append(l.Born, m)
		}
		l.Operands[i] = m
	}
	for i, x := range s.Ops[k].Operands {
		if x.Tensor == tensor || x.Reads || s.Tensors[x.Tensor].Workspace {
			continue
		}
		v := version{x.Tensor, int32(k)}
		if _, there := s.where(v); there || len(s.makers(v, s.o.Most)) != 1 {
			l.Operands[i] = s.newScratch(x.Tensor) // of no use
		} else {
			l.Operands[i] = s.home(v)
			s.settled(v, l.Operands[i])
		}
		l.Born = append(l.Born, l.Operands[i])
	}
	for _, m := range l.Operands {
		if int(m) >= len(s.Tensors) || s.at >= s.Tensors[m].Death {
			s.lastUse[m] = s.count
		}
	}
	s.launches = append(s.launches, l)
	s.count++
	return true
}

// finish says when scratch and what is kept are given back.
func (s *steps) finish() *Plan {
	gone := map[int][]Memory{}
	for _, m := range s.spaces {
		delete(s.lastUse, m)
	}
	for _, m := range slices.Sorted(maps.Keys(s.lastUse)) {
		gone[s.lastUse[m]] = append(gone[s.lastUse[m]], m)
		if int(m) < len(s.Tensors) {
			s.plan.Keeps = append(s.plan.Keeps, int32(m))
		}
	}
	n := 0
	for i := range s.plan.Makes {
		for j := range s.plan.Makes[i].Launches {
			s.plan.Makes[i].Launches[j].Gone = gone[n]
			n++
		}
	}
	return &s.plan
}
