package um

import (
	"sort"

	"github.com/penstock-gpu/penstock/cuda"
)

// Next answers a worker that is free: what to move now, if anything.
func (r *Runtime) Next(d Direction) (*Move, bool) {
	if r.config.BudgetBytes <= 0 {
		return nil, false
	}
	var m *Move
	switch {
	case r.config.Policy.Fetch == FetchOnFault:
		if d == Out {
			m = r.nextForFaults()
		}
	case d == In:
		m = r.nextIn()
	case r.recency != nil:
		// The driver evicts under what comes in, and only one mover at a time can
		// know what it will evict.
	default:
		m = r.nextOut()
	}
	r.accountStall()
	return m, m != nil
}

// nextIn is the next move of the worker that brings in.
func (r *Runtime) nextIn() *Move {
	// What a stream is waiting for comes first, and until it has come whatever
	// room appears is for it.
	if x := r.head(); x != nil {
		m, blocked := r.fetchFor(x)
		if m == nil && blocked && r.arriving+r.leaving == 0 {
			r.plan.valid = false // made before it was known to be stuck
			if m, blocked = r.fetchFor(x); m == nil && blocked && r.stuck() {
				r.letLate(x)
			}
		}
		if m != nil || blocked {
			return m
		}
	}
	p := r.planned()
	for len(p.fetch) > 0 {
		t := p.fetch[0]
		if t.freed || t.missing()-t.arriving <= 0 || t.leaving > 0 {
			p.fetch = p.fetch[1:]
			continue
		}
		return r.fetch(t, t.missing()-t.arriving) // nil: no room yet, and what follows is needed later
	}
	if m := r.makeReady(p); m != nil {
		return m
	}
	return r.discardStale()
}

// fetchFor brings in what an operation waits for. blocked says that something
// is missing that nobody is bringing in.
func (r *Runtime) fetchFor(x *op) (m *Move, blocked bool) {
	for _, t := range x.tensors {
		if _, idle := r.away(t); idle > 0 {
			if m := r.fetch(t, idle); m != nil {
				return m, true
			}
			blocked = true
			r.stalledForSpace = true
		}
	}
	return nil, blocked
}

// stuck says whether, with nothing moving, nothing more can leave either.
func (r *Runtime) stuck() bool {
	if r.recency == nil {
		for _, t := range r.planned().evict {
			if t.present-t.leaving > 0 && !t.freed {
				return false
			}
		}
	}
	for i := range r.arena.free {
		if e := &r.arena.free[i]; e.onDevice && e.idle(r.passed) {
			return false
		}
	}
	return true
}

// fetch brings in a piece of a tensor, or makes room by letting go of dead
// blocks, or answers nil when there is no room.
func (r *Runtime) fetch(t *tensor, missing int32) *Move {
	want := min(missing, r.config.fetchBlocks())
	room := r.room()
	if room < want {
		if m := r.discardFree(want - room); m != nil {
			return m
		}
	}
	var displaced []run
	if room < want && r.recency != nil {
		displaced = r.displace(want-room, t)
		for _, x := range displaced {
			room += x.n
		}
	}
	if room <= 0 {
		return nil
	}
	runs, n := r.pieces(t, false, min(want, room))
	if n == 0 {
		return nil
	}
	m := &Move{Kind: MoveFetch, runs: runs, in: true, Ranges: r.ranges(t, runs), displaced: displaced}
	for i, x := range m.Ranges {
		if t.ran || r.arena.stale[runs[i].first] {
			m.Bytes += x.Bytes
		}
	}
	if t.freed { // some of it may be free already: out of the allocator's hands while it moves
		for _, x := range runs {
			for b := x.first; b < x.end(); b++ {
				if r.arena.owner[b] == nil {
					m.extents = append(m.extents, r.arena.take(b, 1)...)
				}
			}
		}
	}
	t.offered = true
	r.begin(m)
	return m
}

// nextOut is the next move of the worker that takes out.
func (r *Runtime) nextOut() *Move {
	p := r.planned()
	for len(p.evict) > 0 {
		t := p.evict[0]
		if t.freed || t.open > 0 || t.arriving > 0 || t.present-t.leaving <= 0 {
			p.evict = p.evict[1:]
			continue
		}
		runs, n := r.pieces(t, true, r.config.evictBlocks())
		if n == 0 {
			p.evict = p.evict[1:]
			continue
		}
		m := &Move{Kind: MoveEvict, runs: runs, Ranges: r.ranges(t, runs)}
		for _, x := range m.Ranges {
			m.Bytes += x.Bytes
		}
		r.begin(m)
		return m
	}
	return nil
}

// nextForFaults keeps the cap under demand paging: the blocks that have been on
// the device longest go first, dead ones too, for the pager cannot know.
func (r *Runtime) nextForFaults() *Move {
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
		return nil
	}
	sort.Slice(old, func(i, j int) bool { return old[i].arrived < old[j].arrived })
	blocks := make([]int32, 0, limit)
	for _, o := range old[:min(len(old), int(limit))] {
		blocks = append(blocks, o.block)
	}
	m := &Move{Kind: MoveEvict, runs: runsOf(blocks)}
	m.Ranges = r.blockRanges(m.runs)
	for _, y := range m.runs {
		m.Bytes += int64(y.n) * BlockBytes
	}
	for _, y := range m.runs {
		for b := y.first; b < y.end(); b++ {
			if r.arena.owner[b] == nil {
				m.extents = append(m.extents, r.arena.take(b, 1)...)
			}
		}
	}
	r.begin(m)
	return m
}

// mayGo says whether a block may leave under demand paging while x waits.
func (r *Runtime) mayGo(b int32, x *op) bool {
	if !r.arena.onDevice[b] || r.arena.moving[b] {
		return false
	}
	t := r.arena.owner[b]
	if t == nil {
		return true
	}
	if t.open > 0 || t.freed {
		return false
	}
	if x != nil {
		for _, y := range x.tensors {
			if y == t {
				return false
			}
		}
	}
	return true
}

// oldestExists says whether anything may leave under demand paging while x waits.
func (r *Runtime) oldestExists(x *op) bool {
	for b := int32(0); b < r.arena.blocks; b++ {
		if r.mayGo(b, x) {
			return true
		}
	}
	return false
}

// discardFree lets go of dead blocks that nothing can touch any more.
func (r *Runtime) discardFree(n int32) *Move {
	m := &Move{Kind: MoveDiscard}
	for i := len(r.arena.free) - 1; i >= 0 && n > 0; i-- {
		e := &r.arena.free[i]
		if !e.onDevice || !e.idle(r.passed) {
			continue
		}
		k := min(e.n, n)
		first := e.end() - k
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
	m.Ranges = r.blockRanges(m.runs)
	r.begin(m)
	return m
}

// discardStale forgets the dead pages that the host holds for free blocks.
func (r *Runtime) discardStale() *Move {
	const least = 16
	if r.arena.freeStale < least {
		return nil
	}
	m := &Move{Kind: MoveDiscard}
	for i := 0; i < len(r.arena.free) && len(m.runs) < 64; i++ {
		e := r.arena.free[i]
		if !e.stale || !e.idle(r.passed) {
			continue
		}
		m.extents = append(m.extents, r.arena.take(e.first, e.n)...)
		m.runs = append(m.runs, run{e.first, e.n})
		i--
	}
	if len(m.runs) == 0 {
		return nil
	}
	m.Ranges = r.blockRanges(m.runs)
	r.begin(m)
	return m
}

// makeReady populates free blocks where the coming allocations will be placed,
// when there is room that nothing else wants.
func (r *Runtime) makeReady(p *plan) *Move {
	if p.freshBlocks <= r.arena.freeOnDevice {
		return nil
	}
	room := max(0, r.room())
	if room == 0 && (r.recency == nil || len(p.evict) == 0) {
		return nil
	}
	scratch := arena{base: r.arena.base, blocks: r.arena.blocks, free: append([]extent(nil), r.arena.free...), compactAt: 1 << 30}
	for _, n := range p.births {
		first, ok := scratch.place(n, 0, true, r.passed)
		if !ok {
			return nil
		}
		var blocks []int32
		for _, e := range scratch.take(first, n) {
			if e.onDevice {
				continue
			}
			if !e.idle(r.passed) {
				continue
			}
			for b := e.first; b < e.end() && int32(len(blocks)) < r.config.fetchBlocks(); b++ {
				blocks = append(blocks, b)
			}
		}
		if len(blocks) == 0 {
			continue
		}
		var displaced []run
		if short := int32(len(blocks)) - room; short > 0 && r.recency != nil {
			displaced = r.displace(short, nil)
			for _, x := range displaced {
				room += x.n
			}
		}
		if room < int32(len(blocks)) {
			blocks = blocks[:room]
		}
		if len(blocks) == 0 {
			return nil
		}
		return r.populate(runsOf(blocks), displaced)
	}
	return nil
}

// populate makes free blocks present.
func (r *Runtime) populate(runs []run, displaced []run) *Move {
	m := &Move{Kind: MovePopulate, runs: runs, in: true, Ranges: r.blockRanges(runs), displaced: displaced}
	for _, x := range runs {
		for _, e := range r.arena.take(x.first, x.n) {
			m.StaleFirst = m.StaleFirst || e.stale
			m.extents = append(m.extents, e)
		}
	}
	r.begin(m)
	return m
}

// displace chooses blocks for the driver to evict under a fetch of t.
func (r *Runtime) displace(n int32, t *tensor) (displaced []run) {
	p := r.planned()
	for i := 0; i < len(p.evict) && n > 0; i++ {
		v := p.evict[i]
		if v == t || v.freed || v.open > 0 || v.arriving > 0 || v.present-v.leaving <= 0 {
			continue
		}
		runs, k := r.pieces(v, true, n)
		displaced = append(displaced, runs...)
		n -= k
	}
	return displaced
}

// begin enters a move into the ledger.
func (r *Runtime) begin(m *Move) {
	for _, x := range m.runs {
		for b := x.first; b < x.end(); b++ {
			r.arena.moving[b] = true
			if t := r.arena.owner[b]; t != nil {
				if m.in {
					t.arriving++
				} else {
					r.leave(t)
				}
			}
		}
		if m.in {
			r.arriving += x.n
		} else if r.arena.onDevice[x.first] {
			r.leaving += x.n
		}
	}
	for _, x := range m.displaced {
		for b := x.first; b < x.end(); b++ {
			r.arena.moving[b] = true
			r.leave(r.arena.owner[b])
			m.OutBytes += BlockBytes
		}
		r.leaving += x.n
	}
	if len(m.displaced) > 0 {
		m.Touch = r.steer(m.displaced)
	}
}

func (r *Runtime) leave(t *tensor) {
	if t.leaving == 0 && !t.freed {
		r.process.SetResident(t.slot, false)
	}
	t.leaving++
}

// steer makes the blocks that must stay more recent than the displaced ones, so
// that the driver evicts just those.
func (r *Runtime) steer(displaced []run) []cuda.Range {
	doomed := make(map[int32]bool)
	for _, x := range displaced {
		for b := x.first; b < x.end(); b++ {
			doomed[b] = true
		}
	}
	left := len(doomed)
	var keep []int32
	r.recency.oldest(func(b int32) bool {
		if doomed[b] {
			left--
		} else {
			keep = append(keep, b)
		}
		return left > 0
	})
	for _, b := range keep {
		r.recency.touch(b)
	}
	return r.blockRanges(runsInOrder(keep))
}

// Done reports that a move has been carried out.
func (r *Runtime) Done(m *Move) {
	for _, x := range m.displaced {
		r.settleDisplaced(x)
	}
	for _, x := range m.runs {
		if m.in {
			r.arriving -= x.n
		} else if r.arena.onDevice[x.first] {
			r.leaving -= x.n
		}
		r.settle(x, m.in)
	}
	for _, e := range m.extents {
		if m.Kind == MoveDiscard || m.Kind == MovePrepare {
			for b := e.first; b < e.end(); b++ {
				r.arena.stale[b] = false
			}
			e.stream, e.others = anyStream, nil
		} else if !m.in {
			for b := e.first; b < e.end(); b++ {
				r.arena.stale[b] = true
			}
		}
		r.arena.give(e.first, e.n, e.stream, e.seq, e.others)
	}
	r.account(m)
	r.notePeak()
	r.epoch++
	r.openGates()
}

// settleDisplaced ends the wait for the driver to evict a run of blocks: those
// that it did not evict are still on the device.
func (r *Runtime) settleDisplaced(x run) {
	for b := x.first; b < x.end(); b++ {
		if r.arena.evicted[b] || !r.config.EvictionsSeen {
			r.arena.evicted[b] = false
			r.settle(run{b, 1}, false)
			continue
		}
		r.arena.moving[b] = false
		t := r.arena.owner[b]
		t.leaving--
		r.stats.SparedBlocks++
		switch {
		case t.freed && t.arriving+t.leaving == 0:
			r.release(t)
		case !t.freed && t.present == t.n && t.leaving == 0:
			r.process.SetResident(t.slot, true)
		}
	}
	r.leaving -= x.n
}

// settle puts a run of blocks on one side.
func (r *Runtime) settle(x run, onDevice bool) {
	a := r.arena
	for b := x.first; b < x.end(); b++ {
		a.moving[b] = false
		t := a.owner[b]
		if t != nil {
			if onDevice {
				t.arriving--
			} else {
				t.leaving--
			}
			if a.onDevice[b] != onDevice {
				if onDevice {
					t.present++
				} else {
					t.present--
				}
			}
		}
		a.setOnDevice(b, 1, onDevice)
		if r.recency != nil {
			if onDevice {
				r.recency.touch(b)
			} else {
				r.recency.remove(b)
			}
		}
		if t == nil {
			continue
		}
		if t.freed {
			if t.arriving+t.leaving == 0 {
				r.release(t)
			}
		} else if t.present == t.n && t.leaving == 0 {
			r.process.SetResident(t.slot, true)
		}
	}
}

func (r *Runtime) account(m *Move) {
	var blocks int64
	for _, x := range m.runs {
		blocks += int64(x.n)
	}
	switch m.Kind {
	case MoveFetch:
		r.stats.Fetches++
		r.stats.FetchedBytes += m.Bytes
	case MoveEvict:
		r.stats.Evictions++
		r.stats.EvictedBytes += m.Bytes
	case MovePopulate:
		r.stats.Populates++
		r.stats.PopulatedBytes += blocks * BlockBytes
	case MoveDiscard:
		r.stats.Discards++
		r.stats.DiscardedBytes += blocks * BlockBytes
	}
	r.stats.EvictedBytes += m.OutBytes
}

func (r *Runtime) notePeak() {
	r.stats.ResidentPeakBytes = max(r.stats.ResidentPeakBytes, int64(r.arena.resident)*BlockBytes)
}

// runsOf turns blocks into runs by address.
func runsOf(blocks []int32) []run {
	sort.Slice(blocks, func(i, j int) bool { return blocks[i] < blocks[j] })
	return runsInOrder(blocks)
}

// runsInOrder turns blocks into runs, keeping their order.
func runsInOrder(blocks []int32) (runs []run) {
	for _, b := range blocks {
		if k := len(runs) - 1; k >= 0 && runs[k].end() == b {
			runs[k].n++
		} else {
			runs = append(runs, run{b, 1})
		}
	}
	return runs
}
