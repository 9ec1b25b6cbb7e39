package plan

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// improve packs large problems again and again, each time in the best order so far
// but with what stuck out of it sooner.
func (s *search) improve() {
	s.each(func(worker int) {
		random := rand.New(rand.NewPCG(uint64(worker), 2))
		offsets := make([]int64, len(s.p.buffers))
		for s.open() && !s.stalled() {
			order, f := s.variation(random)
			if height, ok := s.p.pack(order, f, s.limit(), offsets, s.stop); ok {
				s.offer(height, offsets, order)
			}
		}
	})
}

// stalled says that nothing has come of the last while.
func (s *search) stalled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.bestAt) > min(max(time.Second, 2*s.bestAt.Sub(s.begun)), 5*time.Second)
}

// variation is an order near the best one.
func (s *search) variation(random *rand.Rand) ([]int32, fit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	low := max(s.content, s.bound)
	n := len(s.order)
	type keyed struct {
		key float64
		i   int32
	}
	all := make([]keyed, n)
	strength := random.Float64()
	for at, i := range s.order {
		key := float64(at)
		if s.offsets[i]+s.p.buffers[i].bytes > low {
			key *= 1 - strength*random.Float64()
		} else if random.IntN(64) == 0 {
			key += float64(n) * 0.02 * random.NormFloat64()
		}
		all[at] = keyed{key, i}
	}
	slices.SortFunc(all, func(a, b keyed) int {
		pa, pb := s.p.buffers[a.i].pinned, s.p.buffers[b.i].pinned
		if pa != pb {
			if pa {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.i, b.i))
	})
	order := make([]int32, n)
	for at, k := range all {
		order[at] = k.i
	}
	return order, fit(random.IntN(2))
}
