package explicit

import (
	"fmt"
	"testing"
)

// TestBorrows: allocations that die soon use dead ranges of larger sizes, contain what they should, also where they
// turn out to live on and leave the device, and give back what they borrowed.
func TestBorrows(t *testing.T) {
	const layers, iterations = 40, 8
	var left int64
	for seed := int64(0); seed < 12; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed, 96*PageBytes, 512*PageBytes, true)
			w.steady, w.verify = true, seed%4 == 3
			x := iteration{world: w}
			for range layers {
				x.sizes = append(x.sizes, PageBytes*int64(2+2*w.rng.Intn(4)))
				x.scratch = append(x.scratch, PageBytes*int64(2+w.rng.Intn(12)))
			}
			x.runAll(iterations, seed%2 == 1)
			w.settle()
			w.r.giveUpEarly()
			w.nothingLives()
			if n := w.r.stats.BorrowedRanges; n < layers {
				t.Errorf("only %d ranges have been borrowed", n)
			}
			if n := w.r.stats.Evictions; n < layers {
				t.Errorf("only %d chunks have left: the test tests little", n)
			}
			left += int64(w.borrowedLeft)
		})
	}
	if left == 0 {
		t.Error("nothing has left that lay in a borrowed range")
	}
}
