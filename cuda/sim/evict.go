package sim

import "github.com/penstock-gpu/penstock/cuda"

// The driver's lists of blocks that hold a root chunk, in the order in which it
// takes their chunks. A block is in at most one; one whose first bytes are on
// their way in is in none and cannot be evicted.
type listKind uint8

const (
	listNone      listKind = iota
	listUnused             // the block has nothing on the device
	listDiscarded          // the whole block was discarded and is still mapped
	listUsed               // by driver activity, the longest untouched first
	listKinds
)

type blockList struct{ head, tail *block }

// enlist moves a block to the tail of a list, from wherever it was.
func (g *memory) enlist(b *block, k listKind) {
	g.unlist(b)
	if k == listNone {
		return
	}
	l := &g.lists[k]
	b.list, b.previous, b.next = k, l.tail, nil
	if l.tail != nil {
		l.tail.next = b
	} else {
		l.head = b
	}
	l.tail = b
}

func (g *memory) unlist(b *block) {
	if b.list == listNone {
		return
	}
	l := &g.lists[b.list]
	if b.previous != nil {
		b.previous.next = b.next
	} else {
		l.head = b.next
	}
	if b.next != nil {
		b.next.previous = b.previous
	} else {
		l.tail = b.previous
	}
	b.list, b.previous, b.next = listNone, nil, nil
}

// touch is what the driver does to a block that it has just served: the tail of
// its list. A kernel's own accesses never get here, which is the driver's
// well-known inversion: a hot block that does not fault ages.
func (g *memory) touch(b *block) { g.enlist(b, b.home()) }

// relist puts a block whose contents went away where it now belongs, and leaves
// it where it is when that is the same list.
func (g *memory) relist(b *block) {
	if k := b.home(); b.list != k {
		g.enlist(b, k)
	}
}

// home is the list that the block belongs to.
func (b *block) home() listKind {
	switch {
	case !b.chunk:
		return listNone
	case b.dev == 0:
		return listUnused
	case b.dead == b.valid:
		return listDiscarded
	}
	return listUsed
}

// victim is the block whose chunk the driver would take next, or nil when all are moving.
func (g *memory) victim() *block {
	for k := listUnused; k < listKinds; k++ {
		for b := g.lists[k].head; b != nil; b = b.next {
			if b.moving == nil {
				return b
			}
		}
	}
	return nil
}

// takeChunk finds a root chunk: a free one, or the next victim's. The victim's
// contents go to the host at once in the ledger; bytes have to cross the bus
// before the chunk's new contents may, and until then s holds the victim.
// ok is false when there is none to be had now.
func (g *memory) takeChunk(s *slice) (bytes int64, ok bool) {
	if g.chunks < g.roomForChunks() {
		g.chunks++
		return 0, true
	}
	if g.roomForChunks() == 0 {
		return 0, false
	}
	b := g.victim()
	if b == nil {
		return 0, false
	}
	bytes = g.evict(b, s)
	g.chunks++
	return bytes, true
}

// evict takes the chunk away from b. It returns the bytes to copy out; s, when
// it is not nil, holds the block until they are.
func (g *memory) evict(b *block, s *slice) int64 {
	if b.dev != 0 {
		g.noteInUse(b)
		g.stats.EvictedBlocks++
	} else {
		g.stats.ReclaimedChunks++
	}
	out := b.dev &^ b.host &^ b.dead
	bytes := b.bytes(out)
	g.stats.EvictedBytes += bytes
	b.host |= out
	b.hostPages |= b.dev
	g.setDevice(b, 0)
	b.chunk = false
	g.chunks--
	g.unlist(b)
	if s != nil && bytes > 0 {
		s.hold(b)
		s.evicted = append(s.evicted, moved{b: b, leaves: out})
	}
	b.refresh()
	return bytes
}

// shrink evicts until the chunks fit beside the plain memory and the handles:
// what the physical allocator does when another client needs memory. The copies
// run at once; the returned bytes are what the caller waits for. ok is false,
// and nothing has changed, when it cannot be done.
func (g *GPU) shrink(bytes int64) (out int64, ok bool) {
	over := g.usedBytes() + bytes - g.capacityBytes
	if over <= 0 {
		return 0, true
	}
	need := (over + blockBytes - 1) / blockBytes
	can := int64(0)
	for k := listUnused; k < listKinds && can < need; k++ {
		for b := g.lists[k].head; b != nil && can < need; b = b.next {
			if b.moving == nil {
				can++
			}
		}
	}
	if can < need {
		return 0, false
	}
	for ; need > 0; need-- {
		b := g.victim()
		leaves := b.dev &^ b.host &^ b.dead
		n := g.evict(b, nil)
		if n > 0 {
			g.observeMask(b, leaves, cuda.Host, CauseEviction, g.now, g.now+perByte(n, g.profile.EvictBytesPerSecond))
		}
		out += n
	}
	g.send(cuda.Host, out, g.profile.EvictBytesPerSecond, nil)
	return out, true
}
