package evict

import (
	"math/rand"
	"sort"
	"testing"
)

func TestHeap(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	var h Heap[int]
	for round := range 20 {
		h.Reset(NextUse)
		var want []int64
		push := func(v Victim[int]) { h.Push(v) }
		for i := range 200 {
			next := rng.Int63n(50)
			want = append(want, next)
			v := Victim[int]{Of: int(next), Candidate: Candidate{NextUse: next, Bytes: 1}}
			switch {
			case i < 100:
				h.Add(v)
			case i == 100:
				h.Init()
				push(v)
			default:
				push(v)
			}
		}
		sort.Slice(want, func(i, j int) bool { return want[i] > want[j] })
		for i, w := range want {
			if n := h.Len(); n != len(want)-i {
				t.Fatalf("round %d: %d left, want %d", round, n, len(want)-i)
			}
			if first := h.First().NextUse; first != w {
				t.Fatalf("round %d: victim %d is used at %d, want %d", round, i, first, w)
			}
			if v := h.Pop(); v.NextUse != w || int64(v.Of) != w {
				t.Fatalf("round %d: victim %d is of %d, used at %d, want %d", round, i, v.Of, v.NextUse, w)
			}
		}
	}
}
