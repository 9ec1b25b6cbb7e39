package oracle

import (
	"slices"

	"github.com/penstock-gpu/penstock/trace"
)

// Followed is a trace up to the end of its last full iteration and, behind a mark that says so, that iteration once
// more: what [Run] looks at unless [Options.NoRepeat] is set. Where the iteration does not repeat
// it is the trace as it is, and false.
func Followed(t *trace.Trace) (*trace.Trace, bool) {
	iterations := t.Iterations()
	if len(iterations) < 2 {
		return t, false
	}
	before, last := iterations[len(iterations)-2], iterations[len(iterations)-1]
	events, ok := repeated(t.Events, before.First, before.End, last.First, last.End)
	if !ok {
		return t, false
	}
	out := *t
	out.Events = slices.Insert(events, last.End, trace.Event{Kind: trace.KindMark, Name: trace.MarkEnd})
	return &out, true
}

// repeated returns the events up to the end of the last full iteration,
// followed by that iteration once more, under new allocation ids. What the
// iteration frees but did not allocate (gradients, say) came from the
// iteration before; its counterpart is the allocation with the same ordinal.
// It reports false, and the events as they are, when the last two iterations
// do not allocate alike, since then nothing says what a repetition would touch.
func repeated(events []trace.Event, before, beforeEnd, from, to int) ([]trace.Event, bool) {
	earlier, mine := allocations(events[before:beforeEnd]), allocations(events[from:to])
	if !slices.EqualFunc(earlier, mine, func(a, b trace.Event) bool { return a.Bytes == b.Bytes }) {
		return events, false
	}
	// An id of the last iteration stands for this one in its repetition.
	rename := make(map[uint64]uint64, 2*len(mine))
	for i := range earlier {
		rename[earlier[i].Alloc] = mine[i].Alloc
	}
	var fresh uint64 // above every id used so far
	for _, event := range events {
		fresh = max(fresh, event.Alloc)
	}
	if fresh++; fresh == 0 || fresh+uint64(len(mine)) < fresh {
		return events, false // no ids left
	}
	alive := map[uint64]bool{}
	for _, event := range events[:to] {
		switch event.Kind {
		case trace.KindAlloc:
			alive[event.Alloc] = true
		case trace.KindFree:
			delete(alive, event.Alloc)
		}
	}
	// What lives on is itself; it must not be mistaken for its successor.
	for id := range rename {
		if alive[id] {
			delete(rename, id)
		}
	}
	for i := range mine {
		rename[mine[i].Alloc] = fresh + uint64(i)
	}
	named := func(id uint64) uint64 {
		if to, ok := rename[id]; ok {
			return to
		}
		return id
	}
	result := slices.Clone(events[:to])
	for _, event := range events[from:to] {
		switch event.Kind {
		case trace.KindAlloc:
			event.Alloc = named(event.Alloc)
			alive[event.Alloc] = true
		case trace.KindFree:
			event.Alloc = named(event.Alloc)
			if !alive[event.Alloc] {
				continue // a one-off: it has no counterpart to free
			}
			delete(alive, event.Alloc)
		case trace.KindLaunch, trace.KindCopy:
			accesses := make([]trace.Access, len(event.Accesses))
			for i, access := range event.Accesses {
				access.Alloc = named(access.Alloc)
				accesses[i] = access
			}
			event.Accesses = accesses
		}
		result = append(result, event)
	}
	return result, true
}

func allocations(events []trace.Event) []trace.Event {
	var all []trace.Event
	for _, event := range events {
		if event.Kind == trace.KindAlloc {
			all = append(all, event)
		}
	}
	return all
}
