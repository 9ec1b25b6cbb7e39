package explicit

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// TestWhatIsKeptForSoonIsNotTakenForLater: a range that is made for a late allocation
// takes, to its last chunk, only what no coming allocation wants. Taking what is
// merely not wanted soon, two of them took each other's memory for ever.
func TestWhatIsKeptForSoonIsNotTakenForLater(t *testing.T) {
	const kept, small, late, past = 8 * PageBytes, PageBytes, 12 * PageBytes, 3 * PageBytes
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
	if have, room := len(w.r.dead.bySize[kept]), w.r.RoomBytes(); have != 4 || room != 4*PageBytes {
		t.Fatalf("%d dead ranges and room for %d bytes", have, room)
	}
	now := w.r.History.Now()
	next := now + 1
	w.r.plan = plan{
		valid: true, epoch: w.r.Epoch(), version: w.r.History.Version(),
		births: []birth{{now, past}, {next, kept}, {next, kept}, {next, kept}, {next, kept}, {next, late}}, soon: 4,
		wanted: map[int64][]int64{kept: {1, 2, 3, 4}, late: {5}},
	}
	for w.begin(um.In) {
		for len(w.moves) > 0 {
			w.end(0)
		}
		if n := len(w.r.dead.bySize[kept]); n != 4 {
			t.Fatalf("%d ranges of 4 are left", n)
		}
	}
	if n := len(w.r.dead.bySize[late]); n != 1 {
		t.Errorf("%d ranges were made", n)
	}
	if n := len(w.r.dead.bySize[past]); n != 0 {
		t.Errorf("%d ranges were made for an allocation that has come", n)
	}
}

// TestReadyFarAheadWhileNothingIsFetched: memory for allocations that are far ahead is mapped when nothing is left to
// be fetched, and not when something waits for its turn, which needs the room.
func TestReadyFarAheadWhileNothingIsFetched(t *testing.T) {
	const size = 4 * PageBytes
	w := newWorld(t, 1, 64*PageBytes, 256*PageBytes, true)
	w.report(0, []cuda.Ptr{w.malloc(PageBytes, 0)}, true, 1)
	w.settle()
	far := birth{w.r.History.Now() + birthOps + 1, size}
	ready := func(fetch []*tensor, fetching, near int) int {
		w.r.plan = plan{
			valid: true, epoch: w.r.Epoch(), version: w.r.History.Version(),
			births: []birth{far}, near: near, fetch: fetch, wanted: map[int64][]int64{},
		}
		w.r.nothing, w.r.fetching = [2]uint64{}, fetching
		for w.begin(um.In) {
			for len(w.moves) > 0 {
				w.end(0)
			}
		}
		w.r.fetching = 0
		return len(w.r.dead.bySize[size])
	}
	waits := []*tensor{{absent: PageBytes}}
	if n := ready(waits, w.r.config.Depth, 0); n != 0 {
		t.Errorf("%d ranges were made while fetches are waiting", n)
	}
	if n := ready(nil, 0, 0); n != 1 {
		t.Errorf("%d ranges were made while nothing is fetched", n)
	}
	far.size *= 2
	if ready(waits, w.r.config.Depth, 1); len(w.r.dead.bySize[far.size]) != 1 {
		t.Error("what comes soon is not made ready while fetches are waiting")
	}
}

// TestNoMoreMovesThanTheBest: weights are used with their states, one after the other, and then with
// a large tensor for which the states have to leave; before that, memory lies idle. To fetch the
// states early then by sending the last weights away brings these back as late.
func TestNoMoreMovesThanTheBest(t *testing.T) {
	const n, each, peak = 16, 4 * PageBytes, 32 * PageBytes
	const needed = 2*n*each + peak
	const budget = needed - 48*PageBytes
	w := newWorld(t, 1, budget, 4*needed, true)
	w.steady = true
	var weights, states []cuda.Ptr
	for range n {
		weights, states = append(weights, w.malloc(each, 0)), append(states, w.malloc(each, 0))
	}
	use := func(signature int, ptrs ...cuda.Ptr) {
		w.report(0, ptrs, true, uint64(signature))
		w.settle()
	}
	for iteration := range 12 {
		before := w.r.Stats()
		for i := range 400 {
			use(1000+i, weights[0])
		}
		for i := range n {
			for k := range 60 {
				use(2000+60*i+k, weights[i], states[i])
			}
		}
		large := w.malloc(peak, 0)
		for round := range 20 {
			for i := range n {
				use(4000+round*n+i, weights[i], large)
			}
		}
		w.free(large)
		after := w.r.Stats()
		if in, out := after.FetchedBytes-before.FetchedBytes, after.EvictedBytes-before.EvictedBytes; iteration >= 6 && max(in, out) > (needed-budget)*5/4 {
			t.Errorf("iteration %d: %d pages in and %d out, needed are %d", iteration, in/PageBytes, out/PageBytes, (needed-budget)/PageBytes)
		}
	}
}

// TestWhatDiesSoonStays: a tensor that is not used again makes no room beyond its death; what
// is used last after that leaves instead, and has to leave in any case.
func TestWhatDiesSoonStays(t *testing.T) {
	const n, each = 12, 4 * PageBytes
	const budget = (n + 6) * each
	w := newWorld(t, 1, budget, 8*n*each, true)
	w.steady = true
	var weights []cuda.Ptr
	for range n {
		weights = append(weights, w.malloc(each, 0))
	}
	use := func(signature int, ptrs ...cuda.Ptr) {
		w.report(0, ptrs, true, uint64(signature))
		w.settle()
	}
	for iteration := range 12 {
		before := w.r.Stats()
		var gradients []cuda.Ptr
		for i := range n { // each of them once, and freed together after the last
			gradients = append(gradients, w.malloc(each, 0))
			for k := range 100 {
				use(1000+100*i+k, weights[i], gradients[i])
			}
		}
		for _, g := range gradients {
			w.free(g)
		}
		after := w.r.Stats()
		in, out := after.FetchedBytes-before.FetchedBytes, after.EvictedBytes-before.EvictedBytes
		if iteration >= 6 && out > in+each {
			t.Errorf("iteration %d: %d pages left and %d came back", iteration, out/PageBytes, in/PageBytes)
		}
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
		begun := w.begin(um.In)
		begun = w.begin(um.Out) || begun
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

// TestWhichDeadRangeGoes: one that fits of those that are not wanted soon, else the
// largest of them, else the one that is wanted last.
func TestWhichDeadRangeGoes(t *testing.T) {
	w := newWorld(t, 1, 64*PageBytes, 256*PageBytes, true)
	ranges := map[cuda.Ptr]int64{}
	for i, pages := range []int64{2, 6, 3, 3, 12} {
		p := w.malloc(pages*PageBytes, 0)
		w.report(0, []cuda.Ptr{p}, true, uint64(100+i))
		w.settle()
		ranges[p] = pages
	}
	for p := range ranges {
		w.free(p)
	}
	w.drain()
	now := w.r.History.Now()
	w.r.plan.wanted = map[int64][]int64{
		2 * PageBytes:  {now + lateOps + 1},
		3 * PageBytes:  {now + 7},
		6 * PageBytes:  {now + 9},
		12 * PageBytes: {now + 8},
	}
	next := func(chunkPages int64, which reclaiming) (*tensor, int64) {
		g := w.r.nextDead(chunkPages*PageBytes, which)
		if g == nil {
			return nil, 0
		}
		return g, g.size / PageBytes
	}
	w.r.beginSearch()
	for _, want := range []struct{ chunkPages, goes int64 }{
		{2, 2},  // fits, and is not wanted soon
		{12, 3}, // one of two is not wanted, and larger than the other that is not soon
		{1, 2},
		{1, 6}, // all are wanted soon
		{1, 12},
		{1, 3},
		{1, 0},
	} {
		g, got := next(want.chunkPages, anyIdle)
		if got != want.goes {
			t.Fatalf("%d pages went for a chunk of %d, not %d", got, want.chunkPages, want.goes)
		}
		if got > 0 && want.chunkPages != 2 { // that one stays
			g.passed = w.r.searches
			w.r.picked[g.size]++
		}
	}
	w.r.beginSearch()
	if _, got := next(12, surplusOnly); got != 3 {
		t.Errorf("of what nobody wants %d pages went, not 3", got)
	}
}

// TestMemoryOfTheSameSizeIsTaken: a chunk gets the physical memory of a dead range of
// its size, before spare memory of other sizes is released and some is created.
func TestMemoryOfTheSameSizeIsTaken(t *testing.T) {
	for _, wanted := range []bool{false, true} {
		w := newWorld(t, 1, 16*PageBytes, 256*PageBytes, true)
		dead := w.malloc(4*PageBytes, 0)
		w.report(0, []cuda.Ptr{dead}, true, 100)
		w.settle()
		if err := w.r.Free(dead); err != nil {
			t.Fatal(err)
		}
		delete(w.live, dead)
		for range 2 {
			w.nextH++
			w.handles[w.nextH] = 2 * PageBytes
			w.r.physical.giveSpare(w.nextH, 2*PageBytes)
		}
		before := w.r.Stats()
		p := w.malloc(12*PageBytes, 0)
		if wanted {
			w.r.plan.wanted = map[int64][]int64{4 * PageBytes: {w.r.History.Now() + 1}}
		}
		w.report(0, []cuda.Ptr{p}, true, 101)
		w.settle()
		s := w.r.Stats()
		created, released := s.Created-before.Created, s.Released-before.Released
		if !wanted && (created != 2 || released != 0) || wanted && (created != 3 || released != 2) {
			t.Errorf("of three chunks, with a dead range of the size, wanted soon: %t, %d were created and %d handles released", wanted, created, released)
		}
		if err := w.r.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestMemoryOfAChunkIsTaken: of a dead range in two chunks the one of the size that is needed is taken over,
// and nothing is released for it: the memory of the other is spare.
func TestMemoryOfAChunkIsTaken(t *testing.T) {
	w := newWorld(t, 1, 16*PageBytes, 256*PageBytes, true)
	dead, other := w.malloc(9*PageBytes, 0), w.malloc(4*PageBytes, 0)
	w.report(0, []cuda.Ptr{dead, other}, true, 100)
	w.settle()
	if err := w.r.Free(dead); err != nil {
		t.Fatal(err)
	}
	before := w.r.Stats()
	p := w.malloc(5*PageBytes, 0)
	w.report(0, []cuda.Ptr{p}, true, 101)
	w.settle()
	if s := w.r.Stats(); s.Created != before.Created || s.Released != before.Released || w.r.physical.spares != 4*PageBytes {
		t.Errorf("%d handles created, %d released, %d bytes spare", s.Created-before.Created, s.Released-before.Released, w.r.physical.spares)
	}
	if err := w.r.Check(); err != nil {
		t.Error(err)
	}
}

// TestPlainMemoryComesBeforeTheNextUse: a thread that waits for plain memory launches nothing
// meanwhile, so that what is used next has to leave when there is nothing else.
func TestPlainMemoryComesBeforeTheNextUse(t *testing.T) {
	w := newWorld(t, 1, 64*PageBytes, 256*PageBytes, true)
	p := w.malloc(64*PageBytes, 0)
	for i := range 4096 { // an iteration of 64 operations, each on all that there is
		w.report(0, []cuda.Ptr{p}, true, uint64(i%64))
		w.settle()
	}
	if next, now := w.r.nextUse(w.r.ByPtr[p]), w.r.History.Now(); next != now {
		t.Fatalf("the next use is at %d, and it is %d now", next, now)
	}
	for range 8 {
		if w.r.ReservePlain(PageBytes) {
			return
		}
		for w.begin(um.Out) || w.begin(um.In) {
			for len(w.moves) > 0 {
				w.end(0)
			}
		}
	}
	t.Error("no room is made")
}
