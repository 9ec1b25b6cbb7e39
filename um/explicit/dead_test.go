package explicit

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/um"
)

// deadWorld has dead ranges of few sizes, some of several chunks, some mapped in part, some in use by what was queued.
func deadWorld(t *testing.T, rng *rand.Rand) *world {
	w := newWorld(t, 1, 512*PageBytes, 512*PageBytes, true)
	busy := um.Mark{Stream: 0, Seq: 1 << 40}
	for range rng.IntN(60) {
		g := &tensor{}
		for range 1 + rng.IntN(8)/6 {
			c := chunk{offset: g.size, bytes: int64(1+rng.IntN(5)) * PageBytes, where: onDevice}
			if rng.IntN(6) == 0 {
				c.where = blank
			}
			g.chunks = append(g.chunks, c)
			g.size += c.bytes
		}
		if rng.IntN(4) == 0 {
			g.freedAt = []um.Mark{busy}
		}
		w.r.dead.add(g)
	}
	for range rng.IntN(20) {
		l := w.r.dead.order
		if len(l) > 0 {
			w.r.dead.remove(l[rng.IntN(len(l))])
		}
	}
	w.r.plan.wanted = map[int64][]int64{}
	for range rng.IntN(12) {
		size := int64(1+rng.IntN(8)) * PageBytes
		w.r.plan.wanted[size] = append(w.r.plan.wanted[size], rng.Int64N(3*lateOps))
		slices.Sort(w.r.plan.wanted[size])
	}
	return w
}

// TestDeadRangesAreFound: what is found by size is what going through all dead ranges in the order of their deaths finds.
func TestDeadRangesAreFound(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := deadWorld(t, rng)
		wantedAt := func(g *tensor, gone int) int64 {
			wanted, whole := w.r.plan.wanted[g.size], 0
			for _, x := range w.r.dead.order {
				if x.size == g.size && x.whole() {
					whole++
				}
			}
			if i := max(whole-gone-1, 0); i < len(wanted) && g.whole() {
				return wanted[i]
			}
			return correlate.Never
		}
		for _, which := range []reclaiming{anyIdle, surplusOnly} {
			var bytes int64
			have := map[int64]int{}
			for _, g := range w.r.dead.order {
				switch {
				case !w.r.idle(g):
				case which == anyIdle || !g.whole():
					bytes += g.deviceBytes()
				case wantedAt(g, have[g.size]) == correlate.Never:
					have[g.size]++
					bytes += g.deviceBytes()
				}
			}
			if !w.r.reclaimable(bytes, which) || w.r.reclaimable(bytes+1, which) {
				t.Fatalf("seed %d: not %d bytes may go", seed, bytes)
			}
			w.r.beginSearch()
			for {
				size := int64(1+rng.IntN(6)) * PageBytes
				g := w.r.nextDead(size, which)
				if want := nextInOrder(w, size, which, wantedAt); g != want {
					t.Fatalf("seed %d: %v goes for %d bytes, not %v", seed, g, size, want)
				}
				if g == nil {
					break
				}
				g.passed = w.r.searches
				w.r.picked[g.size] += rng.IntN(2)
			}
		}
	}
}

// nextInOrder is nextDead, by going through all.
func nextInOrder(w *world, bytes int64, which reclaiming, wantedAt func(g *tensor, gone int) int64) *tensor {
	var largest, last *tensor
	var lastAt int64
	for _, g := range w.r.dead.order {
		at := wantedAt(g, w.r.picked[g.size])
		switch {
		case g.passed == w.r.searches || !w.r.idle(g) || which == surplusOnly && at != correlate.Never:
		case at > w.r.History.Now()+lateOps && g.chunkOf(bytes) >= 0:
			return g
		case at > w.r.History.Now()+lateOps:
			if largest == nil || g.size > largest.size {
				largest = g
			}
		case last == nil || at > lastAt:
			last, lastAt = g, at
		}
	}
	if largest != nil {
		return largest
	}
	return last
}

// TestDeadRangesKeepTheirLedger: the lists and the bytes are those of the ranges that are there.
func TestDeadRangesKeepTheirLedger(t *testing.T) {
	w := deadWorld(t, rand.New(rand.NewPCG(7, 7)))
	d := &w.r.dead
	for len(d.order) > 0 {
		d.remove(d.order[len(d.order)/2])
		var bytes int64
		whole := map[int64]int{}
		for _, g := range d.order {
			bytes += g.deviceBytes()
			if g.whole() {
				whole[g.size]++
			}
		}
		partial := len(d.order)
		for size, n := range whole {
			if partial -= n; len(d.bySize[size]) != n {
				t.Fatalf("%d ranges of %d bytes, not %d", len(d.bySize[size]), size, n)
			}
		}
		if bytes != d.bytes || partial != len(d.partial) || len(d.bySize) != len(whole) {
			t.Fatalf("%d bytes, %d in part and %d sizes, not %d, %d and %d", d.bytes, len(d.partial), len(d.bySize), bytes, partial, len(whole))
		}
	}
	if len(d.several) != 0 {
		t.Errorf("%v ranges of several chunks are left of none", d.several)
	}
}
