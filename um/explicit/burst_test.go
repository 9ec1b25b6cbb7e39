package explicit

import (
	"fmt"
	"testing"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// TestBursts: allocations that come many at a time and soon die share dead ranges of other sizes, contain what they should, and what they lay in
// is dead memory again.
func TestBursts(t *testing.T) {
	const layers, many, iterations = 24, 24, 8
	for seed := int64(0); seed < 6; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed, 160*PageBytes, 1024*PageBytes, true)
			w.steady, w.verify = true, seed%3 == 2
			w.r.config.Replay = um.ReplayOn
			x := iteration{world: w}
			for range layers {
				x.sizes = append(x.sizes, PageBytes*int64(10+2*w.rng.Intn(2)))
			}
			alone, unforeseen := 0, 0 // of those that share nothing: also when what they repeat did, it is known when they are used
			for n := range iterations {
				x.run()
				var burst []cuda.Ptr
				for range many {
					if p := w.malloc(3*PageBytes, 0); p != 0 {
						burst = append(burst, p)
					}
				}
				for _, p := range burst {
					if u := w.r.ByPtr[p]; u.parts == nil && n >= iterations/2 {
						alone++
						if w.r.History.NextUse(u.Instance) >= correlate.Unknown {
							unforeseen++
						}
					}
				}
				for k := 0; k < len(burst); k += 6 {
					w.report(0, burst[k:k+6], true, uint64(0x1000+k))
					w.settleWaiting()
				}
				for _, p := range burst {
					w.free(p)
				}
				w.settle()
				if err := w.r.Check(); err != nil {
					t.Fatal(err)
				}
			}
			if s := w.r.stats; s.Bursts < iterations || s.PackedAllocs < leastBurst*s.Bursts {
				t.Errorf("%d dead ranges were shared by %d allocations", s.Bursts, s.PackedAllocs)
			}
			if alone == 0 || unforeseen > alone/8 {
				t.Errorf("of %d allocations that shared nothing, of %d nothing is known", alone, unforeseen)
			}
			w.settle()
			w.r.giveUpEarly()
			w.nothingLives()
		})
	}
}
