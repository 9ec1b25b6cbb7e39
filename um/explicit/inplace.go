package explicit

// This file is for launches that name more than the budget. What does not fit
// beside the rest is mapped in host memory at its own addresses, where kernels
// reach it over the bus: slow, and right. The largest tensors go there first, for
// kernels read small ones, such as weights, more often. As soon as nothing needs
// it soon, such a chunk goes back to the pinned pool.

// placeFor is the move that maps a chunk of an operation's in place, when the
// operation could otherwise never be launched, or nil.
func (r *scheduler) placeFor(x *op) *Move {
	if !r.stuck(x) {
		return nil
	}
	var t *tensor
	for y := range x.needs() {
		if y.absent > 0 && r.first(y) == y && (t == nil || y.size > t.size) {
			t = y
		}
	}
	if t == nil {
		return nil
	}
	if r.oversize != x {
		r.oversize = x
		r.stats.OversizeOps++
		if needs := x.bytes(); needs > r.stats.OversizeBytes {
			r.stats.OversizeBytes, r.stats.OversizeName = needs, x.Name
		}
	}
	for i := range t.chunks {
		c := &t.chunks[i]
		if c.where != blank && c.where != onHost && c.where != dropped {
			continue
		}
		m := &Move{
			Kind: MovePlace, Chunk: t.rangeOf(c), Host: c.host, Bytes: t.used(c),
			Sum: c.sum, Summed: c.summed, tensor: t, index: i,
		}
		if c.where == dropped {
			r.makeInstead(m)
		}
		c.where, c.submitted = arriving, false
		t.absent -= c.bytes
		t.flying++
		r.stats.InPlaceBytes += c.bytes
		return m
	}
	return nil
}

// stuck says whether nothing that is under way, or could be, makes room for x.
func (r *scheduler) stuck(x *op) bool {
	if r.Moving() || r.drafting != nil || !r.plan.valid || r.plan.epoch != r.Epoch() || r.plan.anyLeaves() {
		return false
	}
	for y := range r.Pending.All() {
		if !y.waiting {
			return false // when it has finished, what it uses may leave
		}
	}
	return true
}

// backToPool is the move that takes a chunk that is in place to the pool, when
// nothing needs it soon, or nil.
func (r *scheduler) backToPool() *Move {
	if r.placed == 0 {
		return nil
	}
	const soon = 64 // operations
	for _, t := range r.Slots.All() {
		if t == nil || !r.evictable(t) || t.bytesIn(inPlace) == 0 || r.nextUse(t) < r.History.Now()+soon {
			continue
		}
		if m, _ := r.take(t, inPlace); m != nil {
			return m
		}
	}
	return nil
}

// bare takes what dead tensors have in place out of their addresses, or is nil.
func (r *scheduler) bare() *Move {
	if r.placed == 0 {
		return nil
	}
	for _, g := range r.dead.order {
		if g.bytesIn(inPlace) == 0 || !r.idle(g) || !r.recall(g) {
			continue
		}
		m := &Move{Kind: MoveTrim}
		r.unmapDead(m, g, 0)
		r.suspend(m)
		return m
	}
	return nil
}
