package explicit

import (
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
)

// This file is for allocations that share a range where shapes change: an iteration that is longer than the one before needs memory
// of other sizes all over, and to map it is what the job then waits for. So what lives for long goes, in the order in which it is born, into
// packs of one size for all (pack.go): their memory serves any iteration. What is expected to die at about the same time is in
// the same one, as what is saved for the backward pass. What lies in them moves together, and where it does not come again, nothing
// is kept for it.

const (
	// sharedBytes is the size of such a pack, sharedPart the part of it that an allocation in it is at most.
	sharedBytes = 64 << 20
	sharedPart  = 2
	// sharedOfBudget is the part of the budget that such a pack is at most.
	sharedOfBudget = 32
	// variedPeriods is for how many iterations sizes have changed: in the first one layers of other sizes are taken for an iteration.
	variedPeriods = 2
	// mostOpen is how many packs of a stream have room for more.
	mostOpen = 8
)

// open is a pack that has room for more.
type open struct {
	*tensor
	dies int64 // when what is in it is expected to
}

// sharing says whether any allocation does: sizes have changed for long enough.
func (r *packer) sharing() bool {
	return r.config.Packs && r.History.VariedFor() > variedPeriods*r.History.Period()
}

// shares says whether an allocation of so many bytes that lives for so many operations shares a range.
func (r *packer) shares(bytes, lasts int64) bool {
	return r.sharing() && bytes <= r.sharedSize()/sharedPart && lasts >= leastLife && lasts < correlate.Unknown &&
		(bytes < leastMakeable || !r.makesAgain())
}

// sharedSize is that of the ranges.
func (r *packer) sharedSize() int64 {
	return min(sharedBytes, r.config.ChunkBytes, WholePages(r.config.BudgetBytes/sharedOfBudget))
}

// mallocShared allocates a part of such a pack; 0 when it is to be no part of one.
func (r *packer) mallocShared(bytes int64, stream int) cuda.Ptr {
	if !r.sharing() || !r.holesFit() {
		return 0
	}
	pages := WholePages(bytes)
	lasts := r.History.Lasts(pages)
	if !r.shares(pages, lasts) {
		return 0
	}
	t := r.openFor(bytes, r.History.Now()+lasts, stream)
	if t == nil {
		return 0
	}
	p := r.appendPart(t, bytes, stream)
	if p == nil {
		return 0
	}
	p.instance = r.History.AllocIn(t.Instance, pages)
	r.grow(t, t.filled())
	r.fillPart(t, p)
	return t.place(p).Base
}

// grow has more of a pack used: the checksum of what it had, and the copy that is kept of it, are no longer of all of it.
func (r *packer) grow(t *tensor, bytes int64) {
	t.bytes = bytes
	for i := range t.chunks {
		c := &t.chunks[i]
		if c.where == onDevice {
			r.giveHost(c)
		}
		c.summed = false // of what is on its way the host's copy is being read
	}
}

// stays says whether no chunk of it has left, or is leaving.
func (t *tensor) stays() bool {
	return !slices.ContainsFunc(t.chunks, func(c chunk) bool { return c.where != blank && c.where != arriving && c.where != onDevice })
}

// openFor is a pack with room for so many bytes that are expected to die at a position, or a new one; nil when there is no room.
func (r *packer) openFor(bytes, dies int64, stream int) *tensor {
	list := slices.DeleteFunc(r.open[stream], func(o open) bool { return o.Freed || o.retained })
	r.open[stream] = list
	for _, o := range list {
		if max(o.dies-dies, dies-o.dies) <= packOps && o.filled()+bytes <= o.size && o.stays() {
			return o.tensor
		}
	}
	size := r.sharedSize()
	if size > r.BeyondLiveBytes() {
		return nil
	}
	t := r.usedRange(size, stream)
	if t == nil {
		if t = r.freshRange(size, stream); t == nil {
			return nil
		}
	}
	r.takeSlot(t)
	r.liveAs(t, r.History.Group())
	t.parts = []part{}
	if len(list) == mostOpen {
		list = slices.Delete(list, 0, 1)
	}
	r.open[stream] = append(list, open{t, dies})
	r.stats.Packs++
	return t
}
