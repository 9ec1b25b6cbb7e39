package stitch

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/penstock-gpu/penstock/cuda"
)

// stitched is address space over chunks that lie scattered in an arena, where they
// stay mapped. In use, the memory is held by used blocks of the arena.
type stitched struct {
	base   cuda.Ptr
	bytes  int64
	chunks []*chunk
	parts  []*block // in use: they hold the memory
	stream uint64   // of the last use
	freed  uint64   // the stream's count of frees then
}

// stitches keeps the stitched ranges.
type stitches struct {
	pool    *Pool
	lru     *simplelru.LRU[cuda.Ptr, *stitched] // those not in use
	bySize  []*stitched                         // the same, by size and then address
	retired []retired                           // to be unmapped when their last use is over
}

func (t *stitches) init(p *Pool) {
	t.pool = p
	t.lru, _ = simplelru.NewLRU[cuda.Ptr, *stitched](math.MaxInt, nil) // fails for sizes below 1 only
}

func (t *stitches) position(bytes int64, base cuda.Ptr) int {
	return sort.Search(len(t.bySize), func(i int) bool {
		s := t.bySize[i]
		return s.bytes > bytes || s.bytes == bytes && s.base >= base
	})
}

// reuse takes an existing range whose memory is free, the smallest that is large
// enough; nil when there is none. Only the memory that the request needs is taken.
func (t *stitches) reuse(want int64, stream uint64) *block {
	if len(t.bySize) == 0 {
		return nil
	}
	most := int64(float64(want) * t.pool.config.ReuseRatio)
	var usable []*block
	for i := t.position(want, 0); i < len(t.bySize) && t.bySize[i].bytes <= most; i++ {
		s := t.bySize[i]
		if usable == nil {
			usable = t.pool.large.usable(stream)
			slices.SortFunc(usable, func(a, b *block) int { return cmp.Compare(a.base, b.base) })
		}
		if takes, ok := s.available(want, usable); ok {
			t.forget(s)
			t.pool.stats.StitchReuses++
			return t.take(s, takes, stream)
		}
	}
	return nil
}

// piece is memory within one free block.
type piece struct {
	block     *block
	base, end cuda.Ptr
}

// available says whether the memory behind the first bytes is free, and which it
// is. usable are free blocks in order of address.
func (s *stitched) available(want int64, usable []*block) (takes []piece, ok bool) {
	for i := 0; want > 0; {
		c := s.chunks[i]
		base := c.arena.base + cuda.Ptr(c.at)
		end := base
		for ; i < len(s.chunks) && want > 0 && c.arena.base+cuda.Ptr(s.chunks[i].at) == end; i++ {
			n := min(want, s.chunks[i].bytes)
			end += cuda.Ptr(n)
			want -= n
			if n < s.chunks[i].bytes {
				break
			}
		}
		k := sort.Search(len(usable), func(k int) bool { return usable[k].end() > base })
		if k == len(usable) || usable[k].base > base || usable[k].end() < end {
			return nil, false
		}
		takes = append(takes, piece{usable[k], base, end})
	}
	return takes, true
}

// usable are the free blocks that a stream may use now.
func (a *arena) usable(stream uint64) []*block {
	if l := a.free[stream]; l != nil {
		return slices.Clone(l.blocks)
	}
	return nil
}

// worthwhile is the least part of a request that stitching must save of physical
// memory, in comparison with growing the arena for it.
const worthwhile = 16

// make stitches free chunks, those of the largest blocks first, and creates what
// is missing. It returns nil when that would save too little, or does not work.
func (t *stitches) make(a *arena, want int64, stream uint64) (*block, error) {
	var runs []run
	var have int64
	for _, b := range a.usable(stream) {
		if r := a.runOf(b); r.bytes > 0 {
			runs = append(runs, r)
			have += r.bytes
		}
	}
	_, beside := a.roomFor(want, stream)
	if min(have, want)-beside < max(want/worthwhile, pageBytes) {
		return nil, nil
	}
	if have < want {
		h := a.roomForNew(want - have)
		if h == nil {
			return nil, nil
		}
		b, err := a.fill(h, roundUp(want-have, pageBytes), stream)
		if err != nil {
			return nil, err
		}
		// It may have joined a free block that was gathered before.
		r := a.runOf(b)
		runs = slices.DeleteFunc(runs, func(x run) bool { return x.base >= r.base && x.base < r.base+cuda.Ptr(r.bytes) })
		runs = append(runs, r)
	}
	slices.SortFunc(runs, func(a, b run) int {
		if c := cmp.Compare(b.bytes, a.bytes); c != 0 {
			return c
		}
		return cmp.Compare(a.base, b.base)
	})
	s, takes := &stitched{}, []piece(nil)
	for _, r := range runs {
		if s.bytes >= want {
			break
		}
		x := piece{block: r.block, base: r.base, end: r.base}
		a.whole(r.block, func(c *chunk) bool {
			s.chunks = append(s.chunks, c)
			n := min(c.bytes, want-s.bytes)
			s.bytes += c.bytes
			x.end += cuda.Ptr(n)
			return s.bytes < want
		})
		takes = append(takes, x)
	}
	if !t.mapChunks(s) {
		return nil, nil
	}
	t.pool.stats.Stitches++
	t.pool.stats.StitchedHandles += int64(len(s.chunks))
	return t.take(s, takes, stream), nil
}

// run is the whole chunks of a free block.
type run struct {
	block *block
	base  cuda.Ptr
	bytes int64
}

func (a *arena) runOf(b *block) run {
	r := run{block: b}
	a.whole(b, func(c *chunk) bool {
		if r.bytes == 0 {
			r.base = a.base + cuda.Ptr(c.at)
		}
		r.bytes += c.bytes
		return true
	})
	return r
}

// take holds the memory of a range that is to be used.
func (t *stitches) take(s *stitched, takes []piece, stream uint64) *block {
	s.parts = holdAll(takes)
	for _, b := range s.parts {
		b.stitched = s
	}
	return s.parts[0]
}

// holdAll makes pieces of free blocks used, each a block of its own.
func holdAll(takes []piece) (parts []*block) {
	slices.SortFunc(takes, func(a, b piece) int { return cmp.Compare(a.base, b.base) })
	for i, x := range takes {
		b := x.block
		if i > 0 && b == takes[i-1].block {
			b = parts[i-1].next // what the cut before left of it
		}
		parts = append(parts, b.arena.take(b, x.base, x.end))
	}
	return parts
}

// mapChunks gives a range its addresses. When the driver refuses, ranges that are
// not in use are given up for a second attempt.
func (t *stitches) mapChunks(s *stitched) bool {
	base, err := mapAll(t.pool.driver, s.chunks, s.bytes)
	if err != nil {
		for t.lru.Len() > 0 {
			t.evict()
		}
		t.collect(false)
		if base, err = mapAll(t.pool.driver, s.chunks, s.bytes); err != nil {
			return false
		}
	}
	s.base = base
	for _, c := range s.chunks {
		c.views++
	}
	t.pool.stats.StitchedBytes += s.bytes
	return true
}

// mapAll maps chunks one after the other in new addresses.
func mapAll(d Driver, chunks []*chunk, bytes int64) (cuda.Ptr, error) {
	base, err := d.AddressReserve(bytes, 0, 0)
	if err != nil {
		return 0, err
	}
	at := base
	for i, c := range chunks {
		if err = d.Map(at, c.bytes, c.handle); err != nil {
			unmapAll(d, chunks[:i], base)
			_ = d.AddressFree(base, bytes)
			return 0, err
		}
		at += cuda.Ptr(c.bytes)
	}
	if err = d.SetAccess(base, int64(at-base)); err != nil { // once: its cost is by the handle in any case, and by the call besides
		unmapAll(d, chunks, base)
		_ = d.AddressFree(base, bytes)
		return 0, err
	}
	return base, nil
}

// unmapAll takes chunks out of addresses. A mapping can only be undone whole.
func unmapAll(d Driver, chunks []*chunk, base cuda.Ptr) {
	for _, c := range chunks {
		_ = d.Unmap(base, c.bytes) // fails only while the process ends
		base += cuda.Ptr(c.bytes)
	}
}

// idle keeps a range for its next use, and gives up the least recently used ones
// when there is too much address space.
func (t *stitches) idle(s *stitched, stream uint64) {
	s.stream, s.freed = stream, t.pool.stream(stream).frees
	t.lru.Add(s.base, s)
	t.bySize = slices.Insert(t.bySize, t.position(s.bytes, s.base), s)
	for t.pool.stats.StitchedBytes > t.pool.config.SpaceBytes && t.lru.Len() > 0 {
		t.evict()
	}
}

// forget takes a range out of those not in use.
func (t *stitches) forget(s *stitched) {
	t.lru.Remove(s.base)
	i := t.position(s.bytes, s.base)
	t.bySize = slices.Delete(t.bySize, i, i+1)
}

// evict is StitchFree for one range: the memory stays, the addresses go.
func (t *stitches) evict() {
	_, s, ok := t.lru.GetOldest()
	if !ok {
		return
	}
	t.retire(s)
}

// retired is addresses that go when a stream's work is past some free.
type retired struct {
	base   cuda.Ptr
	chunks []*chunk
	stream uint64
	freed  uint64
	owner  *Range // nil: the addresses are freed at once
}

// retire gives a range up, as soon as its last use is over.
func (t *stitches) retire(s *stitched) {
	t.forget(s)
	t.pool.stats.StitchedBytes -= s.bytes
	t.pool.stats.StitchFrees++
	t.retired = append(t.retired, retired{base: s.base, chunks: s.chunks, stream: s.stream, freed: s.freed})
}

// collect unmaps what was retired and is no longer in use.
func (t *stitches) collect(wait bool) {
	t.retired = slices.DeleteFunc(t.retired, func(x retired) bool {
		if !t.pool.done(x.stream, x.freed, wait) {
			return false
		}
		unmapAll(t.pool.driver, x.chunks, x.base)
		bytes := int64(0)
		for _, c := range x.chunks {
			c.views--
			bytes += c.bytes
		}
		if r := x.owner; r == nil {
			_ = t.pool.driver.AddressFree(x.base, bytes)
		} else if r.unmapped += bytes; r.unmapped == r.bytes {
			_ = t.pool.driver.AddressFree(r.base, r.bytes)
		}
		return true
	})
}
