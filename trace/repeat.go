package trace

import (
	"fmt"
	"slices"
	"strconv"
)

// Repeat is the trace with its last full iteration played again until there are n of
// them: a job comes to rest after more iterations than a log holds. What an iteration
// leaves allocated is taken for what the next one finds: an allocation that the last
// iteration inherits from the one before, the k-th there, becomes the k-th of the
// iteration before each repetition. It fails where the last two do not allocate alike, or
// the last one frees what is older.
func (t *Trace) Repeat(n int) (*Trace, error) {
	iterations := t.Iterations()
	if n <= len(iterations) {
		return t, nil
	}
	if len(iterations) < 2 {
		return nil, fmt.Errorf("trace %s has %d full iterations: repeating the last takes two", t.Name, len(iterations))
	}
	last := iterations[len(iterations)-1]
	before, born := t.births(iterations[len(iterations)-2]), t.births(last)
	if !slices.EqualFunc(before, born, func(a, b *Event) bool { return a.Bytes == b.Bytes }) {
		return nil, fmt.Errorf("trace %s: its last two iterations make different allocations, so that what one leaves to the next is not known", t.Name)
	}
	next := uint64(0)
	for i := range t.Events {
		next = max(next, t.Events[i].Alloc+1)
	}
	renamed := map[uint64]uint64{} // as the last iteration names them, as this repetition does
	rename := func(id uint64) uint64 {
		if r, ok := renamed[id]; ok {
			return r
		}
		return id
	}
	out := *t
	out.Events = slices.Clone(t.Events[:last.End])
	play := func(events []Event) {
		for _, e := range events {
			e.Alloc = rename(e.Alloc)
			e.Accesses = slices.Clone(e.Accesses)
			for i := range e.Accesses {
				e.Accesses[i].Alloc = rename(e.Accesses[i].Alloc)
			}
			out.Events = append(out.Events, e)
		}
	}
	for k := len(iterations); k < n; k++ {
		for i := range born {
			renamed[before[i].Alloc] = rename(born[i].Alloc)
		}
		for _, e := range born {
			renamed[e.Alloc] = next
			next++
		}
		out.Events = append(out.Events, Event{Kind: KindMark, Name: "iter" + strconv.Itoa(k)})
		play(t.Events[last.First:last.End])
	}
	play(t.Events[last.End:])
	if err := out.Validate(); err != nil {
		return nil, fmt.Errorf("the last iteration cannot follow itself: %w", err)
	}
	return &out, nil
}

// births are the allocations of an iteration, in order.
func (t *Trace) births(r Range) (all []*Event) {
	for i := r.First; i < r.End; i++ {
		if e := &t.Events[i]; e.Kind == KindAlloc {
			all = append(all, e)
		}
	}
	return all
}
