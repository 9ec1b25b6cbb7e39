package explicit

import (
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
)

// Segments are the tensors, wherever their contents are, and the dead ranges that are on the device. Of a stream they have the number.
func (r *tensors) Segments() (all []segments.Segment) {
	for _, t := range r.Slots.All() {
		if t != nil && !t.Freed {
			all = append(all, t.segment())
		}
	}
	for _, t := range r.dead.order {
		if t.deviceBytes() > 0 {
			all = append(all, t.segment())
		}
	}
	return all
}

// segment is the range of a tensor, with what is alive in it.
func (t *tensor) segment() segments.Segment {
	s := segments.Segment{Address: t.base, Stream: uint64(t.Stream), Tensor: true, OnDevice: t.deviceBytes()}
	switch {
	case t.Freed || t.retained:
	case t.parts == nil:
		s.Append(t.size, t.bytes, segments.Allocated)
	default:
		for k := range t.parts {
			if p := &t.parts[k]; p.state == alive {
				s.FillTo(t.place(p).Base)
				s.Append(min(wholeUnits(p.bytes), t.size-p.offset), p.bytes, segments.Allocated)
			}
		}
	}
	s.FillTo(t.base + cuda.Ptr(t.size))
	return s
}
