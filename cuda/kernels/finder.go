package kernels

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
)

// Finder looks in device memory for words of an address range. It serves one
// search at a time: Begin, any number of Scan and End on one stream, then, once
// the stream has passed them, Found.
type Finder struct {
	k        *Kernels
	capacity int64
	list     cuda.Ptr // device: the number of words found, and the words
	mirror   cuda.Ptr // pinned: a zero word, one unused, and a copy of the list
}

const mirrorList = 16 // where in the mirror the list's copy begins

// NewFinder makes one that keeps up to capacity words.
func (k *Kernels) NewFinder(capacity int) (*Finder, error) {
	if capacity <= 0 {
		return nil, fmt.Errorf("a finder of %d words: at least one is needed", capacity)
	}
	f := &Finder{k: k, capacity: int64(capacity)}
	var err error
	if f.list, err = k.driver.MemAlloc(f.listBytes()); err != nil {
		return nil, err
	}
	if f.mirror, err = k.driver.HostAlloc(mirrorList + f.listBytes()); err != nil {
		_ = k.driver.MemFree(f.list)
		return nil, err
	}
	return f, nil
}

func (f *Finder) listBytes() int64 { return 8 + 8*f.capacity }

// Close frees the memory. No search may be under way.
func (f *Finder) Close() error {
	err := f.k.driver.MemFree(f.list)
	if e := f.k.driver.HostFree(f.mirror); err == nil {
		err = e
	}
	return err
}

// Begin queues the start of a search.
func (f *Finder) Begin(s cuda.Stream) error { return f.k.driver.CopyAsync(f.list, f.mirror, 8, s) }

// Scan queues the search of a range, which begins at a multiple of 8, for words w with lo <= w < hi.
func (f *Finder) Scan(r cuda.Range, lo, hi cuda.Ptr, s cuda.Stream) error {
	if err := badRange(r, 8); err != nil {
		return fmt.Errorf("scan of a %w", err)
	}
	if hi <= lo || r.Bytes < 8 {
		return nil
	}
	return f.k.launch(f.k.scan, r.Bytes, s, uint64(r.Base), uint64(r.Bytes/8), uint64(lo), uint64(hi-lo), uint64(f.list), uint64(f.capacity))
}

// End queues the copy of what was found to the host.
func (f *Finder) End(s cuda.Stream) error {
	return f.k.driver.CopyAsync(f.mirror+mirrorList, f.list, f.listBytes(), s)
}

// Found is what was found, in no order, repeats included; all of it only when
// total is not larger than the list. The slice is valid until the next Begin.
func (f *Finder) Found() (kept []uint64, total int64) {
	list := words(f.mirror+mirrorList, 1+f.capacity)
	total = int64(list[0])
	return list[1 : 1+min(total, f.capacity)], total
}
