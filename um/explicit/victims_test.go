package explicit

import (
	"math/rand"
	"testing"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
)

func TestFarther(t *testing.T) {
	const mib = 1 << 20
	type victim struct{ next, chunk int64 }
	for _, test := range []struct {
		name        string
		first, then victim
	}{
		{"the larger of what is as far away", victim{1000, 32 * mib}, victim{1000, 2 * mib}},
		{"the larger, though it is nearer", victim{700, 32 * mib}, victim{2000, 2 * mib}},
		{"the smaller, when it is much farther away", victim{9000, 2 * mib}, victim{700, 32 * mib}},
		{"the farther of one size", victim{701, 8 * mib}, victim{699, 8 * mib}},
		{"what is not used again", victim{correlate.Never, 2 * mib}, victim{9000, 32 * mib}},
		{"what nothing is known of", victim{correlate.Unknown, 2 * mib}, victim{9000, 32 * mib}},
	} {
		if a, b := farther(100, test.first.next, test.first.chunk), farther(100, test.then.next, test.then.chunk); a <= b {
			t.Errorf("%s does not leave first: %d, %d", test.name, a, b)
		}
	}
	if at := farther(100, 100, PageBytes); at != 100 {
		t.Errorf("what is used now is ordered at %d", at)
	}
}

// TestExhausted: once it is said that nothing can leave any more, nothing can.
func TestExhausted(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	said := 0
	for range 200_000 {
		now := rng.Int63n(1000)
		first := now + rng.Int63n(300)
		position := now - 10 + rng.Int63n(1500)
		if !exhausted(now, first, position) {
			continue
		}
		said++
		next, chunk := now+rng.Int63n(3000), PageBytes*(1+rng.Int63n(20))
		if farther(now, next, chunk) <= first && next > position {
			t.Fatalf("at %d, with the first ordered at %d: a chunk of %d bytes, used at %d, can leave for %d", now, first, chunk, next, position)
		}
	}
	if said < 10_000 {
		t.Fatalf("it was said %d times: the test tests little", said)
	}
	if exhausted(0, correlate.Never, 1<<40) || exhausted(0, correlate.Unknown, 1<<40) {
		t.Error("what is not used again cannot leave")
	}
}

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
			c := &w.r.byPtr[p].chunks[0]
			if c.habit.left && iteration >= 10 {
				left[c.bytes]++
			}
			c.habit = habit{}
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
	x := &tensor{lastUse: 100}
	for now := int64(101); now < 101+overdueOps; now++ {
		if next := r.credible(x, now, now+1); next != now+1 {
			t.Fatalf("after %d operations the next use is at %d", now-x.lastUse, next)
		}
	}
	const late = 110 + overdueOps
	if next := r.credible(x, late, late+1); next != correlate.Unknown {
		t.Errorf("after %d operations it is still believed", late-x.lastUse)
	}
	if next := r.credible(x, late, late+2*overdueOps); next != late+2*overdueOps {
		t.Errorf("what is foretold anew is not believed: %d", next)
	}
	x.lastUse = late + 2*overdueOps
	if next := r.credible(x, x.lastUse+5, x.lastUse+3); next != x.lastUse+5 {
		t.Errorf("what is overdue is to come at %d, %d after the last use", next, next-x.lastUse)
	}
	if next := r.credible(x, x.lastUse+5, correlate.Never); next != correlate.Never {
		t.Errorf("what is not used again is at %d", next)
	}
}
