package trace

import (
	"fmt"
	"slices"
	"strconv"
)

// Repeat is the trace with its last full iteration played again until there are n of
// them: a job comes to rest after more iterations than a log holds. What an iteration
// leaves allocated is taken for what the next one finds: where the last iteration names the
// k-th allocation of one d iterations before, a repetition names the k-th of the one d before
// itself, as far back as all iterations allocate alike. What the last iteration frees
// and has no such counterpart (a buffer of the first iterations, say) is freed once. Repeat fails where the last two
// do not allocate alike, or the last one uses what it frees and has no counterpart.
func (t *Trace) Repeat(n int) (*Trace, error) {
	iterations := t.Iterations()
	if n <= len(iterations) {
		return t, nil
	}
	if len(iterations) < 2 {
		return nil, fmt.Errorf("trace %s has %d full iterations: repeating the last takes two", t.Name, len(iterations))
	}
	last := iterations[len(iterations)-1]
	alike := t.alike(iterations)
	if len(alike) < 2 {
		return nil, fmt.Errorf("trace %s: its last two iterations make different allocations, so that what one leaves to the next is not known", t.Name)
	}
	r := repetition{of: map[uint64]birth{}, next: 1}
	for i, ids := range alike {
		for k, id := range ids {
			r.of[id] = birth{i, k}
		}
	}
	for i := range t.Events {
		r.next = max(r.next, t.Events[i].Alloc+1)
	}
	out := *t
	out.Events = slices.Clone(t.Events[:last.End])
	r.named, r.live = alike, liveAfter(out.Events)
	for k := len(iterations); k < n; k++ {
		r.begin()
		out.Events = append(out.Events, Event{Kind: KindMark, Name: "iter" + strconv.Itoa(k)})
		out.Events = r.play(out.Events, t.Events[last.First:last.End])
	}
	out.Events = r.play(out.Events, t.Events[last.End:])
	if r.gone != nil {
		return nil, fmt.Errorf("trace %s: its last iteration cannot follow itself: a %s uses allocation %d, which is gone by then", t.Name, r.gone.Kind, r.gone.Accesses[0].Alloc)
	}
	return &out, nil
}

// birth is the k-th allocation of an iteration.
type birth struct{ iteration, k int }

// repetition names what the last iteration names as it is later.
type repetition struct {
	of    map[uint64]birth // by id in the trace
	named [][]uint64       // ids by birth: the iterations of the trace that allocate alike, then those that are played again
	later int              // iterations between the last one of the trace and the one that is played
	live  map[uint64]bool
	next  uint64 // an id above all
	gone  *Event // the first that uses what is not alive, and that
}

// begin is the start of one more iteration.
func (r *repetition) begin() {
	ids := make([]uint64, len(r.named[0]))
	for k := range ids {
		ids[k] = r.next
		r.next++
	}
	r.named = append(r.named, ids)
	r.later++
}

func (r *repetition) name(id uint64) uint64 {
	if b, ok := r.of[id]; ok {
		return r.named[b.iteration+r.later][b.k]
	}
	return id
}

func (r *repetition) play(out, events []Event) []Event {
	for _, e := range events {
		e.Accesses = slices.Clone(e.Accesses)
		for i := range e.Accesses {
			e.Accesses[i].Alloc = r.name(e.Accesses[i].Alloc)
			if id := e.Accesses[i].Alloc; !r.live[id] && r.gone == nil {
				r.gone = &Event{Kind: e.Kind, Accesses: []Access{{Alloc: id}}}
			}
		}
		switch e.Kind {
		case KindAlloc:
			e.Alloc = r.name(e.Alloc)
			r.live[e.Alloc] = true
		case KindFree:
			if e.Alloc = r.name(e.Alloc); !r.live[e.Alloc] {
				continue
			}
			delete(r.live, e.Alloc)
		}
		out = append(out, e)
	}
	return out
}

func liveAfter(events []Event) map[uint64]bool {
	live := map[uint64]bool{}
	for i := range events {
		switch e := &events[i]; e.Kind {
		case KindAlloc:
			live[e.Alloc] = true
		case KindFree:
			delete(live, e.Alloc)
		}
	}
	return live
}

// alike are the ids that the last iterations allocate, in order, of as many as allocate the same sizes.
func (t *Trace) alike(iterations []Range) [][]uint64 {
	var all [][]uint64
	born := t.births(iterations[len(iterations)-1])
	for i := len(iterations) - 1; i >= 0; i-- {
		mine := t.births(iterations[i])
		if !slices.EqualFunc(mine, born, func(a, b *Event) bool { return a.Bytes == b.Bytes }) {
			break
		}
		ids := make([]uint64, len(mine))
		for k, e := range mine {
			ids[k] = e.Alloc
		}
		all = append(all, ids)
	}
	slices.Reverse(all)
	return all
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
