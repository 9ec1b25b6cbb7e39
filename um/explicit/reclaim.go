package explicit

import (
	"math"
	"slices"

	"github.com/penstock-gpu/penstock/correlate"
)

// reclaimer is the floor that finds physical memory: that of dead ranges, and the room that is left.
type reclaimer struct {
	tensors
	emptying    bool          // what is free is to be given back
	empties     int           // moves under way that do so
	picked      map[int64]int // scratch of pick
	searches    uint64        // for dead memory
	notRecalled int           // dead ranges that the job had taken again when they were last looked for
}

// reclaiming says which dead ranges may go for a move.
type reclaiming int

const (
	anyIdle     reclaiming = iota
	surplusOnly            // those that no coming allocation wants
)

// provide finds physical memory for a move: of just its size, of a spare handle or a dead range that is not wanted soon, or
// budget for a new one, for which other spare handles and dead ranges go.
func (r *reclaimer) provide(m *Move, which reclaiming) bool {
	if h, ok := r.physical.takeSpare(m.Chunk.Bytes); ok {
		m.Handle = h
		return true
	}
	if r.inherit(m, which) {
		return true
	}
	short := m.Chunk.Bytes - r.room()
	if !r.reclaimable(short-r.physical.spares, which) {
		return false
	}
	r.beginSearch()
	unwanted := anySize
	var surplus []*tensor
	var found int64
	if r.mapsMuch() {
		unwanted = r.unwanted
		surplus, found = r.pick(m.Chunk.Bytes, short-r.physical.sparesThat(unwanted), surplusOnly)
	}
	dead, more := r.pick(m.Chunk.Bytes, short-r.physical.spares-found, which)
	if short > r.physical.spares+found+more {
		return false // the job has taken what was counted on
	}
	short = r.releaseSpares(m, short, unwanted)
	short = r.unmapAll(m, surplus, short)
	short = r.releaseSpares(m, short, anySize)
	r.unmapAll(m, dead, short)
	r.suspend(m)
	m.created = m.Handle == 0
	return true
}

// inherit gives a move the memory of a dead range with a chunk of just its size, which is not wanted
// soon: to release memory of another size and to create some takes longer, and the driver clears what
// is released with the engine that copies in (bench/results/vmm-create.json: 0.16 ms for 64 MiB).
func (r *reclaimer) inherit(m *Move, which reclaiming) bool {
	r.beginSearch()
	for {
		g := r.nextDead(m.Chunk.Bytes, which)
		if g == nil || g.chunkOf(m.Chunk.Bytes) < 0 || r.wantedAt(g) <= r.History.Now()+lateOps {
			return false
		}
		if g.passed = r.searches; r.recall(g) {
			r.unmapDead(m, g, m.Chunk.Bytes)
			r.suspend(m)
			return true
		}
	}
}

// unwanted says whether nothing that comes soon takes memory of a size.
func (r *reclaimer) unwanted(size int64) bool {
	if len(r.plan.wanted[size]) > len(r.dead.bySize[size]) {
		return false
	}
	of := func(t *tensor) bool { return t.chunks[0].bytes == size }
	return !slices.ContainsFunc(r.plan.makes, of) && !slices.ContainsFunc(r.plan.fetch, of)
}

// releaseSpares has a move release spare memory of some sizes, and answers what it still lacks of short bytes.
func (r *reclaimer) releaseSpares(m *Move, short int64, which func(size int64) bool) int64 {
	handles, dropped := r.physical.drop(short, which)
	m.Release = append(m.Release, handles...)
	m.releasing += dropped
	return short - dropped
}

// unmapAll takes dead memory for a move until it lacks nothing any more, and answers what it still lacks.
func (r *reclaimer) unmapAll(m *Move, dead []*tensor, short int64) int64 {
	for _, g := range dead {
		if short > 0 {
			short = r.unmapDead(m, g, short)
		}
	}
	return short
}

// pick chooses dead ranges with up to so many bytes, or the first that make more, for a move that needs memory in one
// chunk, and makes sure that the job does not take them again.
func (r *reclaimer) pick(chunk, bytes int64, which reclaiming) (dead []*tensor, found int64) {
	for found < bytes {
		g := r.nextDead(chunk, which)
		if g == nil {
			break
		}
		if g.passed = r.searches; !r.recall(g) {
			r.notRecalled++
			continue
		}
		dead = append(dead, g)
		r.picked[g.size]++
		found += g.deviceBytes()
	}
	return dead, found
}

func (r *reclaimer) beginSearch() {
	r.searches++
	r.notRecalled = 0
	clear(r.picked)
}

// suspend enters what a move is to unmap and release, until it is submitted.
func (r *reclaimer) suspend(m *Move) {
	r.physical.releasing += m.releasing
	r.physical.going += m.going()
}

// trim gives spare and dead memory back, at least bytes of it if there is that much.
func (r *reclaimer) trim(bytes int64) *Move {
	m := &Move{Kind: MoveTrim}
	m.Release, m.releasing = r.physical.drop(bytes, anySize)
	r.beginSearch()
	for short := bytes - m.releasing; short > 0; {
		g := r.nextDead(0, anyIdle)
		if g == nil {
			break
		}
		if g.passed = r.searches; r.recall(g) {
			short = r.unmapDead(m, g, short)
		}
	}
	if m.releasing == 0 && len(m.dead) == 0 {
		return nil
	}
	r.suspend(m)
	return m
}

// EmptyCache has everything given back that is free: spare handles, and dead ranges that nothing
// uses any more. What launches wait for comes before. While something is off the device, and would take that memory in
// a moment, only the ranges go that no coming allocation wants: many jobs empty their cache in every iteration.
func (r *reclaimer) EmptyCache() {
	r.emptying = true
	r.Happened()
}

// Emptying says whether some of that is still to be done.
func (r *reclaimer) Emptying() bool { return r.emptying || r.empties > 0 }

// empty is the next move for EmptyCache. It does not take all at once, for who waits for
// the worker would wait for all of it to be unmapped.
func (r *reclaimer) empty() *Move {
	const most = 64 // mappings
	m := &Move{Kind: MoveTrim, empties: true}
	swapping := r.stats.HostBytes > r.kept.bytes
	if !swapping {
		m.Release, m.releasing = r.physical.drop(r.physical.spares, anySize)
	}
	for i := 0; i < len(r.dead.order) && len(m.Unmap) < most; {
		g := r.dead.order[i]
		if !r.idle(g) || swapping && r.wantedAt(g) != correlate.Never || !r.recall(g) {
			i++
			continue
		}
		r.unmapDead(m, g, math.MaxInt64) // which takes it out of order
	}
	if m.releasing == 0 && len(m.dead) == 0 {
		r.emptying = false
		return nil
	}
	r.empties++
	r.suspend(m)
	return m
}

// unmapDead takes a dead tensor's memory for a move that lacks short bytes, and
// answers what it still lacks.
func (r *reclaimer) unmapDead(m *Move, g *tensor, short int64) int64 {
	r.dead.remove(g)
	r.stats.Reclaims++
	given := -1 // the chunk whose memory the move takes over
	if m.Kind != MoveTrim && m.Handle == 0 && short > 0 {
		if given = g.chunkOf(m.Chunk.Bytes); given >= 0 && len(g.chunks) == 1 && r.mapsMuch() {
			r.lend(m, g)
			return 0
		} else if given >= 0 {
			m.Handle, short = g.chunks[given].handle, 0
		}
	}
	m.dead = append(m.dead, g)
	for i := range g.chunks {
		c := &g.chunks[i]
		if c.where != onDevice && c.where != inPlace {
			continue
		}
		x := Mapping{g.rangeOf(c), c.handle}
		m.Unmap = append(m.Unmap, x)
		if c.where == inPlace {
			m.Release = append(m.Release, c.handle)
			r.placed -= c.bytes
			c.where, c.handle = blank, 0
			continue
		}
		r.physical.mapped -= c.bytes
		switch {
		case i == given:
		case short > 0:
			r.unalias(m, c.handle)
			m.Release = append(m.Release, c.handle)
			m.releasing += c.bytes
			short -= c.bytes
		default:
			m.keep = append(m.keep, x)
			m.releasing += c.bytes
		}
		c.where, c.handle = blank, 0
	}
	return short
}

// reclaimable says whether so many bytes of dead memory may go.
func (r *reclaimer) reclaimable(bytes int64, which reclaiming) bool {
	if bytes > r.dead.bytes {
		return false
	}
	for size, l := range r.dead.bySize {
		may := len(l)
		if which == surplusOnly {
			may -= len(r.plan.wanted[size])
		}
		for i := 0; i < len(l) && may > 0 && bytes > 0; i++ {
			if r.idle(l[i]) {
				bytes -= size
				may--
			}
		}
	}
	for _, g := range r.dead.partial {
		if bytes > 0 && r.idle(g) {
			bytes -= g.deviceBytes()
		}
	}
	return bytes <= 0
}

// wantedAt is the position of the coming allocation that a dead range would serve; Never when there is none, as far as is looked.
func (r *reclaimer) wantedAt(g *tensor) int64 {
	if !g.whole() {
		return correlate.Never
	}
	return r.sizeWantedAt(g.size, len(r.dead.bySize[g.size]))
}

// sizeWantedAt is the same of any whole range of a size of which there are so many.
func (r *reclaimer) sizeWantedAt(size int64, ranges int) int64 {
	wanted, i := r.plan.wanted[size], max(ranges-1, 0)
	if i >= len(wanted) {
		return correlate.Never
	}
	return wanted[i]
}

// nextDead is the dead tensor whose memory goes next: of those that are not wanted
// soon one with a chunk that fits, or else the largest, for a small one takes as long to
// unmap, and to map again; when all are wanted soon, the one that is so last. Of several the one that died first.
func (r *reclaimer) nextDead(bytes int64, which reclaiming) *tensor {
	var fits, largest, last *tensor
	var lastAt int64
	soon := r.History.Now() + lateOps
	look := func(l []*tensor, at int64, several bool) {
		first := true
		for _, g := range l {
			if g.passed == r.searches || !r.idle(g) {
				continue
			}
			if at <= soon {
				if last == nil || at > lastAt || at == lastAt && g.death < last.death {
					last, lastAt = g, at
				}
				return
			}
			if first && (largest == nil || g.size > largest.size || g.size == largest.size && g.death < largest.death) {
				largest = g
			}
			if g.chunkOf(bytes) >= 0 {
				if fits == nil || g.death < fits.death {
					fits = g
				}
				return
			}
			if first = false; !several {
				return
			}
		}
	}
	for size, l := range r.dead.bySize {
		if at := r.sizeWantedAt(size, len(l)-r.picked[size]); which == anyIdle || at == correlate.Never {
			look(l, at, r.dead.several[size] > 0)
		}
	}
	for i := range r.dead.partial {
		look(r.dead.partial[i:i+1], correlate.Never, false)
	}
	switch {
	case fits != nil:
		return fits
	case largest != nil:
		return largest
	}
	return last
}

// reuse finds a dead range of the size whose memory is mapped and may be used by
// the stream: the stream's own, as its work is in order, or one that is idle.
func (r *reclaimer) reuse(size int64, stream int) *tensor {
	l := r.dead.bySize[size]
	for i := len(l) - 1; i >= 0; i-- {
		if g := l[i]; r.follows(g, stream) && r.recall(g) {
			r.dead.remove(g)
			return g
		}
	}
	return nil
}
