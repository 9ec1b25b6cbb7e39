package stitch

import (
	"sort"

	"github.com/penstock-gpu/penstock/cuda"
)

// state is what a block is to the pool.
type state uint8

const (
	free state = iota // any of the memory of its chunks may be given out
	used              // an allocation, a part of one, or lent to a Range
	hole              // addresses without memory
)

// block is part of an arena's address space. The blocks of an arena cover it.
type block struct {
	base       cuda.Ptr
	bytes      int64
	requested  int64 // by the caller; of an allocation's first block
	arena      *arena
	prev, next *block
	state      state
	stream     uint64 // in whose order the memory may be used
	freed      uint64 // the stream's count of frees when this was last one; for free blocks
	stitched   *stitched
	others     []uint64 // recorded streams
	fences     []any
}

func (b *block) end() cuda.Ptr { return b.base + cuda.Ptr(b.bytes) }

// sizeIndex holds blocks by size and then address.
type sizeIndex struct{ blocks []*block }

func (l *sizeIndex) search(bytes int64, base cuda.Ptr) int {
	return sort.Search(len(l.blocks), func(i int) bool {
		b := l.blocks[i]
		return b.bytes > bytes || b.bytes == bytes && b.base >= base
	})
}

// fit is the smallest block of at least so many bytes, the first of several.
func (l *sizeIndex) fit(bytes int64) *block {
	i := l.search(bytes, 0)
	if i == len(l.blocks) {
		return nil
	}
	best := l.blocks[i]
	if best.bytes > bytes+4<<20 {
		for _, b := range l.blocks[i:] {
			if b.base < best.base {
				best = b
			}
		}
	}
	return best
}

func (l *sizeIndex) insert(b *block) {
	i := l.search(b.bytes, b.base)
	l.blocks = append(l.blocks, nil)
	copy(l.blocks[i+1:], l.blocks[i:])
	l.blocks[i] = b
}

func (l *sizeIndex) remove(b *block) {
	i := l.search(b.bytes, b.base)
	copy(l.blocks[i:], l.blocks[i+1:])
	l.blocks[len(l.blocks)-1] = nil
	l.blocks = l.blocks[:len(l.blocks)-1]
}
