package um

// When the card itself is full, a prefetch makes the driver evict: the blocks
// that it made recent longest ago, and no others. Which those are can be chosen
// by making recent what must stay: a prefetch of what is on the device already
// costs a few microseconds a range. The driver's order is mirrored here.

// steerAhead is for how many victims the order is put right at a time.
const steerAhead = 256

// displace chooses up to n blocks for the driver to evict under a fetch. When
// blocks that must stay would go before them, it answers the move that makes
// those recent, to be done first.
func (r *Runtime) displace(n int32) (victims []int32, touch *Move) {
	p := r.planned()
	if r.touching || p.dry || n <= 0 || len(p.evict) == 0 {
		return nil, nil
	}
	a := r.arena
	var keep []int32
	keptBefore := 0 // of keep: older than the last victim chosen
	ahead := 0
	r.recency.oldest(func(b int32) bool {
		if a.moving[b] {
			return true
		}
		t := r.holder(b)
		if t == nil || t.leaves != p.serial || t.pinned() || t.freed && !t.released {
			keep = append(keep, b)
			return true
		}
		if int32(len(victims)) < n {
			victims = append(victims, b)
		} else if len(keep) == 0 {
			return false // these go first as it is
		}
		keptBefore = len(keep)
		ahead++
		return ahead < steerAhead
	})
	if len(victims) == 0 {
		p.dry = true
		return nil, nil
	}
	if keptBefore == 0 {
		return victims, nil
	}
	return nil, r.touch(keep[:keptBefore])
}

// touch makes blocks recent.
func (r *Runtime) touch(blocks []int32) *Move {
	m := &Move{Kind: MoveTouch}
	runs := runsOf(blocks)
	m.Ranges = r.ranges(runs)
	for _, x := range runs {
		for b := x.first; b < x.end(); b++ {
			r.recency.touch(b)
		}
	}
	r.touching = true
	r.stats.TouchedBlocks += int64(len(blocks))
	r.begin(m)
	return m
}

// doom enters blocks that the driver is to evict.
func (r *Runtime) doom(blocks []int32) {
	a := r.arena
	for _, b := range blocks {
		a.moving[b], a.doomed[b] = true, true
		if t := a.owner[b]; t != nil {
			r.leave(t)
		} else {
			r.limbo[b] = a.take(b, 1)
		}
	}
	r.doomed = append(r.doomed, blocks...)
	r.leaving += int32(len(blocks))
	r.displacing += int32(len(blocks))
	r.displacers++
}

// depart ends the wait for the driver to evict a block: it has.
func (r *Runtime) depart(b int32) {
	r.arena.setOnDevice(b, 1, false)
	r.note(b, false)
	r.arena.stale[b] = r.arena.owner[b] == nil
	if t := r.arena.owner[b]; t != nil {
		t.present--
	}
	r.undoom(b)
}

// undoom takes a block out of the driver's way again.
func (r *Runtime) undoom(b int32) {
	a := r.arena
	a.moving[b], a.doomed[b] = false, false
	r.leaving--
	r.displacing--
	if t := a.owner[b]; t != nil {
		t.leaving--
		r.settled(t)
		return
	}
	for _, e := range r.limbo[b] {
		a.give(e.first, e.n, e.stream, e.seq, e.others)
	}
	delete(r.limbo, b)
}

// displaced ends a move under which the driver was to evict. What it has not
// evicted when the last such move is over has been spared.
func (r *Runtime) displaced(m *Move) {
	if !r.config.EvictionsSeen {
		for _, b := range m.displaced {
			r.depart(b)
		}
	}
	if r.displacers--; r.displacers > 0 {
		return
	}
	for _, b := range r.doomed {
		if r.arena.doomed[b] {
			r.stats.SparedBlocks++
			r.undoom(b)
		}
	}
	r.doomed = r.doomed[:0]
}
