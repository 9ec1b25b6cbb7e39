package plan

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Limits of the exact search. What it finds at all it nearly always finds within a
// few nodes per buffer, if only the ranks are right; so it is begun again and again
// with other ranks, for as long as Luby's sequence says (Luby, Sinclair, Zuckerman,
// "Optimal speedup of Las Vegas algorithms", 1993).
const (
	mostExactBuffers = 3000
	nodesPerBuffer   = 8
	unlearned        = 40 // orders before failures are looked at: easy problems need no more
)

// ranker makes orders for the exact search at random: blends of how contended the
// times of a buffer are, how long it lives, how large it is and when it begins.
type ranker struct {
	p          *problem
	contention []float64 // by buffer: log of the most bytes alive at one of its times
	random     *rand.Rand
	scores     []float64
	order      []int32
	made       int // orders so far
}

func newRanker(p *problem, seed uint64) *ranker {
	r := &ranker{p: p, random: rand.New(rand.NewPCG(seed, 1)), scores: make([]float64, len(p.buffers)), order: make([]int32, len(p.buffers))}
	live := make([]int64, p.times)
	for i := range p.buffers {
		b := &p.buffers[i]
		for t := b.lower; t < b.upper; t++ {
			live[t] += b.bytes
		}
	}
	for i := range p.buffers {
		b := &p.buffers[i]
		r.contention = append(r.contention, math.Log(float64(slices.Max(live[b.lower:b.upper]))))
	}
	return r
}

// next gives an order, valid until the next call. dead says at which times searches
// failed so far: when many have, a third of the orders puts first what is alive when
// most of them did, as it is there that choices matter.
func (r *ranker) next(dead []float64) []int32 {
	contention, life, size, start := r.random.ExpFloat64(), r.random.ExpFloat64(), r.random.ExpFloat64(), 0.0
	if r.random.IntN(4) == 0 {
		start = 3 * r.random.NormFloat64()
	}
	if r.random.IntN(2) == 0 {
		contention *= 1e6 // above all else
	}
	learned := 0.0
	if r.made++; r.made > unlearned && r.random.IntN(3) == 0 {
		learned = 2 * r.random.ExpFloat64()
	}
	noise := []float64{0, 0.05, 0.2}[r.random.IntN(3)]
	for i := range r.p.buffers {
		b := &r.p.buffers[i]
		r.order[i] = int32(i)
		r.scores[i] = contention*r.contention[i] + life*math.Log(float64(b.duration())) + size*math.Log(float64(b.bytes)) -
			start*float64(b.lower)/float64(r.p.times) + learned*math.Log(1+slices.Max(dead[b.lower:b.upper])) + noise*r.random.NormFloat64()
	}
	slices.SortFunc(r.order, func(i, j int32) int {
		return cmp.Or(cmp.Compare(r.scores[j], r.scores[i]), cmp.Compare(i, j))
	})
	return r.order
}

// luby is the i-th number of 1, 1, 2, 1, 1, 2, 4, ..., from i = 1.
func luby(i int) int64 {
	for {
		power := 1
		for power-1 < i {
			power *= 2
		}
		if i == power-1 {
			return int64(power / 2)
		}
		i -= power/2 - 1
	}
}
