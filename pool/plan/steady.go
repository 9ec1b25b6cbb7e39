package plan

import (
	"cmp"
	"slices"

	"github.com/penstock-gpu/penstock/trace"
)

// run is the allocations and frees of a recording, and nothing else of it.
type run struct {
	ops        []op
	calls      []call
	iterations []stretch // between marks, as the source has them
}

// stretch is the operations from begin to before end.
type stretch struct{ begin, end int }

// op is one allocation or free. Equal symbols look alike from outside.
type op struct {
	call  int32
	alloc bool
}

// call is an allocation of the recording.
type call struct {
	bytes  int64
	stream int32
	lower  int
	upper  int // stillLive when it is not freed
}

const stillLive = int(^uint(0) >> 1)

// newRun takes what it needs from events, which are those of a valid trace.
func newRun(events []trace.Event) *run {
	r := &run{}
	live := map[uint64]int32{}
	streams := map[uint64]int32{}
	marks := map[int]int{} // operations before each
	for i := range events {
		switch e := &events[i]; e.Kind {
		case trace.KindMark:
			marks[i] = len(r.ops)
		case trace.KindAlloc:
			s, known := streams[e.Stream]
			if !known {
				s = int32(len(streams))
				streams[e.Stream] = s
			}
			live[e.Alloc] = int32(len(r.calls))
			r.ops = append(r.ops, op{int32(len(r.calls)), true})
			r.calls = append(r.calls, call{e.Bytes, s, len(r.ops) - 1, stillLive})
		case trace.KindFree:
			c, ok := live[e.Alloc]
			if !ok {
				continue // a recording that began late
			}
			delete(live, e.Alloc)
			r.calls[c].upper = len(r.ops)
			r.ops = append(r.ops, op{c, false})
		}
	}
	for _, it := range (&trace.Trace{Events: events}).Iterations() {
		r.iterations = append(r.iterations, stretch{marks[it.First-1], marks[it.End]})
	}
	return r
}

// symbol is what one operation looks like.
type symbol struct {
	alloc  bool
	stream int32
	bytes  int64
}

func (r *run) symbol(i int) symbol {
	c := &r.calls[r.ops[i].call]
	return symbol{r.ops[i].alloc, c.stream, c.bytes}
}

// steady is the part of a run that repeats: op i and op i+period look alike for
// all i from begin, as long as both lie before end.
type steady struct{ begin, end, period int }

func (s steady) length() int { return s.end - s.begin }

// Bounds of the search for the period.
const (
	gramOps        = 16 // how many operations in a row mark a place
	mostRepeats    = 64 // a place that comes more often than this is in a loop inside the iteration
	candidates     = 12 // how many periods are looked at closely
	minPeriodCalls = 4
)

// steady finds the longest stretch that consists of at least two periods of one
// kind. Rows of operations that come seldom vote for the distance between two of
// them: what is unique within an iteration comes again one iteration later.
func (r *run) steady() (steady, bool) {
	symbols := r.symbolIDs()
	votes := map[int]int{}
	if n := len(r.iterations); n > 0 {
		votes[r.iterations[n-1].end-r.iterations[n-1].begin] += len(symbols)
	}
	for _, at := range grams(symbols) {
		for i := 1; i < len(at) && len(at) <= mostRepeats; i++ {
			votes[at[i]-at[i-1]]++
		}
	}
	periods := make([]int, 0, len(votes))
	for p := range votes {
		if p >= minPeriodCalls {
			periods = append(periods, p)
		}
	}
	slices.SortFunc(periods, func(a, b int) int {
		return cmp.Or(cmp.Compare(votes[b], votes[a]), cmp.Compare(a, b))
	})
	periods = periods[:min(len(periods), candidates)]
	slices.Sort(periods)
	var best steady
	for _, p := range periods {
		// The shortest period wins a tie: twice a period repeats, too.
		if s := longest(symbols, p); s.length() >= 2*p && s.length() > best.length() {
			best = s
		}
	}
	return best, best.period > 0
}

// symbolIDs numbers the symbols of all operations.
func (r *run) symbolIDs() []int32 {
	known := map[symbol]int32{}
	ids := make([]int32, len(r.ops))
	for i := range r.ops {
		s := r.symbol(i)
		id, ok := known[s]
		if !ok {
			id = int32(len(known))
			known[s] = id
		}
		ids[i] = id
	}
	return ids
}

// grams lists, for each row of gramOps symbols, where it begins.
func grams(symbols []int32) map[uint64][]int {
	const base = 0x9e3779b97f4a7c15
	power := uint64(1)
	for range gramOps {
		power *= base
	}
	var hash uint64
	at := map[uint64][]int{}
	for i, s := range symbols {
		hash = hash*base + uint64(s) + 1
		if i >= gramOps {
			hash -= power * (uint64(symbols[i-gramOps]) + 1)
		}
		if i >= gramOps-1 {
			at[hash] = append(at[hash], i-gramOps+1)
		}
	}
	return at
}

// longest is the longest stretch with a given period.
func longest(symbols []int32, period int) steady {
	var best steady
	begin := 0
	for i := 0; i+period <= len(symbols); i++ {
		if i+period < len(symbols) && symbols[i] == symbols[i+period] {
			continue
		}
		if s := (steady{begin, i + period, period}); s.length() > best.length() {
			best = s
		}
		begin = i + 1
	}
	return best
}
