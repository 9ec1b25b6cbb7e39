package heap

import (
	"container/heap"
	"math/rand"
	"slices"
	"testing"
)

// standard is the same heap as container/heap keeps it.
type standard [][2]int

func (h standard) Len() int           { return len(h) }
func (h standard) Less(i, j int) bool { return h[i][0] < h[j][0] }
func (h standard) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *standard) Push(x any)        { *h = append(*h, x.([2]int)) }
func (h *standard) Pop() any {
	n := len(*h) - 1
	x := (*h)[n]
	*h = (*h)[:n]
	return x
}

// TestLikeTheStandardOne: also of elements that are equal the same one comes first, so that what was measured with container/heap stays so.
func TestLikeTheStandardOne(t *testing.T) {
	less := func(a, b [2]int) bool { return a[0] < b[0] }
	rng := rand.New(rand.NewSource(1))
	for round := range 200 {
		var ours [][2]int
		for i := range rng.Intn(40) {
			ours = append(ours, [2]int{rng.Intn(10), i})
		}
		theirs := standard(slices.Clone(ours))
		Init(ours, less)
		heap.Init(&theirs)
		for i := range 200 {
			if rng.Intn(2) == 0 {
				x := [2]int{rng.Intn(10), 100 + i}
				ours = Push(ours, x, less)
				heap.Push(&theirs, x)
			} else if len(ours) > 0 {
				var got [2]int
				got, ours = Pop(ours, less)
				if want := heap.Pop(&theirs).([2]int); got != want {
					t.Fatalf("round %d: %v comes first, want %v", round, got, want)
				}
			}
			if !slices.Equal(ours, theirs) {
				t.Fatalf("round %d: %v, want %v", round, ours, theirs)
			}
		}
	}
}
