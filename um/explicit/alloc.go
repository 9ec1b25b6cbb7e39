package explicit

import (
	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for how an allocation becomes a tensor, and for the lives of allocations, which outlast it (lives.go).

// newTensor makes a tensor that repeats the life before, of a dead range if there is one; ok is false when there are no addresses.
func (r *packer) newTensor(before, bytes int64, stream int) (t *tensor, ok bool) {
	if t = r.usedRange(bytes, stream); t == nil {
		if g := r.borrow(before, bytes, stream); g != nil {
			t = &tensor{Tensor: um.Tensor{Stream: stream}, base: g.base, chunks: g.chunks, size: g.size, bytes: bytes, borrowed: true}
		} else if t = r.freshRange(bytes, stream); t == nil {
			return nil, false
		}
	}
	r.takeSlot(t)
	r.live(t)
	if x := r.lives.of(before); x != nil && x.died != notYet && r.mapsMuch() && !r.History.Varies() {
		r.History.Foretell(t.Instance, []correlate.Ref{x.instance}, x.born, x.died) // that life may have shared a range, which is of another size
	}
	return t, true
}

// usedRange is a tensor that nobody knows of yet, of a dead range of its size; nil when there is none.
func (r *packer) usedRange(bytes int64, stream int) *tensor {
	g := r.reuse(WholePages(bytes), stream)
	if g == nil {
		return nil
	}
	r.stats.ReusedRanges++
	return &tensor{Tensor: um.Tensor{Stream: stream}, base: g.base, chunks: g.chunks, size: g.size, bytes: bytes}
}

// freshRange is one where nothing is mapped yet; nil when there are no addresses.
func (r *packer) freshRange(bytes int64, stream int) *tensor {
	size := WholePages(bytes)
	base, ok := r.addresses.take(size)
	if !ok {
		return nil
	}
	r.stats.FreshRanges++
	return &tensor{Tensor: um.Tensor{Stream: stream}, base: base, chunks: r.cut(size), size: size, bytes: bytes, absent: size}
}

// enter notes an allocation, of all of a tensor, which repeats the life before, or of a part of it, and answers the number of its
// life, which is remembered where packs are made.
func (r *packer) enter(t *tensor, instance correlate.InstanceID, p cuda.Ptr, bytes, before int64) (life int64) {
	r.ByPtr[p] = t
	t.born = r.History.Now()
	r.AddLive(bytes)
	if !r.config.Packs {
		return noLife
	}
	life = r.lives.begin(r.History.Ref(instance), bytes, t.Stream, t.born)
	if x := r.lives.of(before); x != nil {
		r.lives.of(life).lasting = x.lasting
	}
	return life
}

// leave notes the end of one, whose life has that number.
func (r *packer) leave(t *tensor, p cuda.Ptr, bytes, life int64, named bool) {
	delete(r.ByPtr, p)
	r.AddLive(-bytes)
	if x := r.lives.of(life); x != nil {
		x.lasting = x.lasting || t.lasting
		x.died, x.named, x.makeable = r.History.Now(), named, x.lasting && r.hasRecipe(t) && r.makesNow(t) && t.size >= leastMakeable
		if x.makeable {
			r.whole[t.size] = true
		}
		if x.makeable && !t.copied {
			x.rest = t.rest
		}
	}
}

// mayGrow says whether so much more may be allocated, for which packs go that nothing is in.
func (r *packer) mayGrow(bytes int64) bool {
	if bytes > r.BeyondLiveBytes() {
		r.giveUpEarly()
	}
	return bytes <= r.BeyondLiveBytes()
}

// PlainFits says whether plain memory may grow by so much: else there is no room for it however long is waited.
func (r *packer) PlainFits(bytes int64) bool {
	return bytes <= r.config.BudgetBytes-r.PlainBytes && r.mayGrow(bytes)
}
