package correlate

const (
	// mostSizes is how many sizes are remembered; when there are more all are forgotten.
	mostSizes = 1 << 12
	// newestSizes is how many allocations tell whether sizes change, leastSizes how many at least. They do from where changedMost of
	// them have another size than their counterpart, until changedLeast have. In recordings of one shape so many have only in the
	// second iteration, if at all; where shapes change 0.7 to 0.97 have, and fewer where the optimizer allocates.
	newestSizes  = 256
	leastSizes   = 64
	changedMost  = 0.5
	changedLeast = 0.2
	// what has been looked up is kept by a hash of newestBits (Fibonacci hashing, Knuth, The Art of Computer Programming, 6.4)
	newestBits   = 8
	newestLooked = 1 << newestBits
	sizeHash     = 0x9e3779b97f4a7c15
)

// sizeMap is what allocations have now whose counterparts had others: where an iteration is longer than the one that it repeats,
// what had one size has another, wherever it is. An iteration has few sizes and many allocations of each, so that most of
// what is to come is known when its first layer has been seen.
type sizeMap struct {
	now     map[int64]int64 // by the size of the counterpart
	newest  [newestLooked]looked
	version uint64  // of now
	changed float64 // the part of the newest allocations whose size is not that of their counterpart
	seen    float64 // of these
	varies  bool
	since   int64 // the position from which on they do
}

// looked is what was found in a sizeMap of a version.
type looked struct {
	past, now int64
	version   uint64
}

// learn notes that an allocation has a size and its counterpart had one.
func (s *sizeMap) learn(past, now, position int64) {
	s.seen = min(s.seen+1, newestSizes)
	s.changed -= s.changed / s.seen
	if now != past {
		s.changed += 1 / s.seen
	}
	if s.seen >= leastSizes && (s.changed > changedMost || s.changed < changedLeast) {
		if s.changed > changedMost && !s.varies {
			s.since = position
		}
		s.varies = s.changed > changedMost
	}
	if was, known := s.now[past]; known && was == now {
		return
	}
	if s.now == nil || len(s.now) == mostSizes {
		s.now = map[int64]int64{}
	}
	s.now[past] = now
	s.version++
}

// of is what an allocation is expected to have whose counterpart had a size.
func (s *sizeMap) of(past int64) int64 {
	if !s.varies {
		return past
	}
	l := &s.newest[uint64(past)*sizeHash>>(64-newestBits)]
	if l.past != past || l.version != s.version {
		*l = looked{past, past, s.version}
		if now, ok := s.now[past]; ok {
			l.now = now
		}
	}
	return l.now
}

// Varies says whether allocations have other sizes than in the past that the present repeats: not where few have, as where a
// job begins, or has lost its place.
func (h *History) Varies() bool { return h.sizes.varies }

// VariedFor is for how many operations allocations have had other sizes, 0 when they have not.
func (h *History) VariedFor() int64 {
	if !h.Varies() {
		return 0
	}
	return h.now - h.sizes.since
}

// learnSizes learns from what was allocated since the last operation.
func (h *History) learnSizes() {
	for i := h.newTurns; i < h.turns.end; i++ {
		t := h.turns.at(i)
		in := h.instance(t.id)
		if t.death || in.gen != t.gen || in.past == noInstance {
			continue
		}
		if p := h.instance(in.past); p.gen == in.pastGen {
			h.sizes.learn(p.bytes, in.bytes, h.now)
		}
	}
}

// expected are the bytes that are expected to be allocated and freed before an operation that repeats a step, of which
// some turns have been.
func (h *History) expected(s *step, from int64) (fresh, freed int64) {
	for i := from; i < s.turnsEnd; i++ {
		t := h.turns.at(i)
		in := h.instance(t.id)
		switch {
		case in.gen != t.gen:
		case t.death:
			freed += h.sizes.of(in.bytes)
		default:
			fresh += h.sizes.of(in.bytes)
		}
	}
	return fresh, freed
}

// unlike says whether many allocations of late have another size than their counterparts, or it is taken that they have.
func (s *sizeMap) unlike() bool { return s.varies || s.changed > changedLeast }
