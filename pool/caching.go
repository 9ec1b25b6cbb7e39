package pool

import (
	"fmt"
	"sort"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
)

// Sizes of PyTorch's caching allocator, in bytes.
const (
	minBlockBytes     = 512
	smallBytes        = 1 << 20  // largest request served from small segments
	SmallSegmentBytes = 2 << 20  // segments for small requests, and the smallest of all
	largeSegmentBytes = 20 << 20 // segments for requests under minLargeBytes
	minLargeBytes     = 10 << 20
	largeRoundBytes   = 2 << 20
)

// Source provides segments.
type Source interface {
	Acquire(bytes int64) (cuda.Ptr, error)
	Release(p cuda.Ptr, bytes int64) error
}

// Fences order the reuse of memory after work on other streams.
type Fences interface {
	// Fence marks the present end of a stream's queue.
	Fence(stream uint64) (fence any, err error)
	// Passed says whether the stream has got there, and forgets the fence if so.
	Passed(fence any) bool
}

// block is part of a segment.
type block struct {
	base       cuda.Ptr
	bytes      int64
	requested  int64
	free       bool
	segment    *segment
	prev, next *block // neighbours in the segment
	others     []uint64
	fences     []any
}

// segment is memory from the source.
type segment struct {
	base   cuda.Ptr
	bytes  int64
	stream uint64
	small  bool
	first  *block
}

// freeList holds the free blocks of one pool, by size and then address.
type freeList struct{ blocks []*block }

func (l *freeList) search(bytes int64, base cuda.Ptr) int {
	return sort.Search(len(l.blocks), func(i int) bool {
		b := l.blocks[i]
		return b.bytes > bytes || b.bytes == bytes && b.base >= base
	})
}

func (l *freeList) insert(b *block) {
	i := l.search(b.bytes, b.base)
	l.blocks = append(l.blocks, nil)
	copy(l.blocks[i+1:], l.blocks[i:])
	l.blocks[i] = b
}

func (l *freeList) remove(b *block) {
	i := l.search(b.bytes, b.base)
	l.blocks = append(l.blocks[:i], l.blocks[i+1:]...)
}

type poolKey struct {
	stream uint64
	small  bool
}

// Caching is a caching allocator. See the package comment.
type Caching struct {
	source   Source
	fences   Fences // nil: no stream but the allocation's own ever uses a block
	live     map[cuda.Ptr]*block
	pools    map[poolKey]*freeList
	segments map[cuda.Ptr]*segment
	waiting  []*block // freed, but other streams have not passed their fences
	stats    Stats
}

// Stats counts bytes and calls.
type Stats struct {
	LiveBytes, LivePeakBytes         int64 // as requested
	ReservedBytes, ReservedPeakBytes int64 // in segments
	Allocs, Frees, Retries           int64
}

// NewCaching returns an empty allocator over a source of segments.
func NewCaching(s Source, f Fences) *Caching {
	return &Caching{source: s, fences: f, live: map[cuda.Ptr]*block{}, pools: map[poolKey]*freeList{}, segments: map[cuda.Ptr]*segment{}}
}

func roundUp(x, to int64) int64 { return (x + to - 1) / to * to }

func segmentBytes(bytes int64) int64 {
	switch {
	case bytes <= smallBytes:
		return SmallSegmentBytes
	case bytes < minLargeBytes:
		return largeSegmentBytes
	}
	return roundUp(bytes, largeRoundBytes)
}

func (c *Caching) pool(k poolKey) *freeList {
	l := c.pools[k]
	if l == nil {
		l = &freeList{}
		c.pools[k] = l
	}
	return l
}

// Malloc returns memory for work on a stream. The error is the source's, after
// cached segments were given back and a second attempt failed too.
func (c *Caching) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("pool: cannot allocate %d bytes", bytes)
	}
	c.reclaim()
	want := roundUp(bytes, minBlockBytes)
	key := poolKey{stream, want <= smallBytes}
	l := c.pool(key)
	var b *block
	if i := l.search(want, 0); i < len(l.blocks) {
		b = l.blocks[i]
		l.blocks = append(l.blocks[:i], l.blocks[i+1:]...)
	} else {
		n := segmentBytes(want)
		p, err := c.source.Acquire(n)
		if err != nil {
			c.stats.Retries++
			if c.EmptyCache() == 0 {
				return 0, err
			}
			if p, err = c.source.Acquire(n); err != nil {
				return 0, err
			}
		}
		s := &segment{base: p, bytes: n, stream: stream, small: key.small}
		b = &block{base: p, bytes: n, segment: s}
		s.first = b
		c.segments[p] = s
		c.stats.ReservedBytes += n
		c.stats.ReservedPeakBytes = max(c.stats.ReservedPeakBytes, c.stats.ReservedBytes)
	}
	if rest := b.bytes - want; key.small && rest >= minBlockBytes || !key.small && rest > smallBytes {
		l.insert(b.split(want))
	}
	c.use(b, bytes)
	return b.base, nil
}

// split cuts a free block, of which so many bytes remain, and returns the rest.
func (b *block) split(bytes int64) *block {
	tail := &block{base: b.base + cuda.Ptr(bytes), bytes: b.bytes - bytes, free: true, segment: b.segment, prev: b, next: b.next}
	if b.next != nil {
		b.next.prev = tail
	}
	b.next, b.bytes = tail, bytes
	return tail
}

// use makes a block that is in no free list an allocation.
func (c *Caching) use(b *block, bytes int64) {
	b.free, b.requested = false, bytes
	c.live[b.base] = b
	c.stats.Allocs++
	c.stats.LiveBytes += bytes
	c.stats.LivePeakBytes = max(c.stats.LivePeakBytes, c.stats.LiveBytes)
}

// MallocAt allocates at an address where an allocation of that size was, of memory that is free.
func (c *Caching) MallocAt(p cuda.Ptr, bytes int64) error {
	if bytes <= 0 || p%minBlockBytes != 0 {
		return fmt.Errorf("pool: cannot allocate %d bytes at %#x", bytes, uint64(p))
	}
	c.reclaim()
	want := roundUp(bytes, minBlockBytes)
	b := c.freeAround(p)
	if b == nil || p+cuda.Ptr(want) > b.base+cuda.Ptr(b.bytes) {
		return fmt.Errorf("pool: %d bytes at %#x are not free memory of this pool", want, uint64(p))
	}
	l := c.pool(poolKey{b.segment.stream, b.segment.small})
	l.remove(b)
	if before := int64(p - b.base); before > 0 {
		at := b.split(before)
		l.insert(b)
		b = at
	}
	if b.bytes > want {
		l.insert(b.split(want))
	}
	c.use(b, bytes)
	return nil
}

// freeAround is the free block that an address lies in; nil when there is none.
func (c *Caching) freeAround(p cuda.Ptr) *block {
	for _, s := range c.segments {
		if p < s.base || p >= s.base+cuda.Ptr(s.bytes) {
			continue
		}
		for b := s.first; b != nil; b = b.next {
			if p < b.base+cuda.Ptr(b.bytes) {
				if b.free {
					return b
				}
				return nil
			}
		}
	}
	return nil
}

// Live are the live allocations, by address, of the sizes that were asked for.
func (c *Caching) Live() []cuda.Range {
	all := make([]cuda.Range, 0, len(c.live))
	for _, b := range c.live {
		all = append(all, cuda.Range{Base: b.base, Bytes: b.requested})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Base < all[j].Base })
	return all
}

// Owns says whether p is a live allocation of this allocator.
func (c *Caching) Owns(p cuda.Ptr) bool { return c.live[p] != nil }

// Bytes is the size of the block behind a live allocation; 0 when there is none.
func (c *Caching) Bytes(p cuda.Ptr) int64 {
	if b := c.live[p]; b != nil {
		return b.bytes
	}
	return 0
}

// Containing is the block behind a live allocation that an address lies in.
func (c *Caching) Containing(p cuda.Ptr) (cuda.Range, bool) {
	for _, b := range c.live {
		if r := (cuda.Range{Base: b.base, Bytes: b.bytes}); p >= r.Base && p < r.End() {
			return r, true
		}
	}
	return cuda.Range{}, false
}

// Segments are all the memory that it has, in no order.
func (c *Caching) Segments() (all []segments.Segment) {
	for _, x := range c.segments {
		s := segments.Segment{Address: x.base, Stream: x.stream, Small: x.small}
		for b := x.first; b != nil; b = b.next {
			switch {
			case b.free:
				s.Append(b.bytes, 0, segments.Inactive)
			case c.live[b.base] == b:
				s.Append(b.bytes, b.requested, segments.Allocated)
			default:
				s.Append(b.bytes, b.requested, segments.AwaitingFree)
			}
		}
		all = append(all, s)
	}
	return all
}

// RecordStream says that work on another stream uses a live allocation.
func (c *Caching) RecordStream(p cuda.Ptr, stream uint64) {
	b := c.live[p]
	if b == nil || b.segment.stream == stream {
		return
	}
	for _, s := range b.others {
		if s == stream {
			return
		}
	}
	b.others = append(b.others, stream)
}

// Free takes memory back. It is reused at once for its own stream, and after
// their present work for streams that were recorded.
func (c *Caching) Free(p cuda.Ptr) error {
	b := c.live[p]
	if b == nil {
		return fmt.Errorf("pool: %#x is not a live allocation", uint64(p))
	}
	delete(c.live, p)
	c.stats.Frees++
	c.stats.LiveBytes -= b.requested
	for _, s := range b.others {
		f, err := c.fences.Fence(s)
		if err != nil {
			return fmt.Errorf("pool: fence on stream %#x: %w", s, err)
		}
		b.fences = append(b.fences, f)
	}
	b.others = nil
	if len(b.fences) > 0 {
		c.waiting = append(c.waiting, b)
		return nil
	}
	c.release(b)
	return nil
}

// reclaim frees the blocks whose fences have been passed.
func (c *Caching) reclaim() {
	kept := c.waiting[:0]
	for _, b := range c.waiting {
		for len(b.fences) > 0 && c.fences.Passed(b.fences[0]) {
			b.fences = b.fences[1:]
		}
		if len(b.fences) == 0 {
			c.release(b)
		} else {
			kept = append(kept, b)
		}
	}
	c.waiting = kept
}

// release makes a block free and joins it with free neighbours.
func (c *Caching) release(b *block) {
	l := c.pool(poolKey{b.segment.stream, b.segment.small})
	b.free = true
	if n := b.next; n != nil && n.free {
		l.remove(n)
		b.bytes += n.bytes
		b.next = n.next
		if n.next != nil {
			n.next.prev = b
		}
	}
	if p := b.prev; p != nil && p.free {
		l.remove(p)
		p.bytes += b.bytes
		p.next = b.next
		if b.next != nil {
			b.next.prev = p
		}
		b = p
	}
	l.insert(b)
}

// EmptyCache gives wholly free segments back to the source and returns their bytes.
func (c *Caching) EmptyCache() (released int64) {
	c.reclaim()
	var bases []cuda.Ptr
	for p, s := range c.segments {
		if s.first.free && s.first.next == nil {
			bases = append(bases, p)
		}
	}
	sort.Slice(bases, func(i, j int) bool { return bases[i] < bases[j] })
	for _, p := range bases {
		s := c.segments[p]
		if err := c.source.Release(p, s.bytes); err != nil {
			continue // the source keeps it; so do we
		}
		c.pool(poolKey{s.stream, s.small}).remove(s.first)
		delete(c.segments, p)
		c.stats.ReservedBytes -= s.bytes
		released += s.bytes
	}
	return released
}

// HasEmpty says whether a segment is wholly free.
func (c *Caching) HasEmpty() bool {
	for _, s := range c.segments {
		if s.first.free && s.first.next == nil {
			return true
		}
	}
	return false
}

// Stats reports counters.
func (c *Caching) Stats() Stats { return c.stats }

// ResetPeaks makes the present the peak.
func (c *Caching) ResetPeaks() {
	c.stats.LivePeakBytes, c.stats.ReservedPeakBytes = c.stats.LiveBytes, c.stats.ReservedBytes
}

// Check verifies the invariants.
func (c *Caching) Check() error {
	for _, s := range c.segments {
		at, free := s.base, false
		for b := s.first; b != nil; b = b.next {
			if b.base != at {
				return fmt.Errorf("pool: segment %#x has a gap or overlap at %#x", uint64(s.base), uint64(at))
			}
			if b.free && free {
				return fmt.Errorf("pool: free neighbours at %#x", uint64(b.base))
			}
			at, free = at+cuda.Ptr(b.bytes), b.free
		}
		if at != s.base+cuda.Ptr(s.bytes) {
			return fmt.Errorf("pool: segment %#x ends at %#x", uint64(s.base), uint64(at))
		}
	}
	return nil
}
