package sim

import (
	"math/bits"
	"slices"
	"sort"

	"github.com/penstock-gpu/penstock/cuda"
)

// memory is the floor above the clock: what there is of each kind of memory, what of it is on the device, and who is told.
type memory struct {
	clock
	profile       Profile
	capacityBytes int64
	limitBytes    int64

	managed      []*segment // by base
	plain        []*plainAlloc
	pinned       []*plainAlloc
	registered   []*plainAlloc // the caller's own memory, pinned
	reserved     []*reservation
	handles      map[cuda.Handle]*handle
	nextAddress  [addressKinds]cuda.Ptr
	nextHandle   cuda.Handle
	managedBytes int64 // live managed allocations
	plainBytes   int64
	handleBytes  int64  // physical device memory of VMM
	calling      []span // that have not ended, in order: see inTurn
	chunks       int64  // root chunks held by blocks
	resident     int64  // managed bytes on the device
	lists        [listKinds]blockList

	kernels   []*kernelRun // running
	stats     Stats
	observers []Observer
}

const (
	blockBytes = 2 * mib  // a VA block, and a root chunk
	leafBytes  = 64 * kib // the unit of residency here: the driver's "big page"
	blockLeafs = 32
)

// Address windows: what an address is can be told from the address.
const (
	managedAddress = iota
	plainAddress
	pinnedAddress
	reservedAddress
	addressKinds
)

const (
	firstAddress  = cuda.Ptr(0x2000_0000_0000)
	addressWindow = cuda.Ptr(0x1000_0000_0000) // 16 TiB each
)

// mask is a set of leaves of one block.
type mask = uint32

// block is 2 MiB of a managed allocation: the driver's unit of locking,
// residency and eviction. The masks say per 64 KiB leaf what is true of it.
// A leaf that is neither on the device nor on the host has no contents: it was
// never touched, or discarded.
type block struct {
	seg   *segment
	index int
	valid mask // leaves that the allocation reaches into

	dev, host      mask // where valid contents are; both when duplicated
	dead           mask // discarded but still mapped on the device (DiscardKeepsMapping)
	hostPages      mask // host page frames exist
	readMostly     mask
	preferHost     mask // preferred location is the host
	accessedBy     mask // mapped for the device wherever it is
	discardLater   mask // discarded while it moved
	chunk          bool // holds a root chunk
	list           listKind
	previous, next *block
	moving         *slice // being moved, or being evicted for a move
}

// segment is one managed allocation.
type segment struct {
	cuda.Range
	blocks []block
	// ready has a bit for each block that a kernel may read without the driver,
	// readyWrite one for each that it may write: everything on the device, not
	// moving (and not duplicated). They keep a launch over thousands of resident
	// blocks down to a few words.
	ready, readyWrite []uint64
	freed             bool
}

func newSegment(r cuda.Range) *segment {
	n := int((r.Bytes + blockBytes - 1) / blockBytes)
	s := &segment{Range: r, blocks: make([]block, n), ready: make([]uint64, (n+63)/64), readyWrite: make([]uint64, (n+63)/64)}
	for i := range s.blocks {
		s.blocks[i] = block{seg: s, index: i, valid: ^mask(0)}
	}
	if tail := r.Bytes - int64(n-1)*blockBytes; tail < blockBytes {
		s.blocks[n-1].valid = 1<<((tail+leafBytes-1)/leafBytes) - 1
	}
	return s
}

// base is the block's first address.
func (b *block) base() cuda.Ptr { return b.seg.Base + cuda.Ptr(b.index)*cuda.Ptr(blockBytes) }

// bytes is the size of leaves, with the allocation's last leaf only as far as it reaches.
func (b *block) bytes(m mask) int64 {
	n := int64(bits.OnesCount32(m)) * leafBytes
	if b.index == len(b.seg.blocks)-1 {
		last := bits.Len32(b.valid) - 1
		if m>>last&1 == 1 {
			n -= int64(b.index)*blockBytes + int64(last+1)*leafBytes - b.seg.Bytes
		}
	}
	return n
}

// refresh recomputes the block's ready bits. Every change of dev, host or moving ends with it.
func (b *block) refresh() {
	word, bit := b.index>>6, uint64(1)<<(b.index&63)
	read := b.moving == nil && b.dev == b.valid
	set(&b.seg.ready[word], bit, read)
	set(&b.seg.readyWrite[word], bit, read && b.dev&b.host == 0)
}

func set(word *uint64, bit uint64, on bool) {
	if on {
		*word |= bit
	} else {
		*word &^= bit
	}
}

// setDevice changes what is on the device and keeps the ledger.
func (g *memory) setDevice(b *block, dev mask) {
	g.resident += b.bytes(dev) - b.bytes(b.dev)
	b.dev = dev
	b.dead &= dev
}

// piece is the part of an address range that lies in one segment, by leaves
// [first, end) counted from the segment's base.
type piece struct {
	seg        *segment
	first, end int
}

// mask is the part of the piece in block i.
func (p piece) mask(i int) mask {
	lo, hi := max(0, p.first-i*blockLeafs), min(blockLeafs, p.end-i*blockLeafs)
	if lo >= hi {
		return 0
	}
	return ^mask(0) << lo & (^mask(0) >> (blockLeafs - hi))
}

// blockRange is the piece's blocks [first, end).
func (p piece) blockRange() (int, int) {
	return p.first / blockLeafs, (p.end + blockLeafs - 1) / blockLeafs
}

// findSegment is the index of the segment that holds p, or of the first one after it.
func (g *memory) findSegment(p cuda.Ptr) int {
	return sort.Search(len(g.managed), func(i int) bool { return g.managed[i].End() > p })
}

// pieces cuts a managed range into segments. Leaves that the range covers only
// in part count as covered, unless whole is set (for discard, which must not
// take a neighbour's bytes). It is false when part of the range is not managed memory.
func (g *memory) pieces(r cuda.Range, whole bool, out []piece) ([]piece, bool) {
	at := r.Base
	for i := g.findSegment(at); at < r.End(); i++ {
		if i == len(g.managed) || g.managed[i].Base > at {
			return out, false
		}
		s := g.managed[i]
		end := min(r.End(), s.End())
		lo, hi := int64(at-s.Base), int64(end-s.Base)
		p := piece{seg: s}
		if whole {
			p.first = int((lo + leafBytes - 1) / leafBytes)
			p.end = int(hi / leafBytes)
			if end == s.End() {
				p.end = int((hi + leafBytes - 1) / leafBytes)
			}
		} else {
			p.first = int(lo / leafBytes)
			p.end = int((hi + leafBytes - 1) / leafBytes)
		}
		if p.first < p.end {
			out = append(out, p)
		}
		at = end
	}
	return out, true
}

// kindOf says which window an address lies in; addressKinds when in none.
func kindOf(p cuda.Ptr) int {
	if p < firstAddress || p >= firstAddress+addressKinds*addressWindow {
		return addressKinds
	}
	return int((p - firstAddress) / addressWindow)
}

// place takes addresses from a window. They are not reused, so a stale pointer is always found out.
func (g *memory) place(kind int, bytes, align int64) cuda.Ptr {
	a := cuda.Ptr(align)
	p := (g.nextAddress[kind] + a - 1) / a * a
	g.nextAddress[kind] = p + cuda.Ptr(bytes)
	return p
}

// plainAlloc is device memory that stays, or pinned host memory.
type plainAlloc struct {
	cuda.Range
}

const plainAlign = 512 // what cuMemAlloc aligns to

func findPlain(list []*plainAlloc, p cuda.Ptr) (int, bool) {
	i := sort.Search(len(list), func(i int) bool { return list[i].End() > p })
	return i, i < len(list) && list[i].Base <= p
}

// inside says whether the whole range lies in one allocation of the list.
func inside(list []*plainAlloc, r cuda.Range) bool {
	i, ok := findPlain(list, r.Base)
	return ok && r.End() <= list[i].End()
}

func remove[T any](list []T, i int) []T { return slices.Delete(list, i, i+1) }

// roomForChunks is how many root chunks fit beside the plain memory and the
// physical handles.
func (g *memory) roomForChunks() int64 {
	fixed := (g.plainBytes+blockBytes-1)/blockBytes*blockBytes + g.handleBytes
	return max(0, (g.capacityBytes-fixed)/blockBytes)
}

// usedBytes is device memory in use: plain, physical handles and root chunks.
func (g *memory) usedBytes() int64 {
	return (g.plainBytes+blockBytes-1)/blockBytes*blockBytes + g.handleBytes + g.chunks*blockBytes
}
