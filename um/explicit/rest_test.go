package explicit

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

// TestWhatIsKeptForSoonIsNotTakenForLater: a range that is made for a late allocation
// takes, to its last chunk, only what no coming allocation wants. Taking what is
// merely not wanted soon, two of them took each other's memory for ever.
func TestWhatIsKeptForSoonIsNotTakenForLater(t *testing.T) {
	const kept, small, late = 8 * PageBytes, PageBytes, 12 * PageBytes
	w := newWorld(t, 1, 64*PageBytes, 256*PageBytes, true)
	var dead []cuda.Ptr
	for i := range 4 + 28 {
		size := int64(small)
		if i < 4 {
			size = kept
		}
		p := w.malloc(size, 0)
		w.report(0, []cuda.Ptr{p}, true, uint64(100+i)) // nothing repeats: nothing is predicted
		w.settle()
		dead = append(dead, p)
	}
	for _, p := range dead {
		w.free(p)
	}
	if have, room := len(w.r.graves.bySize[kept]), w.r.RoomBytes(); have != 4 || room != 4*PageBytes {
		t.Fatalf("%d dead ranges and room for %d bytes", have, room)
	}
	w.r.plan = plan{
		valid: true, epoch: w.r.epoch, version: w.r.history.Version(),
		births: []int64{kept, kept, kept, kept, late}, soon: 3,
		wanted: map[int64]int{kept: 4, late: 1}, wantedSoon: map[int64]int{kept: 3},
	}
	for w.begin(In) {
		for len(w.moves) > 0 {
			w.end(0)
		}
		if n := len(w.r.graves.bySize[kept]); n != 4 {
			t.Fatalf("%d ranges of 4 are left", n)
		}
	}
	if n := len(w.r.graves.bySize[late]); n != 1 {
		t.Errorf("%d ranges were made", n)
	}
}

// TestAnIdleEngineComesToRest: what is mapped for coming allocations is not taken
// away again for others that come, which would go on for ever between operations.
func TestAnIdleEngineComesToRest(t *testing.T) {
	for seed := int64(0); seed < 60; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed, 64*PageBytes, 256*PageBytes, true)
			for range 3 {
				w.iteration(rand.New(rand.NewSource(seed)))
				w.settle()
				w.rest()
			}
		})
	}
}

// iteration allocates, uses and frees tensors of a few sizes, the same for the same rng.
func (w *world) iteration(rng *rand.Rand) {
	sizes := []int64{1, 2, 4, 5, 8, 9, 12, 16}
	var live []cuda.Ptr
	var pages int64
	drop := func(k int) {
		pages -= WholePages(w.live[live[k]].bytes) / PageBytes
		w.free(live[k])
		live = append(live[:k], live[k+1:]...)
	}
	for op := range 300 {
		size := sizes[rng.Intn(min(len(sizes), 1+op/30))] // what comes later is larger
		for pages+size > 56 {
			drop(rng.Intn(len(live)))
		}
		if rng.Intn(3) == 0 || len(live) == 0 {
			if p := w.malloc(size*PageBytes, 0); p != 0 {
				live = append(live, p)
				pages += size
			}
		}
		w.report(0, []cuda.Ptr{live[rng.Intn(len(live))]}, true, uint64(op))
		w.settle()
	}
	for len(live) > 0 {
		drop(len(live) - 1)
	}
}

// rest makes every move that the engine has in mind, and demands that they end.
func (w *world) rest() {
	w.t.Helper()
	for moves := 0; ; moves++ {
		begun := w.begin(In)
		begun = w.begin(Out) || begun
		for len(w.moves) > 0 {
			w.end(0)
		}
		if !begun {
			return
		}
		if moves > 2000 {
			w.t.Fatalf("the engine still moves after %d moves, with nothing queued: room %d, making %v", moves, w.r.RoomBytes(), w.r.making != nil)
		}
	}
}
