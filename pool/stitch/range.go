package stitch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
)

// Range is one stretch of addresses over chunks of the pool, for a user that
// decides itself what lies where in it: a plan. It is made in three steps, so that
// its mappings cost no allocation any time: [Pool.Prepare] chooses chunks that are
// free, [Range.Map] maps them, without the pool's lock and while allocations come
// and go in them, and [Pool.Activate] takes them, at a moment when they are all
// free again. Live allocations never move.
type Range struct {
	pool     *Pool
	base     cuda.Ptr
	bytes    int64
	chunks   []*chunk
	parts    []*block        // active: they hold the memory, by address
	gone     map[*chunk]bool // no longer part of it
	mapped   bool
	unmapped int64 // bytes that are gone from its addresses
	broken   bool  // a chunk could not be mapped: it can only be closed
}

// Base and Bytes are the range's addresses; they are valid once it is mapped.
func (r *Range) Base() cuda.Ptr { return r.base }

// Bytes is the size of the range, in chunks.
func (r *Range) Bytes() int64 { return r.bytes }

// Prepare chooses free chunks for a range, those of the largest handles first, and
// creates what is missing if that is not too much. Until the range is closed they
// are not given back.
func (p *Pool) Prepare(bytes int64, stream uint64, mostCreated int64) (*Range, error) {
	a, err := p.arenaFor(smallBytes + 1)
	if err != nil {
		return nil, err
	}
	if err := p.driver.BindThread(); err != nil {
		return nil, err
	}
	chunks, have := a.freeChunks(stream)
	if have < bytes {
		if bytes-have > mostCreated {
			return nil, fmt.Errorf("%d bytes of the %d it needs are free, and at most %d may be new", have, bytes, mostCreated)
		}
		h := a.roomForNew(bytes - have)
		if h == nil {
			return nil, fmt.Errorf("there are no addresses for the %d bytes that are missing of %d", bytes-have, bytes)
		}
		if _, err := a.fill(h, roundUp(bytes-have, pageBytes), stream); err != nil {
			return nil, err
		}
		chunks, _ = a.freeChunks(stream)
	}
	r := &Range{pool: p, gone: map[*chunk]bool{}}
	r.choose(chunks, bytes)
	for _, c := range r.chunks {
		c.pinned++
	}
	return r, nil
}

// freeChunks are those that are free as a whole for a stream.
func (a *arena) freeChunks(stream uint64) (chunks []*chunk, bytes int64) {
	for _, b := range a.usable(stream) {
		a.whole(b, func(c *chunk) bool {
			chunks = append(chunks, c)
			bytes += c.bytes
			return true
		})
	}
	return chunks, bytes
}

// choose takes chunks for so many bytes, the largest first.
func (r *Range) choose(chunks []*chunk, bytes int64) {
	slices.SortStableFunc(chunks, func(a, b *chunk) int { return cmp.Compare(b.bytes, a.bytes) })
	take := func(c *chunk) {
		r.chunks = append(r.chunks, c)
		r.bytes += c.bytes
	}
	var passed []*chunk
	for _, c := range chunks {
		// A large handle for a small rest would waste most of itself.
		if left := bytes - r.bytes; left > 0 && c.bytes <= roundUp(left, pageBytes) {
			take(c)
		} else {
			passed = append(passed, c)
		}
	}
	for i := len(passed) - 1; i >= 0 && r.bytes < bytes; i-- { // no small enough handle is left: the smallest
		take(passed[i])
	}
}

// Map maps the range. It needs no lock, and no other call for the range may run meanwhile.
func (r *Range) Map() error {
	d := r.pool.driver
	if err := d.BindThread(); err != nil {
		return err
	}
	base, err := mapAll(d, r.chunks, r.bytes)
	if err != nil {
		return fmt.Errorf("the driver does not map a range of %d bytes: %w", r.bytes, err)
	}
	r.base, r.mapped = base, true
	return nil
}

// mostReplaced is how many chunks of a range may be exchanged when it is taken; at
// some 50 us each.
const mostReplaced = 64

// Activate takes the range's memory for work on a stream. Chunks that are in use,
// or in another stream's order, are exchanged for others that are free; when there
// are too many of them it says no and takes nothing.
func (p *Pool) Activate(r *Range, stream uint64) bool {
	if !r.mapped || r.broken || r.parts != nil || !p.replaceBusy(r, stream) {
		return false
	}
	usable := p.large.usable(stream)
	slices.SortFunc(usable, func(a, b *block) int { return cmp.Compare(a.base, b.base) })
	chunks := slices.Clone(r.chunks)
	slices.SortFunc(chunks, func(a, b *chunk) int { return cmp.Compare(a.at, b.at) })
	var takes []piece
	for i, k := 0, 0; i < len(chunks); {
		base := p.large.base + cuda.Ptr(chunks[i].at)
		end := base
		for ; i < len(chunks) && p.large.base+cuda.Ptr(chunks[i].at) == end; i++ {
			end += cuda.Ptr(chunks[i].bytes)
		}
		for k < len(usable) && usable[k].end() <= base {
			k++
		}
		if k == len(usable) || usable[k].base > base || usable[k].end() < end {
			return false
		}
		takes = append(takes, piece{usable[k], base, end})
	}
	r.parts = holdAll(takes)
	return true
}

// replaceBusy exchanges the chunks of a range that cannot be taken now.
func (p *Pool) replaceBusy(r *Range, stream uint64) bool {
	a := p.large
	spare := map[*chunk]bool{}
	free, _ := a.freeChunks(stream)
	for _, c := range free {
		spare[c] = true
	}
	var busy []int
	at := make([]cuda.Ptr, len(r.chunks))
	next := r.base
	for i, c := range r.chunks {
		if at[i] = next; !spare[c] {
			busy = append(busy, i)
		}
		next += cuda.Ptr(c.bytes)
		delete(spare, c)
	}
	if len(busy) > mostReplaced {
		return false
	}
	others := slices.SortedFunc(maps.Keys(spare), func(a, b *chunk) int { return cmp.Compare(a.at, b.at) })
	var with []*chunk
	for _, i := range busy {
		k := slices.IndexFunc(others, func(c *chunk) bool { return c.bytes == r.chunks[i].bytes })
		if k < 0 {
			return false
		}
		with = append(with, others[k])
		others = slices.Delete(others, k, k+1)
	}
	for k, i := range busy {
		if !p.exchange(r, i, at[i], with[k]) {
			return false
		}
	}
	return true
}

// exchange maps another chunk in the place of one. Nothing has used the addresses yet.
func (p *Pool) exchange(r *Range, i int, at cuda.Ptr, with *chunk) bool {
	old, d := r.chunks[i], p.driver
	if d.BindThread() != nil || d.Unmap(at, old.bytes) != nil {
		return false
	}
	for _, c := range []*chunk{with, old} { // the old one again when the driver refuses
		if d.Map(at, c.bytes, c.handle) != nil {
			continue
		}
		if d.SetAccess(at, c.bytes) == nil {
			old.pinned--
			c.pinned++
			r.chunks[i] = c
			return c == with
		}
		_ = d.Unmap(at, c.bytes) // it was mapped a moment ago
	}
	r.broken, r.gone[old] = true, true
	old.pinned--
	r.unmapped += old.bytes
	return false
}

// Shed frees the chunks of an active range for which keep says no, in a stream's
// order; their addresses must not be used again. It is how a range that is given up
// returns most of its memory while something in it is still live.
func (p *Pool) Shed(r *Range, stream uint64, keep func(offset, bytes int64) bool) {
	keeps := map[*chunk]bool{}
	at := int64(0)
	for _, c := range r.chunks {
		if !r.gone[c] {
			keeps[c] = keep(at, c.bytes)
			if !keeps[c] {
				r.leave(c, at, stream)
			}
		}
		at += c.bytes
	}
	a := p.large
	var kept []*block
	for _, b := range r.parts {
		for base, end := b.base, b.end(); base < end; {
			k, to := keeps[a.at(base)], base
			for to < end && keeps[a.at(to)] == k {
				to += cuda.Ptr(a.at(to).bytes)
			}
			b = a.cut(b, base, to)
			rest := b.next
			if k {
				kept = append(kept, b)
			} else {
				b.stream = stream
				p.freeBlock(b)
			}
			b, base = rest, to
		}
	}
	r.parts = kept
	for i := range p.stitches.retired { // what is freed counts only now
		if x := &p.stitches.retired[i]; x.owner == r {
			x.freed = p.stream(stream).frees
		}
	}
}

// leave takes a chunk out of a range's addresses, once what is queued on the stream is done.
func (r *Range) leave(c *chunk, at int64, stream uint64) {
	r.gone[c] = true
	c.pinned--
	c.views++
	r.pool.stitches.retired = append(r.pool.stitches.retired,
		retired{base: r.base + cuda.Ptr(at), chunks: []*chunk{c}, stream: stream, freed: r.pool.stream(stream).frees, owner: r})
}

// Close gives the range up. Nothing may be live in it any more, and what was freed
// in it was freed in the order of the given stream.
func (p *Pool) Close(r *Range, stream uint64) {
	if r.mapped {
		p.Shed(r, stream, func(int64, int64) bool { return false })
	} else {
		for _, c := range r.chunks {
			c.pinned--
		}
	}
}
