package plan

import "github.com/penstock-gpu/penstock/trace"

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

// steady finds the stretch of operations that repeats.
func (r *run) steady() (trace.Steady, bool) {
	hint := 0
	if n := len(r.iterations); n > 0 {
		hint = r.iterations[n-1].end - r.iterations[n-1].begin
	}
	return trace.FindSteady(r.symbolIDs(), hint)
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
