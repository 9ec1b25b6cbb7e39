package oracle

// gap is a stretch between two uses of an item during which it is away.
type gap struct {
	item     int32
	after    int32 // the launch that used it last; it may leave when that is over
	deadline int32 // the launch that needs its space: it must have left before
	back     int32 // the launch that uses it next, or never
	end      int32 // back, or the position at which it is freed
}

// tuning tells plans apart.
type tuning struct {
	name         string
	reserveBytes int64   // room left for running ahead
	tailWeight   float64 // how far a gap that ends in a free reaches, relative to one that ends in a use
	turns        bool    // one direction of the bus at a time
}

// plan is which items are away when, in positions.
type plan struct {
	gaps []gap
	free []int64 // per position: what the plan leaves of the budget
}

// newPlan decides which gaps are spent away. The program must fit the budget.
func newPlan(p *program, budgetBytes int64, tune tuning) plan {
	type state struct {
		after   int32 // last use so far
		next    int32 // the use after it, or never
		present bool
	}
	states := make([]state, len(p.items))
	for i := range states {
		states[i] = state{after: never, next: never}
	}
	var result plan
	result.free = make([]int64, len(p.launches))
	var present int64
	var idle queue // farthest end of the gap first; stale once the item is used again
	for at := range p.launches {
		position := int32(at)
		l := &p.launches[at]
		for _, k := range p.freesAt[at] {
			if states[k].present {
				states[k].present = false
				present -= p.items[k].bytes
			}
			states[k].after = never
		}
		for j, k := range l.items {
			s := &states[k]
			if !s.present {
				s.present = true
				present += p.items[k].bytes
			}
			s.after, s.next = position, l.next[j]
		}
		for present+l.pinnedBytes > budgetBytes-tune.reserveBytes {
			top, ok := idle.top()
			if !ok {
				break
			}
			idle.pop()
			s := &states[top.id]
			if !s.present || s.after != top.stamp {
				continue // used again, or gone
			}
			s.present = false
			present -= p.items[top.id].bytes
			end := s.next
			if end == never {
				end = p.items[top.id].freed
			}
			result.gaps = append(result.gaps, gap{item: top.id, after: s.after, deadline: position, back: s.next, end: end})
		}
		result.free[at] = budgetBytes - l.pinnedBytes - present
		for j, k := range l.items {
			reach := float64(l.next[j] - position)
			if l.next[j] == never {
				reach = tune.tailWeight * float64(p.items[k].freed-position)
			}
			idle.push(entry{key: -float64(position) - reach, id: k, stamp: position})
		}
	}
	return result
}
