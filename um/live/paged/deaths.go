package paged

import (
	"fmt"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// deaths are the frees of tensors that the managed engine has not heard of yet. A free
// needs no answer, and the engine's lock is often held for a tenth of a millisecond by
// a thread that plans: so whoever frees leaves a note, and Drain deals with it between
// the operations where it belongs. Until then nothing else is given the address.
// It has a lock of its own, which comes last.
type deaths struct {
	any   atomic.Bool // there are notes
	mu    sync.Mutex
	live  map[cuda.Ptr]int64 // bytes of the tensors that have not been freed
	notes []death
	heard []death // taken out of notes; the process's lock guards it
}

type death struct {
	at   cuda.Ptr
	when uint64 // everything up to this record was queued before
}

// born enters a tensor.
func (d *deaths) born(p cuda.Ptr, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.live == nil {
		d.live = map[cuda.Ptr]int64{}
	}
	d.live[p] = bytes
}

// note leaves a note of a free, and answers how large the tensor was; ok is false when
// there is none at that address.
func (d *deaths) note(p cuda.Ptr, when uint64) (bytes int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if bytes, ok = d.live[p]; !ok {
		return 0, false
	}
	delete(d.live, p)
	d.notes = append(d.notes, death{p, when})
	d.any.Store(true)
	return bytes, true
}

// hear takes over the notes that there are.
func (d *deaths) hear() {
	if !d.any.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard = append(d.heard, d.notes...)
	d.notes = d.notes[:0]
	d.any.Store(false)
}

// tellFrees tells the runtime of the frees before which every operation has been reported,
// which are those up to a record. The caller holds the lock.
func (e *Engine) tellFrees(reported uint64) {
	heard := e.deaths.heard
	k := 0
	for ; k < len(heard) && heard[k].when <= reported; k++ {
		e.runtime.Reserved(heard[k].when)
		if err := e.runtime.Free(heard[k].at); err != nil {
			e.proc.Log.Error("two accounts of what is allocated differ", zap.Error(err)) // its memory stays taken
		}
	}
	if k > 0 {
		e.deaths.heard = append(heard[:0], heard[k:]...)
	}
}

// Free takes a tensor back.
func (e *Engine) Free(p cuda.Ptr) error {
	proc := e.proc
	bytes, ok := e.deaths.note(p, proc.HookHead())
	if !ok {
		return fmt.Errorf("%w: %#x", um.ErrNotOurs, uint64(p))
	}
	proc.TensorLive.Add(-bytes)
	proc.NoteBesides()
	return nil
}
