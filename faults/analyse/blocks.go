package analyse

import (
	"math/bits"
	"time"
)

const (
	pageBytes     = 4 << 10
	blockBytes    = 2 << 20
	blockPages    = blockBytes / pageBytes
	blockWords    = blockPages / 64
	maxBlocks     = 1 << 20 // followed page by page: 2 TiB
	blocksAtATime = 256

	lateWindow  = 2 * time.Millisecond   // a prefetch that begins so long after a fault was meant for it
	thrashGap   = 500 * time.Microsecond // as the driver's own detector counts
	thrashFlips = 3
	thrashHold  = time.Second // for so long the driver remembers
	sameFault   = time.Millisecond
)

// pages is a set of the pages of one block.
type pages [blockWords]uint64

func (p *pages) count() (n int64) {
	for _, w := range p {
		n += int64(bits.OnesCount64(w))
	}
	return n
}

func (p *pages) has(page uint) bool { return p[page/64]>>(page%64)&1 != 0 }

// span is the set of pages from first to last, both included.
func span(first, last uint) (p pages) {
	for w := first / 64; w <= last/64; w++ {
		m := ^uint64(0)
		if w == first/64 {
			m &= ^uint64(0) << (first % 64)
		}
		if w == last/64 {
			m &= ^uint64(0) >> (63 - last%64)
		}
		p[w] = m
	}
	return p
}

func (p *pages) add(q *pages) {
	for i := range p {
		p[i] |= q[i]
	}
}

func (p *pages) remove(q *pages) {
	for i := range p {
		p[i] &^= q[i]
	}
}

func (p *pages) and(q *pages) (r pages) {
	for i := range p {
		r[i] = p[i] & q[i]
	}
	return r
}

// block is what is known of 2 MiB of managed memory.
type block struct {
	ever       pages // was on a GPU at some time
	touched    pages // and since the allocation that lies there was made
	resident   pages // is on a GPU
	evicted    pages // left to make room, by the driver or by Penstock
	cpu        pages // a CPU fault took it away
	prefetched pages // came ahead of a fault and no launch has named it since

	leftLaunch int64         // number of the last launch when pages last left
	leftIn     int64         // bytes that had come in by then
	arrives    time.Duration // when the last prefetch ends or ended
	fetchedAt  int64         // launches before prefetched pages came last

	flips   uint8
	flipIn  bool
	flipped time.Duration
	thrash  time.Duration // until then

	faulted      bool // there was a fault
	faultedAt    time.Duration
	faultedCause Cause
	last         lastFault // of those counted
}

// lastFault is the group of faults in a block that may still turn out to be a late prefetch's.
type lastFault struct {
	time  time.Duration
	cause Cause
	n     int64
	where cell
	alive bool
}

// cell is where a fault is counted.
type cell struct {
	kernel *kernel
	alloc  *allocRow
	phase  Phase
}

// blocks finds blocks by address.
type blocks struct {
	byNumber map[uint64]*block
	slab     []block
	overflow int64 // events beyond it

	lastNumber uint64
	lastBlock  *block
}

// at returns the block with an address; nil beyond the limit.
func (b *blocks) at(address uint64) *block {
	number := address / blockBytes
	if b.lastBlock != nil && number == b.lastNumber {
		return b.lastBlock
	}
	x := b.byNumber[number]
	if x == nil {
		if len(b.byNumber) >= maxBlocks {
			b.overflow++
			return nil
		}
		if len(b.slab) == 0 {
			b.slab = make([]block, blocksAtATime)
		}
		x, b.slab = &b.slab[0], b.slab[1:]
		b.byNumber[number] = x
	}
	b.lastNumber, b.lastBlock = number, x
	return x
}

// peek returns a block only if it is known.
func (b *blocks) peek(address uint64) *block { return b.byNumber[address/blockBytes] }

// maxMoveBytes is more than any GPU has: a longer range in a file is nonsense.
const maxMoveBytes = 1 << 40

// pieces calls visit for each block that a range of bytes touches, with the pages it has there.
func pieces(address uint64, bytes int64, visit func(address uint64, p pages)) {
	if bytes <= 0 || bytes > maxMoveBytes || address+uint64(bytes) < address {
		return
	}
	end := address + uint64(bytes) - 1
	for {
		last := min(end, address|(blockBytes-1))
		visit(address, span(uint(address%blockBytes/pageBytes), uint(last%blockBytes/pageBytes)))
		if last == end {
			return
		}
		address = last + 1
	}
}

// effort bounds the work on blocks by the number of events, so that a file
// cannot make a few events take for ever.
type effort struct {
	credit int64 // pieces
	spent  bool  // it ran out once
}

const (
	creditAtFirst  = 1 << 15 // 64 GiB in one go
	creditForEvent = 16
)

// afford says whether a range may be followed page by page.
func (f *effort) afford(bytes int64) bool {
	cost := bytes/blockBytes + 2
	if cost > f.credit {
		f.spent = true
		return false
	}
	f.credit -= cost
	return true
}
