package explicit

import (
	"slices"

	"github.com/penstock-gpu/penstock/um"
)

// This file is for how a tensor ends: what is to be made of it is seen to first.

// disband forgets what was to be part of a pack, which is dead.
func (r *recipes) disband(t *tensor) {
	for _, p := range t.parts {
		if x := r.lives.of(p.life); p.state == unborn && x != nil {
			x.home = nil
		}
	}
}

// end ends a tensor's life, and what the launch hook knows of it; one that others are to be made of is retained.
func (r *recipes) end(t *tensor) {
	for _, x := range slices.Clone(t.readers) {
		if !x.away() {
			r.release(x) // it is there: it can be made without this one, or is moved
		}
	}
	if len(t.readers) > 0 {
		r.retain(t)
		return
	}
	if t.loose {
		r.looseExcess -= t.size
	}
	r.die(t)
	r.giveSlot(t)
	if t.flying == 0 {
		r.retire(t)
	}
	if t.borrowed && t.listed && t.whole() && len(t.Others) == 0 {
		r.offer(r.emptied(t))
	}
}

// die ends a tensor's life. Its slot is still its own.
func (r *recipes) die(t *tensor) {
	r.disband(t)
	r.inline(t)
	needed := len(t.readers) > 0 // the job has taken the range again: see Hold
	if !needed {
		r.release(t)
	}
	r.liveSize -= t.size
	if !t.retained {
		r.History.Free(t.Instance)
	}
	t.Freed, t.retained, t.recipe, t.users = true, false, recipe{}, nil // else what was read by what is dead would be remembered for ever
	for i := range t.chunks {
		c := &t.chunks[i]
		if c.kept != nil {
			r.giveHost(c)
		}
		if c.where == dropped && !needed {
			c.where = blank // there is nothing to be made any more
		}
	}
	r.noteFreed(t)
	r.Happened()
}

// emptied is a dead range among those that are listed; of a pack, which is still known as one, another tensor in its place.
func (r *recipes) emptied(t *tensor) *tensor {
	if t.parts == nil {
		return t
	}
	r.dead.remove(t)
	g := &tensor{Tensor: um.Tensor{Stream: t.Stream, Freed: true}, base: t.base, size: t.size, chunks: t.chunks, freedAt: t.freedAt}
	r.dead.add(g)
	return g
}
