package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// What a dead tensor has in place is unmapped and released also when it is plain
// memory that asks for room, to which it gives none.
func TestDeadInPlace(t *testing.T) {
	w := newWorld(t, 1, 12*PageBytes, 64*PageBytes, false)
	large := w.malloc(12*PageBytes, 0)
	w.report(0, []cuda.Ptr{large}, true, 1)
	w.settle()
	small := w.malloc(4*PageBytes, 0)
	w.report(0, []cuda.Ptr{large, small}, true, 2)
	for n := 0; len(w.waiting) > 0 && n < 100; n++ { // nothing goes out, so what is in place stays there
		w.begin(um.In)
		w.oldest(um.In)
		w.launch()
	}
	w.drainStreams()
	if w.placed == 0 || len(w.waiting) > 0 {
		t.Fatalf("%d chunks are in place and %d operations wait, although one exceeds the budget", w.placed, len(w.waiting))
	}
	w.free(small)
	w.drain()
	if w.r.ReservePlain(PageBytes) {
		t.Fatal("there is room for plain memory in a full budget")
	}
	for w.begin(um.In) {
	}
	if err := w.r.Check(); err != nil {
		t.Error(err)
	}
	for p := range w.mapped {
		if p >= small && p < small+4*PageBytes {
			t.Errorf("%#x of a dead tensor is still mapped", uint64(p))
		}
	}
	for h, in := range w.inHost {
		if in && w.handles[h] != 0 {
			t.Errorf("host memory of a dead tensor (handle %d) was not released", h)
		}
	}
}
