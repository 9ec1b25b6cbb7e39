package correlate

import (
	"math"
	"slices"
)

// A job may run several programs by turns: training and evaluation, two models, tokens and an update. What follows one is what
// followed it before. Where the present departs from what is repeated, or does the same with other tensors, all places in the log are
// compared that may be meant, by how far back the job did the same.

const (
	mostPlaces       = 64       // that are compared, the newest
	mostUses         = 1024     // of the anchor, of which any may show a place
	mostWait         = 64       // operations without a search after one that found nothing
	anchorOps        = 64       // operations after which a tensor no longer shows the place
	anchorRest       = 32       // operations from one use of it to the next, on average, at least: what is used everywhere shows nothing
	mostStrangers    = 1        // operations in a row with other tensors than those repeated: more are another program, or place
	changedStrangers = 16       // and where shapes change
	knownOps         = 32       // operations that must be the same where the present departs from what is repeated
	driftOps         = 256      // operations over which it counts how much more is alive than where they are repeated
	driftPart        = 1.0 / 16 // of the most that ever was: more is another program
	leastGrown       = 64       // operations that must be the same for what is alive to be compared
	mostRelinked     = 1 << 14  // operations back, of which lives get other counterparts
	similarPart      = 8        // a past that is shorter by this part is as good
	sumMultiplier    = 0x9e3779b97f4a7c15
)

// powers are those of sumMultiplier to 1, 2, 4 ...
var powers = func() (p [18]uint64) {
	p[0] = sumMultiplier
	for i := 1; i < len(p); i++ {
		p[i] = p[i-1] * p[i-1]
	}
	return p
}()

// doubt is why what is repeated may be something else.
type doubt int

const (
	noDoubt    doubt = iota
	otherPlace       // it is another operation, or one on another tensor that stays
	otherBytes       // much more is alive, or much less
)

// sum is that of all operations up to the next one: a polynomial, so that two sums tell whether what lies between them is the same
// as between two others.
func (h *History) sum(signature uint64) (sum uint64) {
	if p := h.at(h.now - 1); p != nil {
		sum = p.sum * sumMultiplier
	}
	signature = (signature ^ contextSeed) * contextMultipler
	return sum + (signature ^ signature>>31)
}

// enter notes that the newest operations are at the next position, and answers where they were before.
func (h *History) enter() (older int64) {
	entry := &h.index[h.context()&uint64(len(h.index)-1)]
	older = *entry - 1
	*entry = h.now + 1
	return older
}

// common is how many operations up to a position are the same as up to the newest one.
func (h *History) common(position int64) (n int64) {
	back := h.now - 1 - position
	for k := len(powers) - 1; k >= 0; k-- {
		size := int64(1) << k
		end := position - n
		begin := end - size
		if begin < h.base {
			continue
		}
		past := h.steps.at(end).sum - h.steps.at(begin).sum*powers[k]
		if past == h.steps.at(end+back).sum-h.steps.at(begin+back).sum*powers[k] {
			n += size
		}
	}
	return n
}

// doubtful says why an operation that repeats the function at a position may be of another program, or of another place in it.
func (h *History) doubtful(repeated int64, touched []InstanceID, exact bool) doubt {
	if repeated == noPosition {
		h.drift = 0
		return noDoubt
	}
	if h.Varies() {
		h.drift = 0
	} else if h.missed == 0 {
		s := h.at(repeated)
		h.drift += float64((h.freshBytes-h.freedBytes)-(s.freshBytes-s.freedBytes)) - h.drift/driftOps
	}
	switch {
	case !exact && !h.usedAt(repeated, touched):
		h.strangers++
	case h.anyStays(touched):
		h.strangers = 0
	}
	switch {
	case h.strangers > mostStrangers:
		return otherPlace
	case math.Abs(h.drift) > driftPart*float64(h.mostLive):
		return otherBytes
	}
	return noDoubt
}

// grown is how many bytes more were alive at a position than so many operations before.
func (h *History) grown(position, operations int64) int64 {
	return h.at(position).live - h.at(position-operations+1).live
}

// grewAs says whether what is alive became more in some operations up to a position as it did in the newest, and closer so than up
// to the position that was to come.
func (h *History) grewAs(position, operations int64) bool {
	now, expected := h.grown(h.now-1, operations), h.grown(h.cursor+1, operations)
	off, was := h.grown(position, operations)-now, expected-now
	return 2*max(off, -off) < max(was, -was)
}

// anyStays says whether one of some tensors has stayed since before the cursor.
func (h *History) anyStays(touched []InstanceID) bool {
	return slices.ContainsFunc(touched, func(id InstanceID) bool { return h.instance(id).born <= h.cursor })
}

// usedAt says whether all tensors that have stayed since before a position were used at it.
func (h *History) usedAt(position int64, touched []InstanceID) bool {
	for _, id := range touched {
		if in := h.instance(id); in.born <= position {
			if _, ok := slices.BinarySearch(in.uses, position); !ok {
				return false
			}
		}
	}
	return true
}

// anchor is an allocation that showed which place in the log is meant, when the operation at a position touched it.
type anchor struct {
	id       InstanceID
	position int64
}

// place is a position in the log and how many operations up to it look like the newest ones.
type place struct{ position, common int64 }

// search looks for the place in the log that the present repeats, where at least so many operations are the same as the newest
// ones, and puts the cursor there. The longest past counts. Of several about as long the newest is taken where it repeats itself,
// for what goes on goes on; else the oldest: a phase has begun, and that was the beginning of the last one.
func (h *History) search(why doubt, least int64, touched []InstanceID) bool {
	if h.sizes.unlike() && (h.missed > 0 || h.strangers <= changedStrangers) || h.now <= h.searchAt || h.now-h.anchors[0].position > anchorOps {
		return false
	}
	places, longest := h.places(why, max(least, h.now-h.anchors[0].position), touched)
	if len(places) == 0 {
		h.wait = min(2*h.wait+1, mostWait)
		h.searchAt = h.now + h.wait
		return false
	}
	var best place
	for _, p := range places { // the newest first
		if p.common < longest-longest/similarPart {
			continue
		}
		if best = p; p.common >= h.now-1-p.position {
			break
		}
	}
	h.wait, h.drift, h.strangers = 0, 0, 0
	h.jump(best.position)
	h.relink(best.common)
	return true
}

// places are the newest of those that search compares, and the longest past of them: where the anchor was used.
func (h *History) places(why doubt, least int64, touched []InstanceID) (places []place, longest int64) {
	oldest := h.base
	if h.now-h.base > int64(h.maxOps-2*h.maxOps/trimFraction) {
		oldest += 2 * int64(h.maxOps/trimFraction) // what is about to be forgotten is no place to go on at
	}
	in, after := h.instance(h.anchors[0].id), h.now-1-h.anchors[0].position
	if why == otherBytes {
		least = max(least, leastGrown)
	}
	last := indexAfter(in.uses, h.anchors[0].position-1) - 1
	for k := last; k >= 0 && k > last-mostUses && in.uses[k]+after >= oldest && len(places) < mostPlaces; k-- {
		p := in.uses[k] + after
		if h.at(p).signature != h.recent[contextOps-1] || !h.usedAt(p, touched) {
			continue
		}
		if n := h.common(p); n >= least && h.showsAll(p, n) && (why != otherBytes || h.grewAs(p, min(n, driftOps))) {
			places, longest = append(places, place{p, n}), max(longest, n)
		}
	}
	return places, longest
}

// anchored says whether an allocation has stayed, and is used seldom enough to show a place in the log.
func (h *History) anchored(in *instance) bool {
	return in.born <= h.stayed && int64(len(in.uses))*anchorRest <= h.now-max(in.born, h.base)
}

// findAnchor notes which of the tensors that the newest operation touches shows its place best, if any does: that which is used least.
func (h *History) findAnchor(touched []InstanceID) {
	best := InstanceID(noInstance)
	for _, id := range touched {
		if in := h.instance(id); h.anchored(in) && (best == noInstance || len(in.uses) < len(h.instance(best).uses)) {
			best = id
		}
	}
	if best == noInstance {
		return
	}
	if h.anchors[0].id != best {
		copy(h.anchors[1:], h.anchors[:])
	}
	h.anchors[0] = anchor{best, h.now}
}

// showsAll says whether every anchor was used where a position has it, among so many operations up to it: one alone may be an address
// that was left behind in a kernel's parameters.
func (h *History) showsAll(position, operations int64) bool {
	back := h.now - 1 - position
	for _, a := range h.anchors {
		if a.position < h.now-operations {
			break
		}
		if _, ok := slices.BinarySearch(h.instance(a.id).uses, a.position-back); !ok {
			return false
		}
	}
	return true
}

// relink makes what was born at the cursor's new place, of the newest operations that look as there, the counterparts of what
// was born now.
func (h *History) relink(common int64) {
	back := h.now - 1 - h.cursor
	for p := h.now - min(common, back, mostRelinked); p < h.now; p++ {
		now, past := h.steps.at(p), h.steps.at(p-back)
		other := past.turns
		for i := now.turns; i < now.turnsEnd; i++ {
			in, born := h.birth(i)
			if !born {
				continue
			}
			for ; other < past.turnsEnd; other++ {
				if u, was := h.birth(other); was && u.bytes == in.bytes {
					in.past, in.pastGen = h.turns.at(other).id, u.gen
					other++
					break
				}
			}
		}
	}
}

// birth is the life that begins at a turn; false where one ends, or it is forgotten.
func (h *History) birth(turn int64) (*instance, bool) {
	t := h.turns.at(turn)
	in := h.instance(t.id)
	return in, !t.death && in.gen == t.gen
}
