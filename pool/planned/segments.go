package planned

import (
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
)

// Segments are the planned addresses that have memory, and what is stitched.
func (p *Pool) Segments() []segments.Segment {
	p.EndScript()
	all := p.below.Segments()
	for _, a := range p.service.areas {
		base := a.ran.Base()
		a.ran.Kept(func(from, size int64) {
			s := segments.Segment{Address: base + cuda.Ptr(from), Stream: a.stream}
			a.layout.Each(a.stream, func(offset, bytes, requested int64, _ bool) {
				at := base + cuda.Ptr(offset)
				if offset < from || offset >= from+size {
					return
				}
				state := segments.Allocated
				if p.isWaiting(a, offset) {
					state = segments.AwaitingFree
				}
				s.FillTo(at)
				s.Append(bytes, requested, state)
			})
			s.FillTo(base + cuda.Ptr(from+size))
			all = append(all, s)
		})
	}
	return all
}
