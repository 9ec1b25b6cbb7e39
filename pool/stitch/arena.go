package stitch

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
)

// chunk is physical memory: one handle, mapped whole in its arena and in any
// number of stitched ranges.
type chunk struct {
	handle cuda.Handle
	bytes  int64
	arena  *arena
	at     int64 // offset in the arena
	pinned int   // Ranges being prepared: it must not be released
	views  int   // stitched ranges and Ranges that map it
}

// arena is address space that is filled with chunks, and cut into blocks.
type arena struct {
	pool     *Pool
	base     cuda.Ptr
	bytes    int64 // address space
	small    bool
	pages    []*chunk // by pageBytes of offset, up to the furthest ever used
	first    *block
	tail     *block // the hole at the end
	free     map[uint64]*sizeIndex
	holes    sizeIndex
	freeSize int64
	low      int64 // least freeSize since TrimUnused
}

func (p *Pool) newArena(small bool) (*arena, error) {
	bytes := p.config.ReserveBytes
	base, err := p.driver.AddressReserve(bytes, 0, 0)
	for err != nil && bytes > p.config.ReserveBytes/8 && bytes > 2*pageBytes { // the driver's address space is not ours alone
		bytes = roundDown(bytes/2, pageBytes)
		base, err = p.driver.AddressReserve(bytes, 0, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("addresses for %d bytes: %w", bytes, err)
	}
	a := &arena{pool: p, base: base, bytes: bytes, small: small, free: map[uint64]*sizeIndex{}}
	a.first = &block{base: base, bytes: bytes, arena: a, state: hole}
	a.tail = a.first
	a.holes.insert(a.first)
	return a, nil
}

func (a *arena) list(stream uint64) *sizeIndex {
	l := a.free[stream]
	if l == nil {
		l = &sizeIndex{}
		a.free[stream] = l
	}
	return l
}

// index enters a block where its state wants it; unindex undoes that.
func (a *arena) index(b *block) {
	switch b.state {
	case free:
		a.list(b.stream).insert(b)
		a.freeSize += b.bytes
	case hole:
		a.holes.insert(b)
	}
}

func (a *arena) unindex(b *block) {
	switch b.state {
	case free:
		a.list(b.stream).remove(b)
		a.freeSize -= b.bytes
	case hole:
		a.holes.remove(b)
	}
}

// cut makes the block of [base, end) out of an unindexed block that holds it.
// What is left on either side keeps its state and is indexed.
func (a *arena) cut(b *block, base, end cuda.Ptr) *block {
	if base > b.base {
		l := a.pool.newBlock()
		*l = block{base: b.base, bytes: int64(base - b.base), arena: a, prev: b.prev, next: b, state: b.state, stream: b.stream, freed: b.freed}
		if b.prev != nil {
			b.prev.next = l
		} else {
			a.first = l
		}
		b.prev, b.base, b.bytes = l, base, int64(b.end()-base)
		a.index(l)
	}
	if end < b.end() {
		r := a.pool.newBlock()
		*r = block{base: end, bytes: int64(b.end() - end), arena: a, prev: b, next: b.next, state: b.state, stream: b.stream, freed: b.freed}
		if b.next != nil {
			b.next.prev = r
		} else {
			a.tail = r
		}
		b.next, b.bytes = r, int64(end-b.base)
		a.index(r)
	}
	return b
}

// settle indexes a block whose state has changed, joined with its like neighbours.
func (a *arena) settle(b *block) *block {
	if n := b.next; n != nil && joins(b, n) {
		a.unindex(n)
		a.join(b, n)
	}
	if p := b.prev; p != nil && joins(p, b) {
		a.unindex(p)
		a.join(p, b)
		b = p
	}
	a.index(b)
	return b
}

// joins says whether two neighbours can be one block.
func joins(l, r *block) bool {
	return l.state == r.state && (l.state == hole || l.state == free && l.stream == r.stream)
}

// join makes l of l and r; both are unindexed.
func (a *arena) join(l, r *block) {
	l.freed = max(l.freed, r.freed)
	l.bytes += r.bytes
	l.next = r.next
	if r.next != nil {
		r.next.prev = l
	} else {
		a.tail = l
	}
	a.pool.dropBlock(r)
}

// take makes part of a free block used.
func (a *arena) take(b *block, base, end cuda.Ptr) *block {
	a.unindex(b)
	b = a.cut(b, base, end)
	b.state = used
	return b
}

// at is the chunk of an address; nil in a hole.
func (a *arena) at(p cuda.Ptr) *chunk {
	if i := int64(p-a.base) / pageBytes; i < int64(len(a.pages)) {
		return a.pages[i]
	}
	return nil
}

// whole visits the chunks that lie entirely in a block, in order, until visit says no.
func (a *arena) whole(b *block, visit func(*chunk) bool) {
	for p := b.base; p < b.end(); {
		c := a.at(p)
		base := a.base + cuda.Ptr(c.at)
		p = base + cuda.Ptr(c.bytes)
		if base >= b.base && p <= b.end() && !visit(c) {
			return
		}
	}
}

// grow creates physical memory at the end of a free last block, or in a hole that
// is large enough, so that a stream has a free block of so many bytes.
func (a *arena) grow(bytes int64, stream uint64) (*block, error) {
	h, have := a.roomFor(bytes, stream)
	if h == nil {
		return nil, fmt.Errorf("pool: the %d bytes of addresses of an arena are spent", a.bytes)
	}
	return a.fill(h, roundUp(bytes-have, pageBytes), stream)
}

// roomFor is the hole to grow into, and the usable free bytes before it.
func (a *arena) roomFor(bytes int64, stream uint64) (h *block, have int64) {
	h = a.holes.fit(roundUp(bytes, pageBytes))
	if h == nil || h == a.tail {
		// The last hole goes on where the arena ends, and is the largest.
		if t := a.tail; t.state == hole {
			if f := t.prev; f != nil && f.state == free && f.stream == stream {
				have = f.bytes
			}
			if t.bytes >= roundUp(bytes-have, pageBytes) {
				return t, have
			}
		}
		return nil, 0
	}
	return h, 0
}

// roomForNew is a hole for so many new bytes; nil when there is none.
func (a *arena) roomForNew(bytes int64) *block { return a.holes.fit(roundUp(bytes, pageBytes)) }

// fill creates physical memory in the first bytes of a hole, as free memory of a stream.
func (a *arena) fill(h *block, bytes int64, stream uint64) (*block, error) {
	p := a.pool
	if bytes > p.mostCreated {
		return nil, ErrTooMuchNew
	}
	if err := p.budget.Take(bytes); err != nil {
		return nil, err
	}
	chunks, err := p.create(h.base, bytes)
	if err != nil {
		p.budget.Give(bytes)
		return nil, err
	}
	a.unindex(h)
	b := a.cut(h, h.base, h.base+cuda.Ptr(bytes))
	for _, c := range chunks {
		c.arena, c.at = a, c.at+int64(b.base-a.base)
		a.setPages(c, c)
	}
	p.stats.ReservedBytes += bytes
	p.stats.ReservedPeakBytes = max(p.stats.ReservedPeakBytes, p.stats.ReservedBytes)
	b.state, b.stream, b.freed = free, stream, 0
	return a.settle(b), nil
}

func (a *arena) setPages(c, to *chunk) {
	first, n := c.at/pageBytes, c.bytes/pageBytes
	for int64(len(a.pages)) < first+n {
		a.pages = append(a.pages, nil)
	}
	for i := range n {
		a.pages[first+i] = to
	}
}

// create makes physical memory, maps it at an address and gives access to it, once
// for the whole range. The chunks' offsets are from the address.
func (p *Pool) create(base cuda.Ptr, bytes int64) (chunks []*chunk, err error) {
	if err := p.driver.BindThread(); err != nil {
		return nil, err
	}
	var at, mapped int64
	defer func() {
		if err == nil {
			return
		}
		if mapped > 0 {
			_ = p.driver.Unmap(base, mapped)
		}
		for _, c := range chunks {
			_ = p.driver.MemRelease(c.handle)
		}
		chunks = nil
	}()
	for size := chunkBytes(bytes); at < bytes; {
		for size > bytes-at {
			size /= 2
		}
		size = max(size, pageBytes)
		h, err := p.driver.MemCreate(size, cuda.Device)
		if err != nil {
			return chunks, err
		}
		chunks = append(chunks, &chunk{handle: h, bytes: size, at: at})
		if err := p.driver.Map(base+cuda.Ptr(at), size, h); err != nil {
			return chunks, err
		}
		at += size
		mapped = at
	}
	p.stats.Created += int64(len(chunks))
	return chunks, p.driver.SetAccess(base, bytes)
}
