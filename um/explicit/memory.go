package explicit

import (
	"cmp"
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
)

// addresses hands out ranges of the reservation. A range given back is given out
// again for the same size first, the newest first, so that an iteration sees the
// addresses of the one before.
type addresses struct {
	cuda.Range
	next cuda.Ptr
	free map[int64][]cuda.Ptr
}

func newAddresses(r cuda.Range) *addresses {
	return &addresses{Range: r, next: r.Base, free: map[int64][]cuda.Ptr{}}
}

func (a *addresses) take(size int64) (cuda.Ptr, bool) {
	if l := a.free[size]; len(l) > 0 {
		a.free[size] = l[:len(l)-1]
		return l[len(l)-1], true
	}
	if p, ok := a.fresh(size); ok {
		return p, true
	}
	if p, ok := a.carve(size); ok {
		return p, true
	}
	a.gather()
	if p, ok := a.fresh(size); ok {
		return p, true
	}
	return a.carve(size)
}

// fresh takes a range that was never given out.
func (a *addresses) fresh(size int64) (cuda.Ptr, bool) {
	if int64(a.End()-a.next) < size {
		return 0, false
	}
	p := a.next
	a.next += cuda.Ptr(size)
	return p, true
}

// carve cuts a range from the smallest free one that is large enough: the
// reservation is used up.
func (a *addresses) carve(size int64) (cuda.Ptr, bool) {
	best := int64(0)
	for s, l := range a.free {
		if s >= size && len(l) > 0 && (best == 0 || s < best) {
			best = s
		}
	}
	if best == 0 {
		return 0, false
	}
	l := a.free[best]
	p := l[len(l)-1]
	a.free[best] = l[:len(l)-1]
	if best > size {
		a.give(p+cuda.Ptr(size), best-size)
	}
	return p, true
}

// gather joins free ranges that touch. A job of ever new sizes would else cut the
// reservation into pieces too small for anything.
func (a *addresses) gather() {
	var all []cuda.Range
	for size, l := range a.free {
		for _, p := range l {
			all = append(all, cuda.Range{Base: p, Bytes: size})
		}
	}
	slices.SortFunc(all, func(x, y cuda.Range) int { return cmp.Compare(x.Base, y.Base) })
	clear(a.free)
	for i := 0; i < len(all); {
		r := all[i]
		for i++; i < len(all) && all[i].Base == r.End(); i++ {
			r.Bytes += all[i].Bytes
		}
		if r.End() == a.next {
			a.next = r.Base
		} else {
			a.give(r.Base, r.Bytes)
		}
	}
}

func (a *addresses) give(p cuda.Ptr, size int64) { a.free[size] = append(a.free[size], p) }

func (a *addresses) contains(p cuda.Ptr) bool { return p >= a.Base && p < a.End() }

// physical is the ledger of physical device memory.
type physical struct {
	mapped    int64 // bytes that chunks hold, dead ones and those on the way included
	spare     map[int64][]cuda.Handle
	spares    int64                     // bytes of spare handles
	releasing int64                     // bytes of handles that a worker is unmapping or releasing
	going     int64                     // of these, bytes that are released before anything is created
	aliases   map[cuda.Handle][]*tensor // dead ranges that are mapped to memory which something else has: see alias.go
}

func (p *physical) total() int64 { return p.mapped + p.spares + p.releasing }

// takeSpare takes a spare handle of just this size.
func (p *physical) takeSpare(bytes int64) (cuda.Handle, bool) {
	l := p.spare[bytes]
	if len(l) == 0 {
		return 0, false
	}
	p.spare[bytes] = l[:len(l)-1]
	p.spares -= bytes
	return l[len(l)-1], true
}

func (p *physical) giveSpare(h cuda.Handle, bytes int64) {
	p.spare[bytes] = append(p.spare[bytes], h)
	p.spares += bytes
}

// anySize is for drop.
func anySize(int64) bool { return true }

// sparesThat are the bytes of spare handles of some sizes.
func (p *physical) sparesThat(which func(size int64) bool) (bytes int64) {
	for s, l := range p.spare {
		if len(l) > 0 && which(s) {
			bytes += s * int64(len(l))
		}
	}
	return bytes
}

// drop takes spare handles of some sizes, the largest first, until bytes are gone.
func (p *physical) drop(bytes int64, which func(size int64) bool) (handles []cuda.Handle, dropped int64) {
	if bytes <= 0 || p.spares == 0 {
		return nil, 0
	}
	sizes := make([]int64, 0, len(p.spare))
	for s, l := range p.spare {
		if len(l) > 0 && which(s) {
			sizes = append(sizes, s)
		}
	}
	slices.Sort(sizes)
	for i := len(sizes) - 1; i >= 0 && bytes > 0; i-- {
		for bytes > 0 {
			h, ok := p.takeSpare(sizes[i])
			if !ok {
				break
			}
			handles = append(handles, h)
			bytes -= sizes[i]
			dropped += sizes[i]
		}
	}
	return handles, dropped
}
