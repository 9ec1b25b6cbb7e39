package explicit

import (
	"fmt"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

// iteration is a forward and a backward pass of so many layers, each of which leaves an
// activation for its backward pass. Now and then, where it is unsteady, an allocation has another
// size, dies early, or is used on another stream.
type iteration struct {
	*world
	sizes    []int64 // of the layers' activations
	unsteady bool
}

// run runs one, with the engine's threads doing something between any two operations.
func (x iteration) run() {
	w := x.world
	layer := 0
	use := func(signature uint64, writes bool, ptrs ...cuda.Ptr) {
		w.report(0, ptrs, writes, uint64(layer)<<8|signature)
		for n := w.rng.Intn(12); n >= 0; n-- {
			w.step()
		}
		w.settleWaiting()
	}
	must := func(bytes int64) cuda.Ptr {
		p := w.malloc(bytes, 0)
		if p == 0 {
			w.t.Fatalf("no memory for %d bytes", bytes)
		}
		return p
	}
	odd := func() bool { return x.unsteady && w.rng.Intn(20) == 0 }
	acts := make([]cuda.Ptr, len(x.sizes))
	for i, bytes := range x.sizes {
		layer = i
		if odd() {
			bytes += 4096
		}
		acts[i] = must(bytes)
		use(1, true, acts[i])
		if i > 0 && acts[i-1] != 0 {
			use(2, false, acts[i-1], acts[i])
		}
		scratch := must(x.sizes[i])
		use(3, true, scratch)
		if odd() {
			w.drainStreams() // the job orders its streams: here by waiting
			w.drain()
			if err := w.r.RecordStream(acts[i], 1); err != nil {
				w.t.Fatal(err)
			}
			w.report(1, []cuda.Ptr{acts[i]}, false, 9)
			w.settleWaiting()
			w.drainStreams()
		}
		w.free(scratch)
		use(4, false, acts[i])
		if odd() {
			w.free(acts[i])
			acts[i] = 0
		}
	}
	for i := len(acts) - 1; i >= 0; i-- {
		if layer = i; acts[i] == 0 {
			continue
		}
		use(5, true, acts[i])
		grad := must(x.sizes[i])
		use(6, true, grad, acts[i])
		w.free(grad)
		use(7, false, acts[i])
		w.free(acts[i])
	}
}

// TestPacks: allocations that come again as they did before share ranges, leave and come back as
// one, and contain what they should, also where the job turns out not to be what it was.
func TestPacks(t *testing.T) {
	const layers, iterations = 80, 8
	for seed := int64(0); seed < 12; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed, 48*PageBytes, 512*PageBytes, true)
			w.steady, w.verify = true, seed%4 == 3
			x := iteration{world: w}
			for range layers {
				x.sizes = append(x.sizes, PageBytes/2+512*int64(w.rng.Intn(PageBytes/512)))
			}
			for i := range iterations {
				x.unsteady = seed%2 == 1 && i > 2
				x.run()
				w.drain()
				if err := w.r.Check(); err != nil {
					t.Fatal(err)
				}
			}
			w.settle()
			if len(w.live) != 0 || w.r.liveBytes != 0 || w.r.liveSize != 0 || len(w.r.byPtr) != 0 {
				t.Errorf("%d allocations live, by the ledger %d bytes in %d at %d addresses", len(w.live), w.r.liveBytes, w.r.liveSize, len(w.r.byPtr))
			}
			if n := w.r.stats.Packs; n < iterations*layers/10 || w.parts < 2*int(n) {
				t.Errorf("only %d allocations in %d packs", w.parts, n)
			}
			if s := w.r.stats; s.Evictions < layers {
				t.Errorf("only %d chunks have left: the test tests little", s.Evictions)
			}
			if w.retaken < layers*iterations/4 {
				t.Errorf("only %d dead ranges were taken again", w.retaken)
			}
		})
	}
}
