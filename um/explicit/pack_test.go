package explicit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
	"github.com/penstock-gpu/penstock/um"
)

// iteration is a forward and a backward pass of so many layers, each of which leaves an
// activation for its backward pass. Now and then, where it is unsteady, an allocation has another
// size, dies early, or is used on another stream.
type iteration struct {
	*world
	sizes    []int64 // of the layers' activations
	scratch  []int64 // what each of them works in; nil: as large as the activation
	unsteady bool
	pairs    int // packs of two large ones that lived after a forward pass
}

// large is the size of an activation of which pages fit two better than one.
const large = 5 * PageBytes / 2

// run runs one, with the engine's threads doing something between any two operations.
func (x *iteration) run() {
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
	var late []cuda.Ptr // that were to die soon
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
		scratchBytes := x.sizes[i]
		if x.scratch != nil {
			scratchBytes = x.scratch[i]
		}
		scratch := must(scratchBytes)
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
		if x.scratch != nil && odd() {
			late = append(late, scratch)
		} else {
			w.free(scratch)
		}
		use(4, false, acts[i])
		if odd() {
			w.free(acts[i])
			acts[i] = 0
		}
	}
	for _, t := range w.r.Slots.All() {
		if t == nil || t.Freed || len(t.parts) == 0 || t.parts[0].bytes < large || t.borrowed { // those are bursts
			continue
		}
		if x.pairs++; !x.unsteady && (t.size != 2*large || len(t.parts) != 2) {
			w.t.Errorf("%d large parts share %d bytes", len(t.parts), t.size)
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
	for _, p := range late {
		use(8, false, p)
		w.free(p)
	}
}

// runAll runs so many, unsteady ones after the third if it changes, and checks the ledger after each.
func (x *iteration) runAll(n int, changes bool) {
	for i := range n {
		x.unsteady = changes && i > 2
		x.run()
		x.drain()
		if err := errors.Join(x.r.Check(), segments.Check(x.r.Segments(), x.r.LiveBytes())); err != nil {
			x.t.Fatal(err)
		}
	}
}

// nothingLives checks that all has been freed, by the job's account and the ledger's.
func (w *world) nothingLives() {
	if len(w.live) != 0 || w.r.LiveBytes() != 0 || w.r.liveSize != 0 || len(w.r.ByPtr) != 0 {
		w.t.Errorf("%d allocations live, by the ledger %d bytes in %d at %d addresses", len(w.live), w.r.LiveBytes(), w.r.liveSize, len(w.r.ByPtr))
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
			for i := range layers {
				bytes := PageBytes/2 + 512*int64(w.rng.Intn(PageBytes/512))
				if seed%3 == 2 && i%4 == 1 {
					bytes = large
				}
				x.sizes = append(x.sizes, bytes)
			}
			x.runAll(iterations, seed%2 == 1)
			w.settle()
			switch early := len(w.r.early); {
			case early > 0: // they give way to what else there is no room for
				p, err := w.r.Malloc(w.r.BeyondLiveBytes()+PageBytes, 0)
				if err != nil {
					t.Fatal(err)
				}
				if err := w.r.Free(p); err != nil {
					t.Fatal(err)
				}
			case !x.unsteady:
				t.Error("no packs have been made for an iteration that does not come")
			}
			if len(w.r.reserved) != 0 || w.r.looseExcess != 0 {
				t.Errorf("%d parts reserved, %d bytes of loose packs too many, and nothing lives", len(w.r.reserved), w.r.looseExcess)
			}
			w.nothingLives()
			if n := w.r.stats.Packs; n < iterations*layers/10 || w.parts < 2*int(n) {
				t.Errorf("only %d allocations in %d packs", w.parts, n)
			}
			if w.given < w.parts/3 {
				t.Errorf("only %d of %d parts were given out without asking", w.given, w.parts)
			}
			if seed%3 == 2 && x.pairs < iterations {
				t.Errorf("only %d times have large allocations shared a range", x.pairs)
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

// packsAhead is a world at rest in which packs have been made of what is to come, and a launch that waits beside them.
func packsAhead(t *testing.T, seed, pages int64) *world {
	w := newWorld(t, seed, pages*PageBytes, 512*PageBytes, true)
	w.steady = true
	x := iteration{world: w}
	for range 80 {
		x.sizes = append(x.sizes, PageBytes/2+512*int64(w.rng.Intn(PageBytes/512)))
	}
	x.runAll(8, false)
	p := w.malloc(x.sizes[0], 0) // as an iteration begins
	for range 200 {
		w.step()
	}
	w.drainStreams()
	w.report(0, []cuda.Ptr{p}, true, 1) // the launch that waits
	w.drain()
	return w
}

// TestVacatedPacks: the memory of packs that nothing has used yet is there at once for a launch that waits.
func TestVacatedPacks(t *testing.T) {
	vacated := 0
	for pages := int64(44); pages < 80; pages += 4 {
		w := packsAhead(t, 1, pages)
		before := map[*tensor]bool{}
		for _, g := range w.r.dead.order {
			before[g] = true
		}
		w.r.vacateEarly()
		for _, g := range w.r.dead.order {
			if before[g] {
				continue
			}
			if vacated++; !w.r.idle(g) {
				t.Errorf("the memory of a pack that nothing has used waits for %v", g.freedAt)
			}
		}
	}
	if vacated == 0 {
		t.Error("no pack was vacated: the test shows nothing")
	}
}

// TestVacatedMemoryIsSeen: what is vacated for a launch that waits, because there was no room, is taken for it at once. Nothing else may
// happen that has the worker look again.
func TestVacatedMemoryIsSeen(t *testing.T) {
	vacated := 0
	for seed := range int64(18) {
		w := packsAhead(t, seed, 44+4*(seed%9))
		inPacks := func() (bytes int64) {
			for _, e := range w.r.early {
				bytes += e.deviceBytes()
			}
			return bytes
		}
		free := w.r.room() + w.r.physical.spares
		for _, g := range w.r.dead.order {
			if w.r.idle(g) {
				free += g.deviceBytes()
			}
		}
		p := w.malloc(WholePages(free)+PageBytes, 0)
		if p == 0 {
			continue
		}
		w.report(0, []cuda.Ptr{p}, true, 2)
		w.drain()
		for _, x := range w.r.Slots.All() {
			if x != nil {
				x.kept = true // nothing may leave
			}
		}
		w.r.plan.valid = false
		before := inPacks()
		for more := true; more; {
			for len(w.moves) > 0 {
				w.end(0)
			}
			more = w.begin(um.In)
		}
		if inPacks() < before {
			vacated++
		}
		w.r.Happened()
		if _, moves := w.r.Next(um.In); moves {
			t.Fatalf("seed %d: nothing was done until something happened, though packs had been vacated", seed)
		}
	}
	if vacated < 4 {
		t.Errorf("packs were vacated %d times: the test shows little", vacated)
	}
}

// TestLoose: allocations that repeat none, of sizes that pages fit badly, share ranges, and
// other ones do not; where they die early and leave holes, no more are made.
func TestLoose(t *testing.T) {
	const odd, even = 2<<20 + 256<<10, 4 << 20
	newRuntime := func() *Runtime {
		return New(Config{
			BudgetBytes: 512 << 20, HostBudgetBytes: 512 << 20, Addresses: cuda.Range{Base: 1 << 40, Bytes: 1 << 34}, ChunkBytes: 32 << 20, Packs: true,
		}, newBystander())
	}
	malloc := func(r *Runtime, bytes int64) cuda.Ptr {
		t.Helper()
		p, err := r.Malloc(bytes, 0)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	check := func(r *Runtime) {
		t.Helper()
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
	}

	r := newRuntime()
	first := malloc(r, odd)
	if whole := malloc(r, even); whole > first && whole < first+looseBytes {
		t.Errorf("an allocation of whole pages is in a pack")
	}
	var parts []cuda.Ptr
	for range 13 {
		parts = append(parts, malloc(r, odd))
	}
	if second := parts[0]; second != first+odd {
		t.Errorf("the second lies %d bytes after the first, want %d", second-first, odd)
	}
	if want := int64(2*looseBytes + even); r.liveSize != want {
		t.Errorf("14 allocations take %d bytes, want %d", r.liveSize, want)
	}
	check(r)
	if r.looseExcess >= 0 {
		t.Errorf("%d bytes too many, where %d are saved", r.looseExcess, 14*even-2*looseBytes)
	}
	for _, p := range append(parts, first) {
		if err := r.Free(p); err != nil {
			t.Fatal(err)
		}
	}
	if check(r); r.liveSize != even || r.looseExcess != 0 {
		t.Errorf("%d bytes live, want %d; %d too many", r.liveSize, even, r.looseExcess)
	}

	r = newRuntime()
	malloc(r, even)
	for seq := uint64(1); r.History.Period() == 0; seq++ { // layers that repeat may be taken for an iteration
		if r.Op(um.Op{Seq: seq, Slots: []uint32{1}, Work: uint32(seq % 8)}); seq > 1<<12 {
			t.Fatal("no iteration is seen")
		}
	}
	if first, second := malloc(r, odd), malloc(r, odd); second != first+odd {
		t.Errorf("what repeats nothing lies %d bytes after the other, want %d", int64(second-first), odd)
	}
	check(r)

	r = newRuntime()
	for i := range 100 { // one of seven stays, so that no pack dies
		if p := malloc(r, odd); i%7 > 0 {
			if err := r.Free(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	check(r)
	if most := int64(15*even + 2*looseBytes); r.liveSize > most {
		t.Errorf("what 15 allocations live in takes %d bytes, more than %d", r.liveSize, most)
	}
}
