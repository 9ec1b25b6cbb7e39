package stitch

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
)

// Range is one stretch of addresses over chunks of the pool, for a user that
// decides itself what lies where in it: a plan. [Pool.Lend] makes one of free
// memory, whose blocks are in use from then on. Live allocations never move.
type Range struct {
	pool     *Pool
	base     cuda.Ptr
	bytes    int64
	chunks   []*chunk
	parts    []*block        // they hold the memory, by address
	gone     map[*chunk]bool // no longer part of it
	unmapped int64           // bytes that are gone from its addresses
}

// Base is the first of the range's addresses.
func (r *Range) Base() cuda.Ptr { return r.base }

// Bytes is the size of the range, in chunks.
func (r *Range) Bytes() int64 { return r.bytes }

// Lend makes a range of at least so many bytes for work on a stream, of free chunks, those of the
// largest handles first, and creates what is missing if that is not too much. Its time
// is that of mapping: some 25 us a handle.
func (p *Pool) Lend(bytes int64, stream uint64, mostCreated int64) (*Range, error) {
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
	if r.base, err = mapAll(p.driver, r.chunks, r.bytes); err != nil {
		return nil, fmt.Errorf("the driver does not map a range of %d bytes: %w", r.bytes, err)
	}
	for _, c := range r.chunks {
		c.views++
	}
	r.parts = holdAll(a.piecesOf(r.chunks, stream))
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

// piecesOf are the parts of free blocks that chunks occupy.
func (a *arena) piecesOf(chunks []*chunk, stream uint64) (pieces []piece) {
	chunks, usable := slices.Clone(chunks), a.usable(stream)
	slices.SortFunc(usable, func(a, b *block) int { return cmp.Compare(a.base, b.base) })
	slices.SortFunc(chunks, func(a, b *chunk) int { return cmp.Compare(a.at, b.at) })
	for i, k := 0, 0; i < len(chunks); {
		base := a.base + cuda.Ptr(chunks[i].at)
		for usable[k].end() <= base { // each lies in one
			k++
		}
		end := base
		for ; i < len(chunks) && a.base+cuda.Ptr(chunks[i].at) == end && end < usable[k].end(); i++ {
			end += cuda.Ptr(chunks[i].bytes)
		}
		pieces = append(pieces, piece{usable[k], base, end})
	}
	return pieces
}

// Shed frees the chunks of a range for which keep says no, in a stream's
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
	r.pool.stitches.retired = append(r.pool.stitches.retired,
		retired{base: r.base + cuda.Ptr(at), chunks: []*chunk{c}, stream: stream, freed: r.pool.stream(stream).frees, owner: r})
}

// Close gives the range up. Nothing may be live in it any more, and what was freed
// in it was freed in the order of the given stream.
func (p *Pool) Close(r *Range, stream uint64) {
	p.Shed(r, stream, func(int64, int64) bool { return false })
}
