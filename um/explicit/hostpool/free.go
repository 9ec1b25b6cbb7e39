package hostpool

import (
	"fmt"
	"slices"
	"sort"

	"github.com/penstock-gpu/penstock/cuda"
)

// freeList is the free memory, by address. It begins at origin and grows by segments; an
// extent never crosses a border between two.
type freeList struct {
	origin  cuda.Ptr
	ends    []cuda.Ptr // of the segments
	extents []Extent
	bytes   int64
}

// end is the end of the last segment.
func (f *freeList) end() cuda.Ptr {
	if len(f.ends) == 0 {
		return f.origin
	}
	return f.ends[len(f.ends)-1]
}

// grow adds a segment, all of it free, after the last.
func (f *freeList) grow(bytes int64) {
	e := Extent{Base: f.end(), Bytes: bytes}
	f.ends = append(f.ends, e.End())
	f.extents = append(f.extents, e)
	f.bytes += bytes
}

// at is the index of the first extent that ends after p.
func (f *freeList) at(p cuda.Ptr) int {
	return sort.Search(len(f.extents), func(i int) bool { return f.extents[i].End() > p })
}

// segment is the number of the segment that p lies in.
func (f *freeList) segment(p cuda.Ptr) int {
	return sort.Search(len(f.ends), func(i int) bool { return f.ends[i] > p })
}

// take removes exactly that much, of which the caller has seen that it is there.
func (f *freeList) take(bytes int64) (out []Extent) {
	for bytes > 0 {
		// The smallest that is large enough, or the largest; the lowest address among equals.
		best := 0
		for i, e := range f.extents {
			b := f.extents[best].Bytes
			if b >= bytes && e.Bytes >= bytes && e.Bytes < b || b < bytes && e.Bytes > b {
				best = i
			}
		}
		e := Extent{Base: f.extents[best].Base, Bytes: min(bytes, f.extents[best].Bytes)}
		f.remove(e)
		out = append(out, e)
		bytes -= e.Bytes
	}
	return out
}

// remove takes a free range out.
func (f *freeList) remove(r Extent) {
	i := f.at(r.Base)
	e := f.extents[i]
	f.bytes -= r.Bytes
	before := Extent{Base: e.Base, Bytes: int64(r.Base - e.Base)}
	after := Extent{Base: r.End(), Bytes: int64(e.End() - r.End())}
	switch {
	case before.Bytes > 0 && after.Bytes > 0:
		f.extents[i] = before
		f.extents = slices.Insert(f.extents, i+1, after)
	case before.Bytes > 0:
		f.extents[i] = before
	case after.Bytes > 0:
		f.extents[i] = after
	default:
		f.extents = slices.Delete(f.extents, i, i+1)
	}
}

// give adds a range that was in use.
func (f *freeList) give(r Extent) error {
	i, grown := f.at(r.Base), int64(f.end()-f.origin)
	switch {
	case r.Bytes <= 0 || r.Bytes > grown || r.Base < f.origin || uint64(r.Base-f.origin) > uint64(grown-r.Bytes),
		int64(r.Base-f.origin)%Granularity != 0 || r.Bytes%Granularity != 0,
		f.segment(r.Base) != f.segment(r.End()-1):
		return fmt.Errorf("%d bytes at %#x are no memory of the pinned pool", r.Bytes, uint64(r.Base))
	case i < len(f.extents) && f.extents[i].Base < r.End():
		return fmt.Errorf("%d bytes at %#x are not in use: they were given back before", r.Bytes, uint64(r.Base))
	}
	f.bytes += r.Bytes
	joinsNext := i < len(f.extents) && f.extents[i].Base == r.End() && f.segment(r.Base) == f.segment(r.End())
	joinsLast := i > 0 && f.extents[i-1].End() == r.Base && f.segment(f.extents[i-1].Base) == f.segment(r.Base)
	switch {
	case joinsLast && joinsNext:
		f.extents[i-1].Bytes += r.Bytes + f.extents[i].Bytes
		f.extents = slices.Delete(f.extents, i, i+1)
	case joinsLast:
		f.extents[i-1].Bytes += r.Bytes
	case joinsNext:
		f.extents[i] = Extent{Base: r.Base, Bytes: r.Bytes + f.extents[i].Bytes}
	default:
		f.extents = slices.Insert(f.extents, i, r)
	}
	return nil
}
