package explicit

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for dead ranges that the job takes again without asking: an
// allocation of the size that was freed last is by far the commonest, and would
// else wait for the engine's lock. The process around the Runtime holds such ranges,
// gives them out, and says so afterwards, in the order of the calls and before any
// operation that came after them: [Runtime.Hold] and [Runtime.Retake]. Until then the
// Runtime takes a tensor for the one that lay there before. All that can follow is
// that garbage is moved: an operation that names it waits until the Runtime has heard.
//
// A held range keeps its slot, and the launch hook finds it there when the job has
// taken it. Before its memory can go, it is recalled from the process.

// Hold reports that an allocation was freed, and that the job may take its range
// again; it answers the bytes of the range, 0 for what the job may not take: a part of a pack, or a range that was borrowed.
func (r *Runtime) Hold(p cuda.Ptr) (size int64, err error) {
	t := r.ByPtr[p]
	if t == nil {
		return 0, fmt.Errorf("%w: %#x", um.ErrNotOurs, uint64(p))
	}
	if t.parts != nil || t.borrowed {
		return 0, r.Free(p)
	}
	r.leave(t, p, t.bytes, t.life, t.Named)
	guarded := len(t.readers) > 0
	if guarded && r.process.Recall(p) {
		r.retain(t)
		return t.size, nil
	}
	r.die(t)
	t.held = true
	r.held[p] = t
	if guarded { // it has been taken again: Retake will follow
		return t.size, nil
	}
	if !t.whole() && !r.recall(t) {
		return t.size, nil // it has been taken again: Retake will follow
	}
	if t.flying == 0 {
		r.retire(t)
	}
	return t.size, nil
}

// Retake reports that the job has taken a range again that was held, or one that was reserved; it
// answers the bytes of the range, 0 for a part of a pack.
func (r *Runtime) Retake(p cuda.Ptr, bytes int64, stream int) (size int64, err error) {
	if t := r.reserved[p]; t != nil {
		return 0, r.takePart(t, p, bytes, stream)
	}
	t := r.held[p]
	if t == nil || WholePages(bytes) != t.size {
		return 0, fmt.Errorf("%w: %#x", um.ErrNotOurs, uint64(p))
	}
	if t.listed {
		r.dead.remove(t)
	}
	delete(r.held, p)
	t.held, t.Freed, t.freedAt = false, false, nil
	t.bytes, t.Stream, t.Others, t.Named, t.kept, t.borrowed = bytes, stream, nil, false, false, false
	for i := range t.chunks {
		if len(t.readers) > 0 {
			break // what was there is to be made again first
		}
		t.chunks[i].summed = false // of garbage, and of as much as there was before
	}
	r.stats.ReusedRanges++
	r.live(t)
	before := r.repeats(bytes, stream)
	t.life = r.enter(t, t.Instance, p, bytes, before)
	r.setState(t)
	r.prepare(before)
	return t.size, nil
}

// offer lets the job take a dead range without asking that it has not freed as one of that size: one that was
// made ready for it, or had been borrowed.
func (r *tensors) offer(t *tensor) {
	r.takeSlot(t)
	if !r.process.Offer(cuda.Range{Base: t.base, Bytes: t.size}, t.Stream) {
		r.giveSlot(t)
		return
	}
	t.held = true
	r.held[t.base] = t
}

// recall makes sure that the job does not take a dead range again; false when it has.
func (r *tensors) recall(t *tensor) bool {
	if !t.held {
		return true
	}
	if !r.process.Recall(t.base) {
		return false
	}
	t.held = false
	delete(r.held, t.base)
	r.giveSlot(t)
	return true
}
