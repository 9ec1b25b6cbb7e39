package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// TestSmallChunksStay: where a job goes round, what has just been used is used last
// again, and would leave first; small chunks among it stay, and the larger ones go.
func TestSmallChunksStay(t *testing.T) {
	const small, large = 8, 6
	w := newWorld(t, 1, (small+(large-1)*4)*PageBytes, 256*PageBytes, true)
	w.steady = true
	var ptrs []cuda.Ptr
	for i := range small + large {
		size := int64(4 * PageBytes)
		if i >= large {
			size = PageBytes
		}
		ptrs = append(ptrs, w.malloc(size, 0))
	}
	left := map[int64]int{}
	for iteration := range 20 {
		for i, p := range ptrs {
			w.report(0, []cuda.Ptr{p}, true, uint64(i))
			w.settle()
		}
		for _, p := range ptrs {
			c := &w.r.ByPtr[p].chunks[0]
			if c.learned.left && iteration >= 10 {
				left[c.bytes]++
			}
			c.learned = learned{}
		}
	}
	if left[PageBytes] > 0 || left[4*PageBytes] < 10 {
		t.Errorf("%d small and %d large chunks have left in 10 rounds", left[PageBytes], left[4*PageBytes])
	}
}

// TestCredible: a use that is always foretold for the next operation, and never comes, is not believed for ever; one
// that comes late is, and so is one that is foretold anew.
func TestCredible(t *testing.T) {
	r := New(Config{BudgetBytes: 64 << 20}, nil)
	x := &tensor{Tensor: um.Tensor{LastUse: 100}}
	for now := int64(101); now < 101+overdueOps; now++ {
		if next := r.credible(x, now, now+1); next != now+1 {
			t.Fatalf("after %d operations the next use is at %d", now-x.LastUse, next)
		}
	}
	const late = 110 + overdueOps
	if next := r.credible(x, late, late+1); next != correlate.Unknown {
		t.Errorf("after %d operations it is still believed", late-x.LastUse)
	}
	if next := r.credible(x, late, late+2*overdueOps); next != late+2*overdueOps {
		t.Errorf("what is foretold anew is not believed: %d", next)
	}
	x.LastUse = late + 2*overdueOps
	if next := r.credible(x, x.LastUse+5, x.LastUse+3); next != x.LastUse+5 {
		t.Errorf("what is overdue is to come at %d, %d after the last use", next, next-x.LastUse)
	}
	if next := r.credible(x, x.LastUse+5, correlate.Never); next != correlate.Never {
		t.Errorf("what is not used again is at %d", next)
	}
}
