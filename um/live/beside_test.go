package live

import (
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/managed"
)

// TestBeside: a tensor that the arena has no range for lies in plain memory, for
// which others leave at once, within the budget; and when it is freed and its work is
// done, the arena has the room again. A run that lasts must not lose room on each such tensor.
func TestBeside(t *testing.T) {
	c := defaults()
	c.ManagedLimitBytes = c.BudgetBytes + c.HostBudgetBytes // no more address space than that
	c.Policy = um.LRU
	r := newRig(t, c)
	var p [16]cuda.Ptr
	for i := range p {
		p[i] = r.MallocOn(8*mib, 0)
		seq, _ := r.h.Queue(0, p[i])
		for range 17 { // plans are made anew after some events only
			seq, _ = r.h.Queue(0)
		}
		r.Eventually("the tensor is brought in", func() bool { return r.d.Holds(cuda.Range{Base: p[i], Bytes: 8 * mib}) })
		r.h.Finish(0, seq)
	}
	for i := 0; i < len(p); i += 2 {
		r.Must(r.l.Free(p[i])) // what is free is in pieces now
	}
	const bytes = 40 * mib
	small := r.MallocOn(mib/2, 0)
	kept, err := r.l.plain.Malloc(bytes, 0) // the pool has that much free when the first one comes
	r.Must(err)
	r.Must(r.l.plain.Free(kept))
	for range 3 {
		began := time.Now()
		big := r.MallocOn(bytes, 0)
		if r.l.Engine.Owns(big) {
			t.Fatal("the arena has a range for it: nothing is tested")
		}
		if d := time.Since(began); d >= time.Second {
			t.Errorf("waited %v for room that others could make", d)
		}
		if n := r.d.Blocks()*managed.BlockBytes + r.d.PlainUsed(); n > c.BudgetBytes {
			t.Errorf("%d bytes on the device, the budget is %d", n, c.BudgetBytes)
		}
		r.l.Mu.Lock()
		plain := r.l.Tensors.(*managed.Runtime).Stats().PlainBytes
		r.l.Mu.Unlock()
		if want := r.l.PlainBytes.Load(); plain != want {
			t.Errorf("the arena leaves room for %d bytes of plain memory, there are %d", plain, want)
		}
		r.Must(r.l.Free(big))
		r.d.ReachEvents()
		r.Eventually("its memory is given back", func() bool {
			r.Must(r.l.Free(small))
			small = r.MallocOn(mib/2, 0)
			return r.d.PlainUsed() < bytes
		})
	}
	s := r.l.Stats()
	if s.PlainTensors != 3 {
		t.Errorf("%d tensors in plain memory, want 3", s.PlainTensors)
	}
	if most := r.d.PeakBytes(); most > c.BudgetBytes || s.ResidentPeakBytes > c.BudgetBytes {
		t.Errorf("%d bytes were on the device at a time, and said to be %d, of a budget of %d", most, s.ResidentPeakBytes, c.BudgetBytes)
	}
	r.Must(r.l.Close())
}
