package managed

import (
	"slices"
	"sort"

	"github.com/penstock-gpu/penstock/um"
)

// scheduler is the floor that hands out moves, and hears how they went.
type scheduler struct {
	planning
	prepared  []bool   // blocks whose host pages have been made
	foresight uint64   // of foresee: looks into the future so far
	born      []run    // of foresee: allocations that it has placed
	misplaced int32    // blocks that discardMisplaced has let go of since the last allocation
	scratch   *arena   // of makeReady: in which coming allocations are placed
	taken     []extent // the same: by one of them
}

// Next answers a worker that is free: what to move now, if anything.
func (r *scheduler) Next(d um.Direction) (*Move, bool) {
	if r.config.BudgetBytes <= 0 {
		return nil, false
	}
	var m *Move
	switch {
	case r.config.Policy.Fetch == um.FetchOnFault:
		if d == um.Out {
			m = r.nextForFaults()
		}
	case d == um.In:
		m = r.nextIn()
	default:
		m = r.nextOut()
	}
	r.accountStall()
	return m, m != nil
}

// nextIn is the next move of a worker that brings in.
func (r *scheduler) nextIn() *Move {
	// What a stream is waiting for comes first, and until it has come whatever
	// room appears is for it.
	if x := r.head(); x != nil {
		m, blocked := r.fetchFor(x)
		if m == nil && blocked && r.flying == 0 {
			known := len(r.plan.evict)
			r.plan.valid = false // made before it was known to be stuck
			if m, blocked = r.fetchFor(x); m == nil && blocked {
				switch {
				case r.stuck(x):
					r.letLate(x)
				case known == 0 && len(r.planned().evict) > 0:
					r.Happened() // the workers that take out have looked before there was anything for them
				}
			}
		}
		if m != nil || blocked {
			return m
		}
	}
	p := r.planned()
	for len(p.fetch) > 0 {
		t := p.fetch[0]
		_, idle := r.away(t)
		if idle <= 0 || t.Freed && !t.Busy() || !t.Freed && t.leaving > 0 {
			p.fetch = p.fetch[1:]
			continue
		}
		return r.fetch(t, idle) // nil: no room yet, and what follows is needed later
	}
	return r.makeReady(p)
}

// fetchFor brings in what an operation waits for. blocked says that nothing else is
// to be brought in meanwhile: something is missing that nobody is bringing in, or is
// a victim of the driver. Whether the driver evicts that or spares it is known when the moves under
// way are over (displaced), and with several workers they would not be if others began.
func (r *scheduler) fetchFor(x *op) (m *Move, blocked bool) {
	for _, t := range x.Tensors {
		missing, idle := r.away(t)
		if idle > 0 {
			if m := r.fetch(t, idle); m != nil {
				return m, true
			}
			blocked = true
			r.Stalls.Cause = um.ForSpace // of all of its wait
		}
		if missing > idle && r.hasDriverVictim(t) {
			blocked = true
		}
	}
	return nil, blocked
}

// stuck says whether, with nothing moving, nothing more can leave either until x has run.
func (r *scheduler) stuck(x *op) bool {
	if r.unfinishedBefore(x) {
		return false // when they are done, what they use may leave
	}
	if r.recency == nil {
		for _, t := range r.planned().evict {
			if _, n := r.presentPieces(t, 1); n > 0 && !t.pinned() {
				return false
			}
		}
	}
	return r.idleOnDevice() == 0 && (r.recency == nil || r.planned().dry || len(r.planned().evict) == 0)
}

// fetch brings in a piece of a tensor, or makes room by letting go of dead
// blocks, or answers nil when there is no room.
func (r *scheduler) fetch(t *tensor, missing int32) *Move {
	want := min(missing, r.config.fetchBlocks())
	room := max(0, r.room())
	var displaced []int32
	if room < want && r.recency != nil {
		var touch *Move
		if displaced, touch = r.displace(want-room, false); touch != nil {
			return touch
		}
		room += int32(len(displaced))
	}
	if room < want && r.discarding == 0 {
		if m := r.discardFree(want - room); m != nil {
			return m
		}
	}
	if room <= 0 {
		return nil
	}
	runs, n := r.absentPieces(t, min(want, room))
	if n == 0 {
		return nil
	}
	m := &Move{Kind: MoveFetch, runs: runs, in: true, Ranges: r.ranges(runs), displaced: displaced}
	for _, x := range runs {
		for b := x.first; b < x.end(); b++ {
			if t.ran || r.arena.stale[b] {
				m.Bytes += BlockBytes
			}
			if !t.ran && r.arena.stale[b] {
				r.stats.StaleBytes += BlockBytes
			}
		}
	}
	r.takeFree(m)
	t.offered = true
	r.begin(m)
	return m
}

// nextOut is the next move of a worker that takes out.
func (r *scheduler) nextOut() *Move {
	p := r.planned()
	if r.recency != nil {
		if m := r.steer(false); m != nil {
			return m
		}
	} else {
		for len(p.evict) > 0 {
			t := p.evict[0]
			if t.pinned() || t.leaves != p.serial {
				p.evict = p.evict[1:]
				continue
			}
			if m := r.evict(r.presentPieces(t, r.config.evictBlocks())); m != nil {
				return m
			}
			p.evict = p.evict[1:]
		}
	}
	if short := r.shortfall(p); short > 0 {
		if m := r.discardFree(short); m != nil {
			return m
		}
	}
	if r.recency == nil && r.excess() > 0 {
		if m := r.relieve(); m != nil {
			return m
		}
	}
	return r.discardStale()
}

// excess is how many blocks too many there will be on the device when what is leaving
// has left: plain memory has grown, or the budget has shrunk.
func (r *scheduler) excess() int32 { return -(r.room() + r.leaving) }

// relieve takes out what otherwise would stay: who asked for the room waits for it, and
// the job with him. First what is free, though only an operation to come would prove that
// nothing uses it any more, and is therefore copied; then what is needed last, though it
// may be needed before anything else happens. What queued operations need stays, for
// they end by themselves.
func (r *scheduler) relieve() *Move {
	limit := min(r.excess(), r.config.evictBlocks())
	var free []int32
	for i := range r.arena.free {
		e := &r.arena.free[i]
		for b := e.first; e.onDevice && b < e.end() && int32(len(free)) < limit; b++ {
			if r.holder(b) == nil && !r.arena.moving[b] {
				free = append(free, b)
			}
		}
	}
	if len(free) > 0 {
		return r.evict(runsOf(free), int32(len(free)))
	}
	var last *tensor
	var lastUse int64
	for _, t := range r.Slots.All() {
		if t == nil || t.present == t.leaving || t.pinned() {
			continue
		}
		if _, queued := t.soonestQueued(); queued {
			continue
		}
		if next := r.nextUse(t); last == nil || next > lastUse {
			last, lastUse = t, next
		}
	}
	if last == nil {
		return nil
	}
	return r.evict(r.presentPieces(last, limit))
}

// evict takes pieces of tensors out; nil when there are none.
func (r *scheduler) evict(runs []run, n int32) *Move {
	if n == 0 {
		return nil
	}
	m := &Move{Kind: MoveEvict, runs: runs, Ranges: r.ranges(runs), Bytes: int64(n) * BlockBytes}
	r.takeFree(m)
	r.begin(m)
	return m
}

// shortfall is how many blocks the next fetches lack.
func (r *scheduler) shortfall(p *plan) (short int32) {
	const ahead = 128
	if r.recency != nil && !p.dry && len(p.evict) > 0 {
		return 0 // the driver makes the room
	}
	if short = -r.room() - r.discarding; r.room() < 0 {
		short = r.excess()
	}
	if x := r.head(); x != nil {
		for _, t := range x.Tensors {
			_, idle := r.away(t)
			short += idle
		}
	}
	var n int32
	for _, t := range p.fetch {
		if _, idle := r.away(t); idle > 0 && n < ahead {
			n += idle
		}
	}
	return short + n
}

// nextForFaults keeps the cap under demand paging: the blocks that have been on
// the device longest go first, dead ones too, for the pager cannot know.
func (r *scheduler) nextForFaults() *Move {
	need := int32(0)
	x := r.head()
	if x != nil {
		need = r.missingBlocks(x)
	}
	short := need - r.room() - r.leaving
	if short <= 0 {
		return nil
	}
	limit := min(short, r.config.evictBlocks())
	type aged struct {
		block   int32
		arrived int64
	}
	var old []aged
	for b := int32(0); b < r.arena.blocks; b++ {
		if r.mayGo(b, x) {
			old = append(old, aged{b, r.arena.arrived[b]})
		}
	}
	if len(old) == 0 {
		r.openGates() // nothing can leave, which was not so at the last event, and there may be no other
		return nil
	}
	sort.Slice(old, func(i, j int) bool { return old[i].arrived < old[j].arrived })
	blocks := make([]int32, 0, limit)
	for _, o := range old[:min(len(old), int(limit))] {
		blocks = append(blocks, o.block)
	}
	m := &Move{Kind: MoveEvict, runs: runsOf(blocks)}
	m.Ranges = r.ranges(m.runs)
	m.Bytes = int64(m.blocks()) * BlockBytes
	r.takeFree(m)
	r.begin(m)
	return m
}

// discardBlocks is how many dead blocks are let go of at most in one move: a discard
// takes 7 us a block, and what waits for the room should not wait for all of it.
const discardBlocks = 32

// discardFree lets go of dead blocks that nothing can touch any more.
func (r *scheduler) discardFree(n int32) *Move {
	n = min(n, discardBlocks)
	m := &Move{Kind: MoveDiscard}
	for i := len(r.arena.free) - 1; i >= 0 && n > 0; i-- {
		e := &r.arena.free[i]
		if !e.onDevice || !r.dead(e) {
			continue
		}
		k := min(e.n, n)
		first := e.end() - k
		if r.touching && slices.Contains(r.arena.steered[first:e.end()], true) {
			continue // it is being prefetched
		}
		m.extents = append(m.extents, r.arena.take(first, k)...)
		m.runs = append(m.runs, run{first, k})
		n -= k
		if i > len(r.arena.free) {
			i = len(r.arena.free)
		}
	}
	if len(m.runs) == 0 {
		return nil
	}
	m.Ranges = r.ranges(m.runs)
	r.begin(m)
	return m
}

// discardStale forgets the dead pages that the host holds for free blocks.
func (r *scheduler) discardStale() *Move {
	const least = 16
	if r.arena.freeStale < least {
		return nil
	}
	m := &Move{Kind: MoveDiscard}
	for i := 0; i < len(r.arena.free) && len(m.runs) < 64; i++ {
		e := r.arena.free[i]
		if !e.stale || !r.dead(&e) {
			continue
		}
		m.extents = append(m.extents, r.arena.take(e.first, e.n)...)
		m.runs = append(m.runs, run{e.first, e.n})
		i--
	}
	if len(m.runs) == 0 {
		return nil
	}
	m.Ranges = r.ranges(m.runs)
	r.begin(m)
	return m
}
