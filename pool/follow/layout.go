package follow

import (
	"fmt"
	"slices"
	"sort"
)

// AnyStream is the stream of memory that no queued work can touch.
const AnyStream = ^uint64(0)

// span is part of the planned addresses. Spans cover them.
type span struct {
	lo, hi    int64
	requested int64 // by the caller; 0: free
	stream    uint64
	freed     uint64 // count of the stream's frees when this was last one; for free spans
	others    []uint64
}

// Layout is what lies where in planned addresses.
type Layout struct {
	spans []*span // by address
	used  int
	// done says whether a stream's work has passed its free of that number.
	done func(stream, freed uint64, wait bool) bool
}

// NewLayout returns the layout of so many free bytes that one stream may use, and others once its work has passed its
// free of that number.
func NewLayout(bytes int64, stream, freed uint64, done func(stream, freed uint64, wait bool) bool) *Layout {
	return &Layout{spans: []*span{{hi: bytes, stream: stream, freed: freed}}, done: done}
}

func (l *Layout) at(offset int64) int {
	return sort.Search(len(l.spans), func(i int) bool { return l.spans[i].hi > offset })
}

// Place takes bytes at an offset for work on a stream, if all of them are free and
// no other stream's work may still touch them.
func (l *Layout) Place(offset, bytes, requested int64, stream uint64) bool {
	i := l.at(offset)
	j := i
	for ; ; j++ {
		if j == len(l.spans) || l.spans[j].requested > 0 || !l.mayUse(l.spans[j], stream, false) {
			return false
		}
		if l.spans[j].hi >= offset+bytes {
			break
		}
	}
	first, last := l.spans[i], l.spans[j]
	x := &span{lo: offset, hi: offset + bytes, requested: requested, stream: stream}
	var with [3]*span
	parts := with[:0]
	if first.lo < offset {
		parts = append(parts, &span{lo: first.lo, hi: offset, stream: first.stream, freed: first.freed})
	}
	parts = append(parts, x)
	if last.hi > x.hi {
		last.lo = x.hi
		parts = append(parts, last)
	}
	l.replace(i, j+1, parts)
	l.used++
	return true
}

// replace puts others in the place of the spans [i, j).
func (l *Layout) replace(i, j int, with []*span) {
	switch more := len(with) - (j - i); {
	case more > 0:
		n := len(l.spans)
		l.spans = slices.Grow(l.spans, more)[:n+more]
		copy(l.spans[j+more:], l.spans[j:n])
	case more < 0:
		l.spans = slices.Delete(l.spans, i, i-more)
	}
	copy(l.spans[i:], with)
}

func (l *Layout) mayUse(s *span, stream uint64, wait bool) bool {
	if s.stream == stream || s.stream == AnyStream {
		return true
	}
	if !l.done(s.stream, s.freed, wait) {
		return false
	}
	s.stream, s.freed = AnyStream, 0
	return true
}

// Requested is what was asked for at an offset; 0 when nothing in use starts there.
func (l *Layout) Requested(offset int64) int64 {
	if s := l.find(offset); s != nil {
		return s.requested
	}
	return 0
}

// Containing is the allocation that an offset lies in.
func (l *Layout) Containing(offset int64) (from, bytes int64, ok bool) {
	if i := l.at(offset); i < len(l.spans) && l.spans[i].requested > 0 {
		return l.spans[i].lo, l.spans[i].hi - l.spans[i].lo, true
	}
	return 0, 0, false
}

// Stream is whose work an allocation was made for.
func (l *Layout) Stream(offset int64) uint64 {
	if s := l.find(offset); s != nil {
		return s.stream
	}
	return AnyStream
}

func (l *Layout) find(offset int64) *span {
	if i := l.at(offset); i < len(l.spans) && l.spans[i].lo == offset && l.spans[i].requested > 0 {
		return l.spans[i]
	}
	return nil
}

// Record notes another stream that uses what lies at an offset.
func (l *Layout) Record(offset int64, stream uint64) {
	if s := l.find(offset); s != nil && s.stream != stream && !slices.Contains(s.others, stream) {
		s.others = append(s.others, stream)
	}
}

// Recorded are the other streams noted.
func (l *Layout) Recorded(offset int64) []uint64 {
	if s := l.find(offset); s != nil {
		return s.others
	}
	return nil
}

// Free frees what lies at an offset, as its stream's free of that number.
func (l *Layout) Free(offset int64, freed uint64) error {
	i := l.at(offset)
	if i == len(l.spans) || l.spans[i].lo != offset || l.spans[i].requested == 0 {
		return fmt.Errorf("nothing lies at offset %d of the plan", offset)
	}
	l.used--
	s := l.spans[i]
	s.requested, s.freed, s.others = 0, freed, nil
	from, to := i, i+1
	if to < len(l.spans) && joins(s, l.spans[to]) {
		s.hi = l.spans[to].hi
		s.freed = max(s.freed, l.spans[to].freed)
		to++
	}
	if from > 0 && joins(s, l.spans[from-1]) {
		from--
		s.lo = l.spans[from].lo
		s.freed = max(s.freed, l.spans[from].freed)
	}
	if to-from > 1 {
		l.replace(from, to, []*span{s})
	}
	return nil
}

// joins says whether a free span can become one with a freed one.
func joins(s, n *span) bool {
	return n.requested == 0 && (n.stream == s.stream || n.stream == AnyStream)
}

// Each visits what is in use, by address: its bytes, what was asked for, and whether it is used by the stream alone.
func (l *Layout) Each(stream uint64, visit func(offset, bytes, requested int64, alone bool)) {
	for _, s := range l.spans {
		if s.requested > 0 {
			visit(s.lo, s.hi-s.lo, s.requested, s.stream == stream && len(s.others) == 0)
		}
	}
}

// MayUseAll says whether a stream may use all that is free.
func (l *Layout) MayUseAll(stream uint64) bool {
	for _, s := range l.spans {
		if s.requested == 0 && !l.mayUse(s, stream, false) {
			return false
		}
	}
	return true
}

// HasUsedAll notes that a stream, which could, may have used all that is free, until its free of that number.
func (l *Layout) HasUsedAll(stream, freed uint64) {
	kept := l.spans[:0]
	for _, s := range l.spans {
		if s.requested == 0 {
			s.stream, s.freed = stream, freed
			if n := len(kept); n > 0 && kept[n-1].requested == 0 {
				kept[n-1].hi = s.hi
				continue
			}
		}
		kept = append(kept, s)
	}
	clear(l.spans[len(kept):])
	l.spans = kept
}

// Used is how many allocations there are.
func (l *Layout) Used() int { return l.used }

// Idle says whether all of a stretch is free for a stream. It may wait for others' work.
func (l *Layout) Idle(offset, bytes int64, stream uint64, wait bool) bool {
	for i := l.at(offset); i < len(l.spans) && l.spans[i].lo < offset+bytes; i++ {
		if l.spans[i].requested > 0 || !l.mayUse(l.spans[i], stream, wait) {
			return false
		}
	}
	return true
}

// FitIn finds the first place for so many bytes within [lo, hi) that is free for a stream.
func (l *Layout) FitIn(lo, hi, bytes int64, stream uint64) (offset int64, ok bool) {
	start := lo
	for i := l.at(lo); i < len(l.spans) && hi-start >= bytes; i++ {
		s := l.spans[i]
		if s.requested > 0 || !l.mayUse(s, stream, false) {
			start = s.hi
			continue
		}
		if min(s.hi, hi)-start >= bytes {
			return start, true
		}
	}
	return 0, false
}

// Fit finds a free place for so many bytes that the next steps leave alone for as
// long as possible: it is how what is not planned gets room between what is.
func (l *Layout) Fit(bytes int64, stream uint64, coming []Gap) (offset int64, ok bool) {
	const mostTried = 64
	best, tried := -1, 0
	for i := 0; i < len(l.spans) && tried < mostTried && best < len(coming); i++ {
		s := l.spans[i]
		if s.hi-s.lo < bytes || s.requested > 0 || !l.mayUse(s, stream, false) {
			continue
		}
		tried++
		for _, at := range [2]int64{s.lo, s.hi - bytes} {
			until := 0
			for until < len(coming) && (coming[until].Hi <= at || coming[until].Lo >= at+bytes) {
				until++
			}
			if until > best {
				best, offset, ok = until, at, true
			}
		}
	}
	return offset, ok
}

// LiveBytes is what was asked for in all that is in use.
func (l *Layout) LiveBytes() (n int64) {
	for _, s := range l.spans {
		n += s.requested
	}
	return n
}

// Check verifies that spans cover the addresses and that like ones are joined.
func (l *Layout) Check(bytes int64) error {
	at, used := int64(0), 0
	for _, s := range l.spans {
		if s.lo != at || s.hi <= s.lo {
			return fmt.Errorf("the layout has a gap or overlap at %d", at)
		}
		if at = s.hi; s.requested > 0 {
			used++
		}
	}
	if at != bytes || used != l.used {
		return fmt.Errorf("the layout ends at %d of %d, with %d of %d in use", at, bytes, used, l.used)
	}
	return nil
}
