package stitch

import (
	"github.com/penstock-gpu/penstock/cuda"
)

// EmptyCache gives free physical memory back, by whole chunks, and returns the
// bytes. It waits for queued work that may still use that memory.
func (p *Pool) EmptyCache() (released int64) {
	p.waitForAll()
	for p.stitches.lru.Len() > 0 {
		p.stitches.evict()
	}
	p.stitches.collect(true)
	for _, a := range []*arena{p.small, p.large} {
		if a != nil {
			released += a.release(1<<62, true)
		}
	}
	return released
}

// Trim gives back so much free physical memory as can be had without waiting.
func (p *Pool) Trim(bytes int64) (released int64) {
	p.stitches.collect(false)
	for _, a := range []*arena{p.large, p.small} {
		if a != nil && released < bytes {
			released += a.release(bytes-released, false)
		}
	}
	return released
}

// TrimUnused gives back memory that was free all the time since the last call, at
// most so many bytes and none that would have to be waited for.
func (p *Pool) TrimUnused(most int64) (released int64) {
	for _, a := range []*arena{p.small, p.large} {
		if a == nil {
			continue
		}
		if n := min(a.low, most-released); n >= pageBytes {
			released += a.release(n, false)
		}
		a.low = a.freeSize
	}
	return released
}

// releaseOthers gives back the free chunks of the other arena.
func (p *Pool) releaseOthers(than *arena) int64 {
	other := p.small
	if than == p.small {
		other = p.large
	}
	if other == nil {
		return 0
	}
	return other.release(1<<62, true)
}

// release gives free chunks back, those at high addresses first, until so many bytes
// are gone. Chunks that a range maps stay.
func (a *arena) release(bytes int64, wait bool) (released int64) {
	p := a.pool
	if p.driver.BindThread() != nil {
		return 0
	}
	a.unite(wait)
	for b := a.tail; b != nil && released < bytes; {
		prev := b.prev
		if b.state == free && p.done(b.stream, b.freed, wait) {
			released += a.releaseBlock(b, bytes-released)
		}
		b = prev
	}
	p.stats.ReservedBytes -= released
	p.budget.Give(released)
	return released
}

// unite makes free memory of different streams one stream's, as far as their work
// is done with it: a chunk can only go when all of it is in one block.
func (a *arena) unite(wait bool) {
	most, bytes := uint64(0), int64(-1)
	for id, l := range a.free {
		n := int64(0)
		for _, b := range l.blocks {
			n += b.bytes
		}
		if n > bytes || n == bytes && id < most {
			most, bytes = id, n
		}
	}
	a.pool.adopt(a, most, wait)
}

// releaseBlock gives back whole chunks of a free block.
func (a *arena) releaseBlock(b *block, bytes int64) (released int64) {
	var chunks []*chunk
	a.whole(b, func(c *chunk) bool {
		if c.views == 0 && c.pinned == 0 {
			chunks = append(chunks, c)
		}
		return true
	})
	d := a.pool.driver
	for i := len(chunks) - 1; i >= 0 && released < bytes; i-- {
		c := chunks[i]
		base := a.base + cuda.Ptr(c.at)
		if d.Unmap(base, c.bytes) != nil {
			continue
		}
		_ = d.MemRelease(c.handle) // the last reference: fails only while the process ends
		a.setPages(c, nil)
		a.unindex(b)
		h := a.cut(b, base, base+cuda.Ptr(c.bytes))
		left := h.prev
		h.state, h.stream, h.freed = hole, 0, 0
		a.settle(h)
		released += c.bytes
		if b = left; b == nil {
			break
		}
	}
	return released
}
