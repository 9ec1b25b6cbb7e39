package stitch

import "github.com/penstock-gpu/penstock/internal/segments"

// Segments are the memory of the arenas, and what is allocated in stitched ranges at the addresses of these. What is lent to a
// [Range] is for its user to tell of.
func (p *Pool) Segments() (all []segments.Segment) {
	states := make(map[*block]segments.State, len(p.live)+len(p.waiting)) // by first block
	for _, b := range p.live {
		states[b] = segments.Allocated
	}
	for _, b := range p.waiting {
		states[b] = segments.AwaitingFree
	}
	for b, state := range states {
		if b.stitched == nil {
			continue
		}
		bytes := int64(0)
		for _, part := range b.stitched.parts {
			bytes += part.bytes
		}
		s := segments.Segment{Address: b.stitched.base, Stream: b.stream}
		s.Append(bytes, b.requested, state)
		all = append(all, s)
	}
	for _, a := range []*arena{p.small, p.large} {
		if a != nil {
			all = append(all, a.segments(states)...)
		}
	}
	return all
}

// segments are the runs of blocks of one stream between which there is no memory, or memory that is shown elsewhere.
func (a *arena) segments(states map[*block]segments.State) (all []segments.Segment) {
	var s *segments.Segment
	for b := a.first; b != nil; b = b.next {
		state, allocated := states[b]
		if b.state != free && (!allocated || b.stitched != nil) {
			s = nil
			continue
		}
		if s == nil || s.Stream != b.stream {
			all = append(all, segments.Segment{Address: b.base, Stream: b.stream, Small: a.small})
			s = &all[len(all)-1]
		}
		if allocated {
			s.Append(b.bytes, b.requested, state)
		} else {
			s.Append(b.bytes, 0, segments.Inactive)
		}
	}
	return all
}

// Kept visits the stretches of an active range that still have their memory.
func (r *Range) Kept(visit func(offset, bytes int64)) {
	at, from := int64(0), int64(0)
	for _, c := range r.chunks {
		if r.gone[c] {
			if at > from {
				visit(from, at-from)
			}
			from = at + c.bytes
		}
		at += c.bytes
	}
	if at > from {
		visit(from, at-from)
	}
}
