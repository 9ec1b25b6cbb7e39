package plan

// Span is a stretch of time, half-open: [Lower, Upper).
type Span struct{ Lower, Upper int64 }

// empty says that there is no time in the span.
func (s Span) empty() bool { return s.Upper <= s.Lower }

// Request is one buffer that needs a place.
type Request struct {
	Span             // when it is alive
	Again      Span  // a second piece of its lifetime, for one that wraps around a period; empty: none
	Bytes      int64 // 0 needs no place, and gets offset 0
	AlignBytes int64 // the offset is a multiple of it; 0 is 1
	Pinned     bool  // the place is given
	Offset     int64 // when Pinned
}
