package explicit

import (
	"container/list"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/um"
)

// where a chunk's contents are.
type where uint8

const (
	blank    where = iota // nowhere: nothing was written yet, nothing is mapped
	onDevice              // in mapped device memory
	onHost                // in pinned host memory, nothing is mapped
	arriving              // on the way in: in a worker's hands
	leaving               // on the way out
	inPlace               // in host memory that is mapped at the tensor's own addresses: see inplace.go
	dropped               // nowhere: it is to be made again, see again.go
)

// chunk is a part of a tensor that moves on its own.
type chunk struct {
	offset, bytes int64
	where         where
	submitted     bool // of an arriving one: the copy is queued; ticket tells which
	ticket        uint32
	handle        cuda.Handle  // physical memory that is mapped, 0 for none
	host          []cuda.Range // pinned memory that holds its contents, or held them when it came: see clean.go
	sum           kernels.Sum128
	summed        bool // sum is the checksum of the contents on the host
	kept          *list.Element
	learned       learned
}

// rest is a time for which a tensor is let alone: after the operation at one position, until that at another.
type rest struct{ from, until int64 }

// rested notes that an operation names a tensor, and says whether it was let alone for longer than ever.
func (t *tensor) rested(position int64) (longest bool) {
	if since := t.namedAt; since >= t.born && position-since > t.rest.until-t.rest.from {
		t.rest, longest = rest{since, position}, true
	}
	t.namedAt = position
	return longest
}

// tensor is one allocation of 1 MiB and more, or several that share a range.
type tensor struct {
	um.Tensor
	base     cuda.Ptr
	size     int64 // in whole pages
	bytes    int64 // as asked for
	chunks   []chunk
	born     int64  // position of the operation that came next; of a pack, after its newest part
	life     int64  // of its allocation
	parts    []part // its allocations, of a pack: see pack.go
	alive    int    // of these
	filledBy int64  // the position by which all of these have come, or do not
	loose    bool   // a pack of what had not been seen before: see loose.go
	borrowed bool   // its range is one of a larger size: see borrow.go

	absent       int64 // bytes that a launch would have to wait for and that nobody is bringing in
	flying       int   // chunks in a worker's hands
	state        State // as published
	leaves       int64 // bytes that are to leave by the current plan
	cheap        bool  // it can be made again, as the newest draft sees it
	serial       uint64
	drafted      uint64 // serial and leaves, of the newest draft that has it leave
	draftedBytes int64
	until        int64  // what its leaving makes room until, as the newest draft sees it
	kept         bool   // it stays on the device (Op.Keep)
	lastName     string // of the last operation that named it
	// foretold is when it was to be used next, foretoldAt when that was said: see credible.
	foretold, foretoldAt int64
	arrived              int64 // when it last came, in moves

	namedAt  int64 // position of the last operation that named it
	rest     rest  // the longest so far
	lasting  bool  // at its end it could have been made again
	copied   bool  // out, in this life
	recipe   recipe
	products products
	touches  uint64    // by operations of which it is not known what they do: see proven.go
	remake   *remake   // how it can be made again, from its verification on
	users    []*tensor // of whose recipes it is an input, or was
	readers  []*tensor // that are to be made again from this one: see guard.go
	heightIs int       // when again.guards was heightOf
	heightOf uint64
	depthIs  int // when again.guards was depthOf
	depthOf  uint64
	visited  uint64 // by that search of readers
	retained bool   // the job has freed it, and readers need it
	writing  int    // unfinished operations that may write to it
	pins     int    // moves under way that read it

	held    bool      // dead, and the job may take it again without asking: see held.go
	listed  bool      // dead, and among the dead ranges
	death   uint64    // the number of its death, of these
	passed  uint64    // the search for dead memory that has passed it over
	freedAt []um.Mark // what must have passed before its memory is idle, of what had not when that was last asked
}

const copyUnit = 512 // bytes

// wholeUnits rounds up to what copies and checksums take.
func wholeUnits(bytes int64) int64 { return (bytes + copyUnit - 1) / copyUnit * copyUnit }

// deviceBytes are the bytes that hold device memory and could leave.
func (t *tensor) deviceBytes() int64 { return t.bytesIn(onDevice) }

func (t *tensor) bytesIn(w where) (n int64) {
	for i := range t.chunks {
		if t.chunks[i].where == w {
			n += t.chunks[i].bytes
		}
	}
	return n
}

// chunkOf is the index of a chunk of so many bytes that is in device memory, -1 when there is none.
func (t *tensor) chunkOf(bytes int64) int {
	return slices.IndexFunc(t.chunks, func(c chunk) bool { return c.bytes == bytes && c.where == onDevice })
}

// whole says whether all of it is in mapped device memory.
func (t *tensor) whole() bool { return t.deviceBytes() == t.size }

// readable says whether all of it is where kernels can read it.
func (t *tensor) readable() bool { return t.deviceBytes()+t.bytesIn(inPlace) == t.size }

// candidate is the tensor as one that could leave, for so many bytes and until a position.
func (t *tensor) candidate(now, until, bytes int64) evict.Candidate {
	return evict.Candidate{NextUse: evict.Farther(now, until, t.chunks[0].bytes), LastUse: t.LastUse, Migrated: t.arrived, Bytes: bytes}
}

// rangeOf is where a chunk lies.
func (t *tensor) rangeOf(c *chunk) cuda.Range {
	return cuda.Range{Base: t.base + cuda.Ptr(c.offset), Bytes: c.bytes}
}

// used are the bytes of a chunk that the allocation was asked for, rounded up to
// what copies and checksums take. Nothing else has contents. A chunk that none of it lies in, of a range that is
// borrowed, moves like any other, with one unit that means nothing.
func (t *tensor) used(c *chunk) int64 {
	return min(c.bytes, max(wholeUnits(t.bytes-c.offset), copyUnit))
}

// usable is the state that a launch may rely on, and the newest ticket it has to
// wait for.
func (t *tensor) usable() (s State, ticket uint32) {
	s = Resident
	for i := range t.chunks {
		c := &t.chunks[i]
		switch {
		case c.where == onDevice || c.where == inPlace:
		case c.where == arriving && c.submitted:
			if s == Resident || int32(c.ticket-ticket) > 0 {
				ticket = c.ticket
			}
			s = Arriving
		default:
			return Absent, 0
		}
	}
	return s, ticket
}

// cut divides a size into chunks. What is left below a whole one joins the one before
// it: each chunk costs as much to map, however small it is.
func cut(size, chunkBytes int64) []chunk {
	chunks := make([]chunk, 0, max(size/chunkBytes, 1))
	for at := int64(0); at < size; {
		bytes := size - at
		if bytes >= 2*chunkBytes {
			bytes = chunkBytes
		}
		chunks = append(chunks, chunk{offset: at, bytes: bytes})
		at += bytes
	}
	return chunks
}

// mostWhole is how many chunks what is to be made again is at most, where it need not be verified: what moves is one of them.
const mostWhole = 4

// cut divides a size into chunks; into one where tensors of that size have recipes, for a recipe makes a tensor whole.
func (r *tensors) cut(size int64) []chunk {
	if r.whole[size] && size <= max(r.config.ScratchBytes, mostWhole*r.config.ChunkBytes) {
		return []chunk{{bytes: size}}
	}
	return cut(size, r.config.ChunkBytes)
}

// odd says whether whole pages are more than so many bytes by at least one part of them in so many.
func odd(bytes, part int64) bool { return (WholePages(bytes)-bytes)*part >= bytes }

// WholePages rounds bytes up to whole pages.
func WholePages(bytes int64) int64 { return (bytes + PageBytes - 1) / PageBytes * PageBytes }
