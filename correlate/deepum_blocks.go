package correlate

import (
	"math/bits"
	"unsafe"
)

// blockTable maps a block to the blocks that followed it in one kernel. It is
// a cache of rows × ways that starts small and doubles while rows overflow, up
// to the configured rows; most kernels touch a handful of blocks, a few
// thousands. The arrays are parallel and by way: row r has ways
// r*associativity … (r+1)*associativity-1.
type blockTable struct {
	tags    []uint64
	used    []uint32 // when last used, by the table's own clock; 0 is an empty way
	lengths []uint8  // successors in use
	next    []uint64 // successors per way, latest first
	clock   uint32
	rows    int
	ways    int // per row
	width   int // successors per way
}

const firstRows = 4

// bytes is the memory of the table's arrays.
func (b *blockTable) bytes() int64 {
	return int64(cap(b.tags))*8 + int64(cap(b.used))*4 + int64(cap(b.lengths)) + int64(cap(b.next))*8
}

func (b *blockTable) allocate(rows int) {
	b.rows = rows
	n := rows * b.ways
	b.tags, b.used, b.lengths, b.next = make([]uint64, n), make([]uint32, n), make([]uint8, n), make([]uint64, n*b.width)
}

// row is where a block's ways begin.
func (b *blockTable) row(block uint64) int {
	// Neighbouring blocks spread over the rows (Fibonacci hashing).
	return int(block*0x9e3779b97f4a7c15>>(64-bits.TrailingZeros(uint(b.rows)))) * b.ways
}

// find returns the way that holds a block, or -1.
func (b *blockTable) find(block uint64) int {
	if b.rows == 0 {
		return -1
	}
	row := b.row(block)
	for way := row; way < row+b.ways; way++ {
		if b.used[way] != 0 && b.tags[way] == block {
			return way
		}
	}
	return -1
}

// successors are the blocks that followed a block, latest first. The caller
// must not keep them.
func (b *blockTable) successors(block uint64) []uint64 {
	way := b.find(block)
	if way < 0 {
		return nil
	}
	return b.next[way*b.width:][:b.lengths[way]]
}

// follow records that next came after block, and says whether another block
// had to be forgotten for it.
func (b *blockTable) follow(block, next uint64, config *TablesConfig) (displaced bool) {
	if b.rows == 0 {
		b.ways, b.width = config.Associativity, config.Successors
		b.allocate(min(firstRows, config.Rows))
	}
	way := b.find(block)
	for way < 0 {
		if way = b.vacant(block); way < 0 {
			if b.rows < config.Rows {
				b.grow()
				continue
			}
			way = b.oldest(block)
			displaced = true
		}
		b.tags[way], b.lengths[way] = block, 0
	}
	b.use(way)
	list := b.next[way*b.width:][:b.width]
	at, length := 0, int(b.lengths[way])
	for at < length && list[at] != next {
		at++
	}
	if at == length {
		if length < b.width {
			b.lengths[way]++
		} else {
			at--
		}
	}
	copy(list[1:at+1], list[:at])
	list[0] = next
	return displaced
}

// use marks a way as the latest used. When the clock runs out, the order within
// rows is all that is lost.
func (b *blockTable) use(way int) {
	if b.clock++; b.clock == 0 {
		for i := range b.used {
			b.used[i] = min(b.used[i], 1)
		}
		b.clock = 2
	}
	b.used[way] = b.clock
}

// vacant is a free way in a block's row, or -1.
func (b *blockTable) vacant(block uint64) int {
	row := b.row(block)
	for way := row; way < row+b.ways; way++ {
		if b.used[way] == 0 {
			return way
		}
	}
	return -1
}

// oldest is the least recently used way in a block's row.
func (b *blockTable) oldest(block uint64) int {
	row := b.row(block)
	oldest := row
	for way := row + 1; way < row+b.ways; way++ {
		if b.used[way] < b.used[oldest] {
			oldest = way
		}
	}
	return oldest
}

// grow doubles the rows. A row is the leading bits of the hash, so each spreads
// over two of the new ones and nothing is forgotten.
func (b *blockTable) grow() {
	old := *b
	b.allocate(2 * old.rows)
	for way, used := range old.used {
		if used == 0 {
			continue
		}
		to := b.vacant(old.tags[way])
		b.tags[to], b.used[to], b.lengths[to] = old.tags[way], used, old.lengths[way]
		copy(b.next[to*b.width:][:b.width], old.next[way*b.width:][:b.width])
	}
}

// perExecution is what an execution takes beside its own struct and arrays:
// its place in the two maps and in the list of the cache, roughly.
const perExecution = 160

// bytes is the memory of everything that is known of a kernel.
func (e *execution) bytes() int64 {
	return int64(unsafe.Sizeof(*e)) + perExecution + int64(cap(e.records))*int64(unsafe.Sizeof(record{})) + e.blocks.bytes()
}
