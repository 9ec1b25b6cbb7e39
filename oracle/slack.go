package oracle

import "math"

// slack holds, for every position, how many bytes of the budget the plan
// leaves unused there: a segment tree with range subtraction and range
// minimum. A copy that runs ahead takes its bytes from the positions between
// now and its use.
type slack struct {
	leaves int
	lowest []int64 // minimum of the subtree, with the additions at and below its root
	added  []int64 // addition to the whole subtree
}

func newSlack(free []int64) *slack {
	leaves := 1
	for leaves < len(free) {
		leaves *= 2
	}
	s := &slack{leaves: leaves, lowest: make([]int64, 2*leaves), added: make([]int64, 2*leaves)}
	for i := range leaves {
		s.lowest[leaves+i] = math.MaxInt64 / 4
		if i < len(free) {
			s.lowest[leaves+i] = free[i]
		}
	}
	for i := leaves - 1; i > 0; i-- {
		s.lowest[i] = min(s.lowest[2*i], s.lowest[2*i+1])
	}
	return s
}

// take subtracts bytes at every position of [from, to).
func (s *slack) take(from, to int, bytes int64) {
	if from < to {
		s.add(1, 0, s.leaves, from, to, -bytes)
	}
}

func (s *slack) add(node, low, high, from, to int, bytes int64) {
	if from <= low && high <= to {
		s.lowest[node] += bytes
		s.added[node] += bytes
		return
	}
	middle := (low + high) / 2
	if from < middle {
		s.add(2*node, low, middle, from, to, bytes)
	}
	if to > middle {
		s.add(2*node+1, middle, high, from, to, bytes)
	}
	s.lowest[node] = min(s.lowest[2*node], s.lowest[2*node+1]) + s.added[node]
}

// min returns the least slack in [from, to); without positions, plenty.
func (s *slack) min(from, to int) int64 {
	if from >= to {
		return math.MaxInt64 / 4
	}
	return s.query(1, 0, s.leaves, from, to)
}

func (s *slack) query(node, low, high, from, to int) int64 {
	if from <= low && high <= to {
		return s.lowest[node]
	}
	middle := (low + high) / 2
	least := int64(math.MaxInt64 / 4)
	if from < middle {
		least = s.query(2*node, low, middle, from, to)
	}
	if to > middle {
		least = min(least, s.query(2*node+1, middle, high, from, to))
	}
	return least + s.added[node]
}
