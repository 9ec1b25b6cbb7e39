package managed

import "github.com/penstock-gpu/penstock/internal/segments"

// Segments are the live tensors, in whole blocks. Of a stream they have the number.
func (r *blocks) Segments() (all []segments.Segment) {
	for p, t := range r.ByPtr {
		s := segments.Segment{Address: p, Stream: uint64(t.Stream), Tensor: true, OnDevice: int64(t.present) * BlockBytes}
		s.Append(int64(t.n)*BlockBytes, t.bytes, segments.Allocated)
		all = append(all, s)
	}
	return all
}
