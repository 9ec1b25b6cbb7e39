package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

// swapped is a world in which an operation that uses one of the tensors that it
// returns sends the other away: each is of two chunks and as large as the budget.
func swapped(t *testing.T, host int64) (w *world, a, b cuda.Ptr) {
	w = newWorld(t, 1, 8*PageBytes, host, false)
	w.steady = true
	for i, p := range []*cuda.Ptr{&a, &b} {
		if *p = w.malloc(8*PageBytes, 0); *p == 0 {
			t.Fatal("no memory")
		}
		w.use(*p, true)
		if i == 0 && w.r.Stats().Evictions != 0 {
			t.Fatal("something left before anything else came")
		}
	}
	return w, a, b
}

// use runs an operation on a tensor to its end.
func (w *world) use(p cuda.Ptr, writes bool) {
	w.t.Helper()
	w.report(0, []cuda.Ptr{p}, writes, 1)
	w.settle()
	if err := w.r.Check(); err != nil {
		w.t.Fatal(err)
	}
}

// A chunk that nothing has written to leaves without a copy from the third time on;
// one that was written to is copied, and comes back as it was written.
func TestCleanChunks(t *testing.T) {
	w, a, b := swapped(t, 64*PageBytes)
	for n := range 12 {
		before := w.r.Stats()
		writes := n == 6
		w.use(a, writes) // b leaves
		w.use(b, false)  // a leaves, which has left once more
		s := w.r.Stats()
		clean, copied := (s.CleanBytes-before.CleanBytes)/PageBytes, (s.EvictedBytes-before.EvictedBytes)/PageBytes
		want := int64(16)
		switch {
		case n == 0:
			want = 0 // b leaves for the first time, a for the second
		case n == 1 || writes:
			want = 8 // only a, or only b
		}
		if clean != want || clean+copied != 16 {
			t.Errorf("round %d: %d pages left without a copy and %d by one, want %d without", n, clean, copied, want)
		}
	}
	if w.dirty == 0 {
		t.Error("no chunk was compared and copied")
	}
}

// Host memory is for what leaves: copies that are kept go when it is wanted, and
// count neither as needed nor against the budget.
func TestKeptCopiesMakeRoom(t *testing.T) {
	w, a, b := swapped(t, 64*PageBytes)
	for range 3 {
		w.use(a, false)
		w.use(b, false)
	}
	s := w.r.Stats()
	if s.KeptBytes != 8*PageBytes || s.HostBytes != 16*PageBytes {
		t.Fatalf("%d bytes are kept, %d in use: want one tensor's of two", s.KeptBytes, s.HostBytes)
	}
	w.hostLeft = 4 * PageBytes // the least with which three tensors can take turns
	c := w.malloc(8*PageBytes, 0)
	w.use(c, true) // what is kept is b's, which leaves into its own copy
	if s := w.r.Stats(); s.KeptBytes != 0 || s.HostBytes != 16*PageBytes {
		t.Fatalf("%d bytes are kept, %d in use, want none of two tensors'", s.KeptBytes, s.HostBytes)
	}
	for n := range 6 {
		w.use(a, n == 3)
		w.use(b, false)
		w.use(c, false)
	}
	if s := w.r.Stats(); s.HostPeakBytes != 20*PageBytes {
		t.Errorf("%d bytes of host memory are said to be needed at most, want all there is", s.HostPeakBytes)
	}
	w.free(a)
	w.free(b)
	w.free(c)
	w.settle()
	if err := w.r.Check(); err != nil {
		t.Error(err)
	}
	if len(w.hostUsed) > 0 || w.r.Stats().HostBytes != 0 {
		t.Errorf("%d pieces of host memory of dead tensors are in use", len(w.hostUsed))
	}
}

// Where checksums are not worth it, nothing is kept.
func TestNothingIsKeptWithoutChecksums(t *testing.T) {
	w, a, b := swapped(t, 64*PageBytes)
	w.r.trial = trial{}
	for range 6 {
		w.use(a, false)
		w.use(b, false)
	}
	if s := w.r.Stats(); s.KeptBytes != 0 || s.CleanBytes != 0 || w.dirty != 0 {
		t.Errorf("%d bytes kept, %d clean, %d compared", s.KeptBytes, s.CleanBytes, w.dirty)
	}
}

// What changes each time is let alone for longer and longer; what changes once in
// several times is compared always.
func TestHabit(t *testing.T) {
	leave := func(h *learned, known, clean bool) (sums bool, knows bool) {
		sums = h.worth()
		h.note(sums && known, clean)
		return sums, sums && h.worth() // its copy is kept
	}
	run := func(times int, clean func(n int) bool) (sums int) {
		var h learned
		known := false
		for n := range times {
			var summed bool
			summed, known = leave(&h, known, clean(n))
			if summed {
				sums++
			}
		}
		return sums
	}
	if n := run(1000, func(int) bool { return false }); n < 5 || n > 50 {
		t.Errorf("%d checksums for 1000 times that a chunk left changed", n)
	}
	if n := run(1000, func(n int) bool { return n%3 != 0 }); n != 999 {
		t.Errorf("%d checksums for 1000 times that a chunk left, changed every third time", n)
	}
}
