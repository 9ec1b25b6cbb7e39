package plan

import (
	"errors"
	"fmt"
	"slices"
)

// maxBytes keeps sums of sizes far from overflow; no machine comes near it.
const maxBytes = 1 << 60

// InputError says what is wrong with a request.
type InputError struct {
	Request int // index
	Problem string
}

func (e *InputError) Error() string { return fmt.Sprintf("request %d %s", e.Request, e.Problem) }

// problem is a set of requests made ready for search: times are numbered densely,
// and requests that need no place are left out.
type problem struct {
	buffers    []buffer
	index      []int32 // of the request behind each buffer
	times      int32   // how many there are
	wraps      bool    // some buffer has two pieces
	pinned     bool    // some buffer has its place given
	peakBytes  int64   // most bytes alive at once
	boundBytes int64   // no placement is lower
}

// buffer is a request in dense time.
type buffer struct {
	lower, upper           int32
	againLower, againUpper int32 // equal: one piece
	bytes                  int64
	align                  int64
	offset                 int64 // when pinned
	pinned                 bool
}

func (b *buffer) duration() int32 { return b.upper - b.lower + b.againUpper - b.againLower }

// overlaps says that both are alive at some time.
func (b *buffer) overlaps(c *buffer) bool {
	return b.lower < c.upper && c.lower < b.upper ||
		b.againLower < c.upper && c.lower < b.againUpper && b.againLower < b.againUpper ||
		b.lower < c.againUpper && c.againLower < b.upper && c.againLower < c.againUpper ||
		b.againLower < c.againUpper && c.againLower < b.againUpper && b.againLower < b.againUpper && c.againLower < c.againUpper
}

func alignUp(offset, align int64) int64 {
	if rest := offset % align; rest != 0 {
		return offset + align - rest
	}
	return offset
}

// newProblem checks requests and prepares them.
func newProblem(requests []Request) (*problem, error) {
	p := &problem{}
	var times []int64
	var total int64
	for i, r := range requests {
		if text := r.problem(); text != "" {
			return nil, &InputError{i, text}
		}
		if total += r.Bytes; total > maxTotalBytes {
			return nil, errTooMuch
		}
		if r.Bytes == 0 {
			continue
		}
		times = append(times, r.Lower, r.Upper)
		if !r.Again.empty() {
			times = append(times, r.Again.Lower, r.Again.Upper)
		}
	}
	slices.Sort(times)
	times = slices.Compact(times)
	at := func(t int64) int32 {
		i, _ := slices.BinarySearch(times, t)
		return int32(i)
	}
	for i, r := range requests {
		if r.Bytes == 0 {
			continue
		}
		b := buffer{lower: at(r.Lower), upper: at(r.Upper), bytes: r.Bytes, align: max(1, r.AlignBytes), pinned: r.Pinned}
		if r.Pinned {
			b.offset = r.Offset
			p.pinned = true
		}
		if !r.Again.empty() {
			b.againLower, b.againUpper = at(r.Again.Lower), at(r.Again.Upper)
			p.wraps = true
		}
		p.buffers = append(p.buffers, b)
		p.index = append(p.index, int32(i))
	}
	p.times = int32(len(times))
	p.bound()
	return p, nil
}

func (r *Request) problem() string {
	switch {
	case r.Bytes < 0 || r.Bytes > maxBytes:
		return fmt.Sprintf("has an impossible size of %d bytes", r.Bytes)
	case r.Span.empty():
		return fmt.Sprintf("is never alive: lower %d, upper %d", r.Lower, r.Upper)
	case !r.Again.empty() && r.Again.Lower < r.Upper && r.Lower < r.Again.Upper:
		return "has two pieces of lifetime that overlap"
	case r.AlignBytes < 0 || r.AlignBytes > maxBytes:
		return fmt.Sprintf("has an impossible alignment of %d bytes", r.AlignBytes)
	case r.Pinned && (r.Offset < 0 || r.Offset > maxBytes):
		return fmt.Sprintf("is pinned to an impossible offset %d", r.Offset)
	case r.Pinned && r.AlignBytes > 1 && r.Offset%r.AlignBytes != 0:
		return fmt.Sprintf("is pinned to offset %d, which is no multiple of its alignment %d", r.Offset, r.AlignBytes)
	}
	return ""
}

// maxTotalBytes bounds the sum over all requests, so that no sum of some overflows.
const maxTotalBytes = 1 << 62

var errTooMuch = errors.New("the sizes add up to more than 2^62 bytes")

// bound works out peakBytes and boundBytes.
func (p *problem) bound() {
	change := make([]int64, p.times+1)
	for i := range p.buffers {
		b := &p.buffers[i]
		change[b.lower] += b.bytes
		change[b.upper] -= b.bytes
		if b.againLower < b.againUpper {
			change[b.againLower] += b.bytes
			change[b.againUpper] -= b.bytes
		}
		if b.pinned {
			p.boundBytes = max(p.boundBytes, b.offset+b.bytes)
		}
	}
	var live int64
	for _, c := range change {
		live += c
		p.peakBytes = max(p.peakBytes, live)
	}
	p.boundBytes = max(p.boundBytes, p.peakBytes)
}
