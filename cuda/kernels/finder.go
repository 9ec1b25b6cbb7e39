package kernels

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
)

const (
	spans = 2 // that a search looks for at once
	// mostPieces is how many blocks a search has at most, each for a piece of a range: twice as many
	// as the launch hook notes addresses of one launch (PSK_MAX_INSPECT); and leastPieceBytes how large these are while there is no need for larger ones.
	mostPieces      = 32768
	leastPieceBytes = 256 << 10
	pieceBytes      = 16 // of one in the table
)

// Span is the addresses from Lo on that are below Hi.
type Span struct{ Lo, Hi cuda.Ptr }

func (s Span) addresses() uint64 {
	if s.Hi <= s.Lo {
		return 0
	}
	return uint64(s.Hi - s.Lo)
}

// Finder looks in device memory for words that are addresses of two spans. It
// serves one search at a time: Search, then, once the stream has passed it, Found.
// A search is two launches and no copy, which would wait for what the copy engines are
// busy with. The words lie in pinned memory, to which the device writes: data may hold
// many that look like addresses, and device memory is the job's.
type Finder struct {
	k        *Kernels
	capacity int64
	counts   cuda.Ptr // device: of each span, how many words have been found. 0 between searches
	pinned   cuda.Ptr // a copy of the counts, the words kept of each span, and the table of pieces
}

const countsBytes = spans * 8

// NewFinder makes one that keeps up to capacity words of each span. The calling thread waits
// for the device.
func (k *Kernels) NewFinder(capacity int) (*Finder, error) {
	if capacity <= 0 {
		return nil, fmt.Errorf("a finder of %d words: at least one is needed", capacity)
	}
	f := &Finder{k: k, capacity: int64(capacity)}
	var err error
	if f.counts, err = k.driver.MemAlloc(countsBytes); err != nil {
		return nil, err
	}
	if f.pinned, err = k.driver.HostAlloc(countsBytes + spans*8*f.capacity + mostPieces*pieceBytes); err != nil {
		_ = k.driver.MemFree(f.counts)
		return nil, err
	}
	if err = f.zero(); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// zero sets the counts of the device to 0, which their copy is.
func (f *Finder) zero() (err error) {
	s, err := f.k.driver.StreamCreate()
	if err != nil {
		return err
	}
	defer release(&err, f.k.driver.StreamDestroy, s)
	if err := f.k.driver.CopyAsync(f.counts, f.pinned, countsBytes, s); err != nil {
		return err
	}
	return f.k.driver.StreamSynchronize(s)
}

// list is where the words of one span are kept, and table, at a multiple of 16, what is behind the lists.
func (f *Finder) list(span int) cuda.Ptr {
	return f.pinned + countsBytes + cuda.Ptr(int64(span)*8*f.capacity)
}
func (f *Finder) table() cuda.Ptr { return f.list(spans) }

// Close frees the memory. No search may be under way.
func (f *Finder) Close() error {
	err := f.k.driver.MemFree(f.counts)
	if e := f.k.driver.HostFree(f.pinned); err == nil {
		err = e
	}
	return err
}

// Search queues the search of ranges for words of each span, at multiples of 8.
func (f *Finder) Search(ranges []cuda.Range, of [spans]Span, s cuda.Stream) error {
	n, err := f.cut(ranges)
	if err != nil || n == 0 {
		clear(words(f.pinned, spans))
		return err
	}
	d := f.k.driver
	if err := d.Launch(f.k.scan, [3]uint32{n, 1, 1}, [3]uint32{blockThreads, 1, 1}, s, uint64(f.table()), uint64(f.counts), uint64(f.list(0)), uint64(f.capacity),
		uint64(of[0].Lo), of[0].addresses(), uint64(of[1].Lo), of[1].addresses()); err != nil {
		return err
	}
	return d.Launch(f.k.collect, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, s, uint64(f.counts), uint64(f.pinned))
}

// cut fills the table with the pieces of ranges, and says how many there are.
func (f *Finder) cut(ranges []cuda.Range) (pieces uint32, err error) {
	if len(ranges) > mostPieces/2 {
		return 0, fmt.Errorf("a search of %d ranges: %d are possible", len(ranges), mostPieces/2)
	}
	var total int64
	for _, r := range ranges {
		if err := badRange(r, 1); err != nil {
			return 0, fmt.Errorf("search of a %w", err)
		}
		total += r.Bytes
	}
	each := max(leastPieceBytes, (total/(mostPieces/2)+15)&^15)
	table := words(f.table(), mostPieces*pieceBytes/8)
	for _, r := range ranges {
		end := r.End() &^ 7
		for at := (r.Base + 7) &^ 7; at < end; at += cuda.Ptr(each) {
			table[2*pieces], table[2*pieces+1] = uint64(at), uint64(min(cuda.Ptr(each), end-at)/8)
			pieces++
		}
	}
	return pieces, nil
}

// Found is what was found of a span, in no order, repeats included; all of it only when
// total is not larger than what is kept. The slice is valid until the next Search.
func (f *Finder) Found(span int) (kept []uint64, total int64) {
	total = int64(words(f.pinned, spans)[span])
	return words(f.list(span), min(total, f.capacity)), total
}
