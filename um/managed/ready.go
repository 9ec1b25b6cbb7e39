package managed

import "slices"

const (
	// evictAheadOps is how many operations beyond those that are queued the driver is made
	// to evict for, while nothing wants to come in.
	evictAheadOps = 1000
	// largeBlocks is the size of a large tensor. Small ones find room in between; for a
	// large one as much may be free, but seldom in one piece.
	largeBlocks = 256
)

// makeReady populates free blocks where the coming allocations will be placed, when
// there is room that nothing else wants. Where the driver evicts, room is made for that:
// by evictions while more is needed than is free on the device, else, for a large tensor, by
// letting go of free blocks that are in the wrong place.
func (r *scheduler) makeReady(p *plan) *Move {
	surplus := r.arena.freeOnDevice + r.populating - p.freshBlocks
	short := surplus < 0
	room := r.room()
	if p.readied || room <= 0 && r.recency == nil || !short && (r.recency == nil || p.largest < largeBlocks) {
		return nil
	}
	p.readied = true // unless something is found
	blocks := r.foresee(p, short)
	if len(blocks) == 0 {
		return nil
	}
	limit := min(int32(len(blocks)), r.config.fetchBlocks())
	var displaced []int32
	switch {
	case room > 0:
		limit = min(limit, room)
	case short:
		var touch *Move
		if displaced, touch = r.displace(limit, true); touch != nil {
			p.readied = false
			return touch
		}
		limit = int32(len(displaced))
	default:
		if limit = 0; r.discarding == 0 {
			// Where allocations are placed depends on what is there, so this may go to and fro: no
			// more than one large tensor's blocks until something is allocated.
			if m := r.discardMisplaced(min(surplus, r.config.fetchBlocks(), p.largest-r.misplaced)); m != nil {
				p.readied = false
				return m
			}
		}
	}
	if limit == 0 {
		return nil
	}
	p.readied = false
	return r.populate(runsOf(blocks[:limit]), displaced)
}

// foresee places the coming allocations in a copy of what is free, and answers the absent
// blocks of the first that has some. When memory is not short, only large ones matter, and
// what dies meanwhile makes way for what comes after it.
func (r *scheduler) foresee(p *plan, short bool) (absent []int32) {
	r.foresight++
	free := r.scratch
	free.free, free.largest = append(free.free[:0], r.arena.free...), r.arena.largest
	r.born = r.born[:0]
	for _, n := range p.turns {
		if n < 0 {
			if !short {
				r.freeForeseen(-n)
			}
			continue
		}
		first, ok := free.place(n, 0, true, 0, r.Passed)
		if !ok {
			break
		}
		r.born = append(r.born, run{first, n})
		r.taken = free.takeTo(r.taken[:0], first, n)
		wanted := len(absent) == 0 && (short || n >= largeBlocks)
		for _, e := range r.taken {
			missing := wanted && !e.onDevice && !e.arriving && e.idle(r.Passed)
			for b := e.first; b < e.end(); b++ {
				r.arena.foreseen[b] = r.foresight
				if missing {
					absent = append(absent, b)
				}
			}
		}
		if short && len(absent) > 0 {
			break
		}
	}
	return absent
}

// freeForeseen frees the youngest allocation of a size that foresee has placed.
func (r *scheduler) freeForeseen(blocks int32) {
	for i := len(r.born) - 1; i >= 0; i-- {
		if r.born[i].n == blocks {
			r.scratch.insert(extent{first: r.born[i].first, n: blocks, onDevice: true, stream: anyStream})
			r.born = slices.Delete(r.born, i, i+1)
			return
		}
	}
}

// discardMisplaced lets go of dead blocks where, as foreseen, no coming allocation will be placed.
func (r *scheduler) discardMisplaced(limit int32) *Move {
	var blocks []int32
	for i := range r.arena.free {
		e := &r.arena.free[i]
		if !e.onDevice || !r.dead(e) {
			continue
		}
		for b := e.first; b < e.end() && int32(len(blocks)) < limit; b++ {
			if r.arena.foreseen[b] != r.foresight && !r.arena.steered[b] {
				blocks = append(blocks, b)
			}
		}
	}
	if len(blocks) == 0 {
		return nil
	}
	r.misplaced += int32(len(blocks))
	m := &Move{Kind: MoveDiscard, runs: runsOf(blocks)}
	m.Ranges = r.ranges(m.runs)
	r.takeFree(m)
	r.begin(m)
	return m
}

// populate makes free blocks present, in place of others that the driver evicts. Where it
// evicts they can be allocated meanwhile, or whoever allocates would go where nothing is
// ready; not what is discarded first, for if the new owner's first operation went out late, it
// could lose what that has written.
func (r *scheduler) populate(runs []run, displaced []int32) *Move {
	m := &Move{Kind: MovePopulate, runs: runs, in: true, Ranges: r.ranges(runs), displaced: displaced}
	for _, x := range runs {
		for _, e := range r.arena.take(x.first, x.n) {
			m.StaleFirst = m.StaleFirst || e.stale
			m.extents = append(m.extents, e)
		}
	}
	if r.recency != nil && !m.StaleFirst {
		for _, e := range m.extents {
			r.arena.setArriving(e.first, e.n, true)
			r.arena.give(e.first, e.n, e.stream, e.seq, e.others)
		}
		m.extents = nil
	}
	r.begin(m)
	return m
}

// populated ends that for what has not been allocated meanwhile.
func (r *scheduler) populated(m *Move) {
	if len(m.extents) > 0 {
		return // nothing could be
	}
	for _, x := range m.runs {
		r.arena.setArriving(x.first, x.n, false)
		for _, e := range r.arena.take(x.first, x.n) {
			r.arena.give(e.first, e.n, e.stream, e.seq, e.others)
		}
	}
}
