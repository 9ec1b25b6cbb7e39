package again

import (
	"math/rand/v2"
	"testing"
)

// TestCut compares with every way to split small networks.
func TestCut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		nodes := 2 + r.IntN(7)
		var n network
		for range nodes {
			n.node()
		}
		type arc struct {
			from, to int
			capacity int64
		}
		var arcs []arc
		for range r.IntN(3 * nodes) {
			a := arc{r.IntN(nodes), r.IntN(nodes), int64(r.IntN(10))}
			if a.from == a.to {
				continue
			}
			arcs = append(arcs, a)
			n.add(int32(a.from), int32(a.to), a.capacity)
		}
		through := func(side func(int) bool) (sum int64) {
			for _, a := range arcs {
				if side(a.from) && !side(a.to) {
					sum += a.capacity
				}
			}
			return sum
		}
		least := int64(unbounded)
		for set := range 1 << nodes {
			if set&1 != 0 && set&2 == 0 { // the source is node 0, the sink node 1
				least = min(least, through(func(i int) bool { return set>>i&1 != 0 }))
			}
		}
		flow, side := n.cut(0, 1)
		if cut := through(func(i int) bool { return side[i] }); flow != least || cut != least || !side[0] || side[1] {
			t.Fatalf("%d nodes, %v: flow %d, cut %d, the least is %d", nodes, arcs, flow, cut, least)
		}
	}
}
