package trace

import (
	"math"
	"strings"
)

// PeakLiveBytes is the largest sum of live allocations at any moment, as
// requested (not rounded up the way an allocator would).
func (t *Trace) PeakLiveBytes() int64 {
	live := make(map[uint64]int64)
	var sum, peak int64
	for i := range t.Events {
		switch e := &t.Events[i]; e.Kind {
		case KindAlloc:
			sum = addBytes(sum, e.Bytes-live[e.Alloc])
			live[e.Alloc] = e.Bytes
			peak = max(peak, sum)
		case KindFree:
			sum -= live[e.Alloc]
			delete(live, e.Alloc)
		}
	}
	return peak
}

// addBytes adds without overflow: a sum that does not fit stays at the maximum.
func addBytes(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// Range is a run of event indices, First <= i < End.
type Range struct {
	Name       string // of the mark that begins it
	First, End int
}

// Iterations are the full training iterations, in order: each begins after a
// mark iter0, iter1, ... and ends before the next such mark or the mark end. One
// that no mark ends (the recording stopped in it) is not full and is left out.
func (t *Trace) Iterations() []Range {
	var all []Range
	open := false
	var cur Range
	for i := range t.Events {
		e := &t.Events[i]
		if e.Kind != KindMark {
			continue
		}
		begins := isIterationMark(e.Name)
		if open && (begins || e.Name == MarkEnd) {
			cur.End = i
			all = append(all, cur)
			open = false
		}
		if begins {
			cur, open = Range{Name: e.Name, First: i + 1}, true
		}
	}
	return all
}

// MarkEnd is the mark that ends the last iteration.
const MarkEnd = "end"

func isIterationMark(name string) bool {
	digits, ok := strings.CutPrefix(name, "iter")
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// Launch describes one kernel launch and its access set.
type Launch struct {
	Event    int    // index in Trace.Events; -1 when there is no launch
	Function uint32 // id
	Kernel   string // mangled name, or "function N" when the trace has no name for it
	Bytes    int64  // sum of the distinct allocations it names, whole
}

// LargestLaunch is the launch with the biggest access set: the least that a
// budget must hold. The first one wins a tie.
func (t *Trace) LargestLaunch() Launch {
	bytes := make(map[uint64]int64)
	largest := Launch{Event: -1}
	for i := range t.Events {
		switch e := &t.Events[i]; e.Kind {
		case KindAlloc:
			bytes[e.Alloc] = e.Bytes
		case KindFree:
			delete(bytes, e.Alloc)
		case KindLaunch:
			if n := accessSetBytes(e.Accesses, bytes); n > largest.Bytes || largest.Event < 0 {
				largest = Launch{Event: i, Bytes: n}
			}
		}
	}
	if largest.Event >= 0 {
		largest.Function = t.Events[largest.Event].Function
		largest.Kernel = t.FunctionName(largest.Function)
	}
	return largest
}

// accessSetBytes counts each allocation once, however many parameters name it.
func accessSetBytes(accesses []Access, bytes map[uint64]int64) int64 {
	var sum int64
	if len(accesses) > 32 {
		seen := make(map[uint64]struct{}, len(accesses))
		for _, a := range accesses {
			if _, dup := seen[a.Alloc]; !dup {
				seen[a.Alloc] = struct{}{}
				sum = addBytes(sum, bytes[a.Alloc])
			}
		}
		return sum
	}
next:
	for i, a := range accesses {
		for _, b := range accesses[:i] {
			if a.Alloc == b.Alloc {
				continue next
			}
		}
		sum = addBytes(sum, bytes[a.Alloc])
	}
	return sum
}

// FunctionName is the mangled name of a function, or "function N" when the trace does not name it.
func (t *Trace) FunctionName(function uint32) string {
	for i := range t.Events {
		if e := &t.Events[i]; e.Kind == KindFunction && e.Function == function && e.Name != "" {
			return e.Name
		}
	}
	return "function " + utoa(uint64(function))
}

// Operations counts the launches and copies in a range.
func (t *Trace) Operations(r Range) (n int) {
	for i := r.First; i < r.End; i++ {
		if t.Events[i].isOperation() {
			n++
		}
	}
	return n
}
