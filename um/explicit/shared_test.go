package explicit

import (
	"fmt"
	"slices"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/short"
)

// TestShares: where each iteration has other sizes, what lives for long shares ranges of one size, leaves and comes back with
// them, and contains what it should, also where some of it dies early or is used on another stream.
func TestShares(t *testing.T) {
	const layers, iterations = 100, 12
	shared, left := 0, 0
	for seed := range int64(short.Of(6, 3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed, 96*PageBytes, 1024*PageBytes, true)
			w.steady, w.verify, w.drafting = true, seed%4 == 3, true
			x := iteration{world: w}
			base := make([]int64, layers)
			for i := range base {
				base[i] = PageBytes + 512*int64(w.rng.Intn(PageBytes/4096))
			}
			varied := false
			for n := range iterations {
				scale := []float64{0.6, 1.3, 2.1}[(n+w.rng.Intn(2))%3] // one page, two, three
				x.sizes = x.sizes[:0]
				for _, bytes := range base {
					x.sizes = append(x.sizes, int64(scale*float64(bytes)))
				}
				x.unsteady = seed%2 == 1 && n > 2
				x.run()
				w.drain()
				if err := w.r.Check(); err != nil {
					t.Fatal(err)
				}
				varied = varied || w.r.History.Varies()
				for _, list := range w.r.open {
					for _, o := range list {
						if o.borrowed || o.size != w.r.sharedSize() { // such a range serves any iteration
							t.Fatalf("a range of %d bytes is shared, borrowed: %t", o.size, o.borrowed)
						}
					}
				}
			}
			w.settle()
			w.r.giveUpEarly()
			w.nothingLives()
			if !varied {
				t.Fatal("no sizes have changed")
			}
			shared += int(w.r.stats.PackedAllocs)
			left += w.sharedLeft
			for stream, list := range w.r.open {
				if slices.ContainsFunc(list, func(o open) bool { return !o.Freed && o.alive == 0 }) {
					t.Errorf("stream %d has a pack open that nothing is in", stream)
				}
			}
		})
	}
	if shared < short.Of(4, 2)*layers {
		t.Errorf("only %d allocations have shared a range", shared)
	}
	if left < short.Of(2, 1)*layers/2 {
		t.Errorf("only %d packs have left, the test tests little", left)
	}
}

// TestGrown: what comes into a pack later leaves with it, though the checksum of the rest is known and the host has a copy.
func TestGrown(t *testing.T) {
	w := newWorld(t, 0, 64*PageBytes, 64*PageBytes, true)
	w.steady = true
	host, _ := w.TakeHost(PageBytes)
	c := chunk{bytes: PageBytes, where: onDevice, host: host, summed: true}
	x := &tensor{size: PageBytes, bytes: 512, chunks: []chunk{c, {offset: PageBytes, bytes: PageBytes, where: arriving, summed: true, host: []cuda.Range{{}}}}}
	w.r.stats.HostBytes = PageBytes
	w.r.grow(x, 1024)
	switch a, b := x.chunks[0], x.chunks[1]; {
	case a.summed || a.host != nil || len(w.hostUsed) != 0:
		t.Error("a copy is kept that is not of all")
	case b.summed || b.host == nil:
		t.Error("host memory is given back that is being read")
	case x.bytes != 1024 || x.used(&x.chunks[0]) != 1024:
		t.Error(x.bytes, x.used(&x.chunks[0]))
	}
}
