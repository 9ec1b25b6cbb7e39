package plan

import "slices"

// shelf is the buffers placed so far, by offset.
type shelf struct {
	placed []placed
	wraps  bool
}

// placed is a copy of what matters when the next place is sought, packed for the scan.
type placed struct {
	offset, top            int64
	lower, upper           int32
	againLower, againUpper int32
}

// fit chooses among the gaps that are large enough.
type fit uint8

const (
	firstFit fit = iota // the lowest
	bestFit             // the tightest; above all others where none is large enough
)

// find gives the offset for a buffer. It scans all that lies below: with tens of
// thousands of buffers this is still quicker than an index, because the scan is linear in memory.
func (s *shelf) find(b *buffer, f fit) int64 {
	if b.pinned {
		return b.offset
	}
	var floor, best int64
	tightest := int64(-1)
	for i := range s.placed {
		p := &s.placed[i]
		if p.upper <= b.lower || b.upper <= p.lower {
			if !s.wraps || !s.overlapsAgain(p, b) {
				continue
			}
		}
		if p.offset > floor {
			at := alignUp(floor, b.align)
			if gap := p.offset - at; gap >= b.bytes {
				if f == firstFit {
					return at
				}
				if tightest < 0 || gap < tightest {
					tightest, best = gap, at
				}
			}
		}
		floor = max(floor, p.top)
	}
	if tightest >= 0 {
		return best
	}
	return alignUp(floor, b.align)
}

// overlapsAgain is for lifetimes of two pieces, whose first pieces do not overlap.
func (s *shelf) overlapsAgain(p *placed, b *buffer) bool {
	again := b.againLower < b.againUpper
	if again && b.againLower < p.upper && p.lower < b.againUpper {
		return true
	}
	if p.againLower >= p.againUpper {
		return false
	}
	return b.lower < p.againUpper && p.againLower < b.upper ||
		again && b.againLower < p.againUpper && p.againLower < b.againUpper
}

func (s *shelf) put(b *buffer, offset int64) {
	at, _ := slices.BinarySearchFunc(s.placed, offset, func(p placed, offset int64) int {
		if p.offset < offset {
			return -1
		}
		return 1
	})
	s.placed = slices.Insert(s.placed, at, placed{offset, offset + b.bytes, b.lower, b.upper, b.againLower, b.againUpper})
}

// pack places all buffers in the given order and returns the height. Pinned ones
// must come first. It gives up, returning false, once the height reaches limitBytes
// (0: no limit) or stop says so.
func (p *problem) pack(order []int32, f fit, limitBytes int64, offsets []int64, stop func() bool) (int64, bool) {
	s := shelf{placed: make([]placed, 0, len(order)), wraps: p.wraps}
	var height int64
	for n, i := range order {
		if n%512 == 511 && stop() {
			return height, false
		}
		b := &p.buffers[i]
		at := s.find(b, f)
		s.put(b, at)
		offsets[i] = at
		if height = max(height, at+b.bytes); limitBytes > 0 && height >= limitBytes {
			return height, false
		}
	}
	return height, true
}
