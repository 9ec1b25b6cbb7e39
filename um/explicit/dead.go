package explicit

import (
	"cmp"
	"slices"
)

// deadRanges keeps dead tensors, which are addresses with memory behind them. Those that are wholly mapped are kept by size, too: there are
// thousands of ranges and few sizes, and ranges of a size differ in little but their age.
type deadRanges struct {
	order   []*tensor // in the order of their deaths
	bySize  map[int64][]*tensor
	several map[int64]int // of these, how many have several chunks
	partial []*tensor     // the others
	bytes   int64         // of device memory behind all
	deaths  uint64
}

func newDeadRanges() deadRanges {
	return deadRanges{bySize: map[int64][]*tensor{}, several: map[int64]int{}}
}

func (g *deadRanges) add(t *tensor) {
	g.deaths++
	t.listed, t.death = true, g.deaths
	g.order = append(g.order, t)
	g.bytes += t.deviceBytes()
	if !t.whole() {
		g.partial = append(g.partial, t)
		return
	}
	g.bySize[t.size] = append(g.bySize[t.size], t)
	if len(t.chunks) > 1 {
		g.several[t.size]++
	}
}

func (g *deadRanges) remove(t *tensor) {
	t.listed = false
	g.bytes -= t.deviceBytes()
	g.order = without(g.order, t)
	if !t.whole() {
		g.partial = without(g.partial, t)
		return
	}
	if l := without(g.bySize[t.size], t); len(l) > 0 {
		g.bySize[t.size] = l
	} else {
		delete(g.bySize, t.size) // where shapes change most sizes do not come again
	}
	if len(t.chunks) > 1 {
		if g.several[t.size]--; g.several[t.size] == 0 {
			delete(g.several, t.size)
		}
	}
}

// without takes a tensor off a list in the order of deaths.
func without(l []*tensor, t *tensor) []*tensor {
	i, _ := slices.BinarySearchFunc(l, t.death, func(x *tensor, death uint64) int { return cmp.Compare(x.death, death) })
	return slices.Delete(l, i, i+1)
}
