package plan

import "github.com/penstock-gpu/penstock/trace"

// mostDifferent is how many allocations two iterations may differ in and still be
// alike: a quarter of them, and no more than so many.
const mostDifferent = 2000

// alike finds the last marked iterations that are alike though not the same. For
// each it has the calls of its allocations in order, and which call of the
// iteration before each is like (-1: none). The last comes first; at most
// mostIterations+1 are followed.
func (r *run) alike() []likeness {
	var chain []likeness
	for n := len(r.iterations) - 1; n >= 0 && len(chain) <= mostIterations; n-- {
		at := r.iterations[n]
		here := likeness{stretch: at}
		for _, o := range r.ops[at.begin:at.end] {
			if o.alloc {
				here.calls = append(here.calls, o.call)
			}
		}
		if len(chain) > 0 {
			after := &chain[len(chain)-1]
			before, ok := r.match(here.calls, after.calls)
			if !ok || here.end != after.begin {
				break
			}
			after.before = before
		}
		chain = append(chain, here)
	}
	if len(chain) < 2 {
		return nil
	}
	return chain
}

type likeness struct {
	stretch
	calls  []int32
	before []int32 // by index of calls: the index in the iteration before; nil for the first of the chain
}

// match pairs the calls of two iterations that are alike in size and stream, in
// order: the shortest edit script of Myers ("An O(ND) difference algorithm and its
// variations", 1986), given up when it gets long.
func (r *run) match(a, b []int32) (before []int32, ok bool) {
	same := func(i, j int) bool {
		x, y := &r.calls[a[i]], &r.calls[b[j]]
		return x.bytes == y.bytes && x.stream == y.stream
	}
	most := min(mostDifferent, (len(a)+len(b))/4)
	reach := make([]int, 2*most+3) // by diagonal: how far into a
	var history [][]int
	for d := 0; d <= most; d++ {
		history = append(history, append([]int(nil), reach[most+1-d:most+2+d]...))
		for k := -d; k <= d; k += 2 {
			at := most + 1 + k
			i := reach[at-1] + 1
			if k == -d || k != d && reach[at-1] < reach[at+1] {
				i = reach[at+1]
			}
			for j := i - k; i < len(a) && j < len(b) && same(i, j); j++ {
				i++
			}
			reach[at] = i
			if i >= len(a) && i-k >= len(b) {
				return backtrack(history, len(a), len(b)), true
			}
		}
	}
	return nil, false
}

// backtrack walks the edit script from its end and notes what stayed.
func backtrack(history [][]int, i, j int) []int32 {
	before := make([]int32, j)
	for n := range before {
		before[n] = -1
	}
	for d := len(history) - 1; d >= 0; d-- {
		// History d has diagonals -d to d, as they were before step d.
		reach := func(k int) int { return history[d][k+d] }
		k := i - j
		fromI, fromK := 0, 0
		if d > 0 {
			if k == -d || k != d && reach(k-1) < reach(k+1) {
				fromI, fromK = reach(k+1), k+1
			} else {
				fromI, fromK = reach(k-1), k-1
			}
		}
		for i > fromI && j > fromI-fromK && i > 0 && j > 0 {
			i, j = i-1, j-1
			before[j] = int32(i)
		}
		i, j = fromI, fromI-fromK
	}
	return before
}

// modelAlike takes the last of a chain of alike iterations for the period. How
// long what outlives it will live is seen from its likes in the iterations before.
func (b *builder) modelAlike(chain []likeness) {
	r, last := b.run, chain[0]
	period := last.end - last.begin
	b.steady, b.cut, b.end, b.repeat = trace.Steady{Begin: last.begin, End: last.end, Period: period}, last.begin, last.end, 1
	back := map[int]int{} // calls of the prologue, and where they would be if the period went back in time
	type like struct{ call, iterations int }
	var likes []like // of the calls that outlive a period, and how far back
	for i, call := range last.calls {
		c := &r.calls[call]
		m := modeled{call: call, at: c.lower - last.begin, lifetime: c.upper - c.lower}
		if c.upper > last.end {
			m.lifetime, m.unplanned = last.end-c.lower, true
			at := int32(i)
			for n := 1; n < len(chain); n++ {
				if at = chain[n-1].before[at]; at < 0 {
					break
				}
				old := &r.calls[chain[n].calls[at]]
				likes = append(likes, like{int(chain[n].calls[at]), n})
				if old.upper > last.begin && old.upper <= last.end {
					m.lifetime, m.unplanned = n*period+old.upper-last.begin-m.at, false
					break
				}
				if old.upper <= last.begin {
					break
				}
			}
		}
		if m.unplanned = m.unplanned || m.lifetime > mostIterations*period; m.unplanned {
			likes = likes[:0]
		} else {
			b.repeat = max(b.repeat, (m.lifetime+period-1)/period)
		}
		for _, l := range likes {
			back[l.call] = m.at - l.iterations*period
		}
		likes = likes[:0]
		b.iteration = append(b.iteration, m)
	}
	b.nextOf = map[int]int{}
	for call, at := range back {
		b.nextOf[call] = at + b.repeat*period
	}
}
