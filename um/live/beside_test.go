package live

import (
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um/managed"
)

// TestBeside: a tensor that the arena has no range for lies in plain memory, for
// which others leave at once, within the budget; and when it is freed and its work is
// done, the arena has the room again. A run that lasts must not lose room on each such tensor.
func TestBeside(t *testing.T) {
	c := defaults()
	c.ManagedLimitBytes = c.BudgetBytes + c.HostBudgetBytes // no more address space than that
	r := newRig(t, c)
	r.holdBack()
	var p [16]cuda.Ptr
	for i := range p {
		p[i] = r.malloc(8*mib, 0)
		seq, gated := r.h.launch(0, p[i])
		if gated {
			r.eventually("the gate opens", func() bool { return r.h.gate(0) >= seq })
		}
		r.h.finish(0, seq)
	}
	for i := 0; i < len(p); i += 2 {
		r.must(r.l.Free(p[i])) // what is free is in pieces now
	}
	const bytes = 40 * mib
	small := r.malloc(mib/2, 0)
	kept, err := r.l.plain.Malloc(bytes, 0) // the pool has that much free when the first one comes
	r.must(err)
	r.must(r.l.plain.Free(kept))
	for range 3 {
		began := time.Now()
		big := r.malloc(bytes, 0)
		if r.paged().runtime.Owns(big) {
			t.Fatal("the arena has a range for it: nothing is tested")
		}
		if d := time.Since(began); d >= roomPatience {
			t.Errorf("waited %v for room that others could make", d)
		}
		if n := r.d.blocks()*managed.BlockBytes + r.d.plainUsed(); n > c.BudgetBytes {
			t.Errorf("%d bytes on the device, the budget is %d", n, c.BudgetBytes)
		}
		r.l.mu.Lock()
		plain := r.paged().runtime.Stats().PlainBytes
		r.l.mu.Unlock()
		if want := r.l.plainBytes.Load(); plain != want {
			t.Errorf("the arena leaves room for %d bytes of plain memory, there are %d", plain, want)
		}
		r.must(r.l.Free(big))
		r.d.reachEvents()
		r.eventually("its memory is given back", func() bool {
			r.must(r.l.Free(small))
			small = r.malloc(mib/2, 0)
			return r.d.plainUsed() < bytes
		})
	}
	s := r.l.Stats()
	if s.PlainTensors != 3 {
		t.Errorf("%d tensors in plain memory, want 3", s.PlainTensors)
	}
	r.keptTo(c.BudgetBytes, s)
	r.must(r.l.Close())
}

// TestPlainGrowthWaits: small allocations for which plain memory has to grow get the room
// of tensors first, so that the device never holds more than the budget, nor is said to.
func TestPlainGrowthWaits(t *testing.T) {
	c := defaults()
	r := newRig(t, c)
	r.holdBack()
	for range 8 { // together they fill the budget
		seq, gated := r.h.launch(0, r.malloc(8*mib, 0))
		if gated {
			r.eventually("the gate opens", func() bool { return r.h.gate(0) >= seq })
		}
		r.h.finish(0, seq)
	}
	for range 24 {
		r.malloc(mib-1, 0)
	}
	if r.d.plainUsed() == 0 || r.d.peakBytes() < c.BudgetBytes*3/4 {
		t.Fatalf("%d bytes of plain memory, %d in all at most: nothing is tested", r.d.plainUsed(), r.d.peakBytes())
	}
	r.keptTo(c.BudgetBytes, r.l.Stats())
	r.must(r.l.Close())
}

// keptTo says whether the device held no more than the budget, and is said to.
func (r *rig) keptTo(budget int64, s Stats) {
	r.Helper()
	if n := r.d.peakBytes(); n > budget {
		r.Errorf("%d bytes were on the device at a time, the budget is %d", n, budget)
	}
	if s.ResidentPeakBytes > budget {
		r.Errorf("the peak is said to be %d bytes, the budget is %d", s.ResidentPeakBytes, budget)
	}
}
