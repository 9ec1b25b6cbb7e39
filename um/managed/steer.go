package managed

import "slices"

// evictionOrder is the floor of what the driver evicts by itself while a move brings something in, in an order that the runtime steers.
type evictionOrder struct {
	blocks
	displacers int32 // moves to the device, under which the driver may evict
	touching   bool  // one of them puts the driver's order right
}

// When the card itself is full, a prefetch makes the driver evict: the blocks
// that it made recent longest ago, and no others. Which those are can be chosen
// by making recent what must stay: a prefetch of what is on the device already
// costs a few microseconds a range. The driver's order is mirrored here.

const (
	// steerAhead is for how many victims the order is put right ahead of need.
	steerAhead = 32
	// steerBlocks is how many blocks are made recent at most in one move.
	steerBlocks = 256
)

// exhausted says whether nothing is left to displace.
func (p *plan) exhausted(ahead bool) bool {
	if ahead {
		return p.aheadDry || len(p.evict) == 0 && p.ahead == 0
	}
	return p.dry || len(p.evict) == 0
}

// displace chooses up to n blocks for the driver to evict under a fetch. When a
// block that must stay would go first, it answers the move that makes such
// blocks recent, to be done before.
func (r *scheduler) displace(n int32, ahead bool) (victims []int32, touch *Move) {
	p := r.planned()
	if n <= 0 || p.exhausted(ahead) {
		return nil, nil
	}
	r.recency.oldest(func(b int32) bool {
		switch {
		case r.arena.moving[b]:
			return true
		case !r.isVictim(p, b, ahead):
			return false
		}
		victims = append(victims, b)
		return int32(len(victims)) < n
	})
	if len(victims) == 0 {
		touch = r.steer(ahead)
	}
	return victims, touch
}

// isVictim says whether a block on the device is to leave by the plan.
func (r *evictionOrder) isVictim(p *plan, b int32, ahead bool) bool {
	t := r.holder(b)
	return t != nil && t.leaves == p.serial && (ahead || !t.leavesAhead) && !r.arena.steered[b] && !t.pinned() && (!t.Freed || t.released)
}

// steer puts the driver's order right for the next victims, if it is not.
func (r *scheduler) steer(ahead bool) *Move {
	p := r.planned()
	if r.touching || p.exhausted(ahead) {
		return nil
	}
	var keep []int32
	keptBefore, victims := 0, 0 // of keep, those older than the last victim seen
	r.recency.oldest(func(b int32) bool {
		switch {
		case r.arena.moving[b]:
		case r.isVictim(p, b, ahead):
			victims++
			keptBefore = len(keep)
		default:
			keep = append(keep, b)
		}
		return victims < steerAhead && (victims == 0 || len(keep) < steerBlocks)
	})
	if victims == 0 {
		p.aheadDry = ahead || p.aheadDry
		p.dry = !ahead || p.dry
	}
	if keptBefore == 0 {
		return nil
	}
	keep = keep[:min(keptBefore, steerBlocks)]
	for _, b := range keep {
		r.arena.steered[b] = true
	}
	m := &Move{Kind: MoveTouch, Ranges: r.ranges(runsOf(keep)), touched: keep}
	r.touching = true
	r.stats.TouchedBlocks += int64(len(keep))
	r.begin(m)
	return m
}

// steered follows the end of a move that made blocks recent.
func (r *evictionOrder) steered(m *Move) {
	r.touching = false
	for _, b := range m.touched {
		r.arena.steered[b] = false
		if r.arena.onDevice[b] {
			r.recency.touch(b)
		}
	}
}

// markDriverVictims enters blocks that the driver is to evict.
func (r *evictionOrder) markDriverVictims(blocks []int32) {
	a := r.arena
	for _, b := range blocks {
		a.moving[b], a.driverVictim[b] = true, true
		if t := a.owner[b]; t != nil {
			r.leave(t)
		} else {
			r.detached[b] = a.take(b, 1)
		}
	}
	r.driverVictims = append(r.driverVictims, blocks...)
	r.leaving += int32(len(blocks))
	r.displacing += int32(len(blocks))
}

// hasDriverVictim says whether the driver is to evict a block that a tensor's operations need.
func (r *evictionOrder) hasDriverVictim(t *tensor) bool {
	return slices.Contains(r.arena.driverVictim[t.first:t.first+t.n], true)
}

// depart ends the wait for the driver to evict a block: it has.
func (r *evictionOrder) depart(b int32) {
	r.arena.setOnDevice(b, 1, false)
	r.note(b, false)
	r.arena.stale[b] = r.arena.owner[b] == nil
	if t := r.arena.owner[b]; t != nil {
		t.present--
	}
	r.clearDriverVictim(b)
}

// clearDriverVictim takes a block out of the driver's way again.
func (r *evictionOrder) clearDriverVictim(b int32) {
	a := r.arena
	a.moving[b], a.driverVictim[b] = false, false
	r.leaving--
	r.displacing--
	if t := a.owner[b]; t != nil {
		t.leaving--
		r.settled(t)
		return
	}
	for _, e := range r.detached[b] {
		a.give(e.first, e.n, e.stream, e.seq, e.others)
	}
	delete(r.detached, b)
}

// displaced ends a move to the device. What the driver has not evicted when the
// last such move is over has been spared.
func (r *evictionOrder) displaced(m *Move) {
	if !r.config.EvictionsSeen {
		for _, b := range m.displaced {
			r.depart(b)
		}
	}
	if r.displacers--; r.displacers > 0 {
		return
	}
	for _, b := range r.driverVictims {
		if r.arena.driverVictim[b] {
			r.stats.SparedBlocks++
			r.clearDriverVictim(b)
		}
	}
	r.driverVictims = r.driverVictims[:0]
}
