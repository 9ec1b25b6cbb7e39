package plan

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// An ordering says in which order buffers are placed. Grouping by size first and
// by time within a size class is what works best on training jobs: buffers of one
// class then fill layers of their own height one after the other (the HomoSize
// layers of STAlloc, EuroSys '26), and smaller classes fill what is left over.
type ordering struct {
	compare func(a, b *buffer) int
	fit     fit
}

// sizeClass is the size's power of two, width of them to a class.
func sizeClass(b *buffer, width int) int { return (bits.Len64(uint64(b.bytes)) - 1) / width }

func lifeClass(b *buffer, width int) int { return (bits.Len32(uint32(b.duration())) - 1) / width }

func byStart(a, b *buffer) int { return cmp.Compare(a.lower, b.lower) }
func byLife(a, b *buffer) int  { return cmp.Compare(b.duration(), a.duration()) }
func bySize(a, b *buffer) int  { return cmp.Compare(b.bytes, a.bytes) }
func byEnd(a, b *buffer) int   { return cmp.Compare(b.upper, a.upper) }

// weighted is a blend of size and lifetime: 1 is by size, 0 by lifetime, 0.5 by area.
func weighted(size float64) func(a, b *buffer) int {
	score := func(b *buffer) float64 {
		return size*math.Log(float64(b.bytes)) + (1-size)*math.Log(float64(b.duration()))
	}
	return func(a, b *buffer) int { return cmp.Compare(score(b), score(a)) }
}

// orderings are all that are tried, the most promising first.
func orderings() []ordering {
	var all []ordering
	add := func(f fit, compare func(a, b *buffer) int) {
		all = append(all, ordering{compare, f})
	}
	for _, width := range []int{2, 1, 4, 3, 6} {
		for _, f := range []fit{firstFit, bestFit} {
			for _, then := range []func(a, b *buffer) int{byStart, byLife, byEnd} {
				add(f, func(a, b *buffer) int {
					return cmp.Or(cmp.Compare(sizeClass(b, width), sizeClass(a, width)), then(a, b))
				})
			}
		}
	}
	for _, width := range []int{1, 2, 4} {
		for _, then := range []func(a, b *buffer) int{byStart, bySize} {
			class := func(a, b *buffer) int {
				return cmp.Or(cmp.Compare(lifeClass(b, width), lifeClass(a, width)), then(a, b))
			}
			add(firstFit, class)
			add(bestFit, class)
		}
	}
	for _, size := range []float64{1, 0.75, 0.5, 0.25, 0} {
		add(firstFit, weighted(size))
		add(bestFit, weighted(size))
	}
	add(bestFit, byStart)
	return all
}

// order sorts buffers by an ordering, pinned ones first. Ties are broken the same
// way on every machine, so that plans repeat.
func (p *problem) order(o ordering) []int32 {
	order := make([]int32, len(p.buffers))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(i, j int32) int {
		a, b := &p.buffers[i], &p.buffers[j]
		if a.pinned != b.pinned {
			if a.pinned {
				return -1
			}
			return 1
		}
		return cmp.Or(o.compare(a, b), bySize(a, b), byLife(a, b), byStart(a, b), cmp.Compare(i, j))
	})
	return order
}
