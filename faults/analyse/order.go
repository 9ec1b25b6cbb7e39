package analyse

import (
	"container/heap"
	"time"
	"unsafe"

	"github.com/penstock-gpu/penstock/trace"
)

const (
	// heldEvents bounds how many events wait to be put in order: at a million a
	// second, twice the horizon.
	heldEvents = 1 << 19
	// heldBytes bounds what their names and accesses take; real events come nowhere near.
	heldBytes = 64 << 20
	// horizon is how late an event may come, against others' time.
	horizon = 200 * time.Millisecond
	// maxRuns is how many kinds of lateness are told apart.
	maxRuns = 12
	// releaseEvery is after how many events those are handed on whose turn has come.
	releaseEvery = 1 << 12
)

// order puts events in order of time, as far as a bounded buffer can.
//
// A recording is a mixture of a few sequences, each of which is in order by
// itself: launches, faults, migrations of either direction. An event is put
// behind the latest that is not later than it (patience sorting), which takes
// the mixture apart again, and runs are merged as they are handed on. What fits
// nowhere, because a file is not as real ones are, goes to a heap.
type order struct {
	runs   []*run
	misfit misfits
	size   int           // events held
	index  uint64        // of the next event
	newest time.Duration // seen
	taken  time.Duration // of the last event handed on
	late   int64         // events that came after a later one had been handed on
	bytes  int           // of names and accesses of the events held
}

type held struct {
	event trace.Event
	index uint64 // among equals in time the order of arrival counts
}

func (h *held) before(g *held) bool {
	return h.event.Time < g.event.Time || h.event.Time == g.event.Time && h.index < g.index
}

// run is a queue of events in order.
type run struct {
	events []held
	head   int
}

func (r *run) empty() bool  { return r.head == len(r.events) }
func (r *run) first() *held { return &r.events[r.head] }
func (r *run) last() *held  { return &r.events[len(r.events)-1] }

func (r *run) push(e *trace.Event, index uint64) {
	switch {
	case r.empty():
		r.events, r.head = r.events[:0], 0
	case r.head > 1024 && r.head*2 >= len(r.events):
		n := copy(r.events, r.events[r.head:])
		clear(r.events[n:]) // of what they point to
		r.events, r.head = r.events[:n], 0
	}
	r.events = append(r.events, held{*e, index})
}

// misfits is a heap.
type misfits []*held

func (m misfits) Len() int           { return len(m) }
func (m misfits) Less(i, j int) bool { return m[i].before(m[j]) }
func (m misfits) Swap(i, j int)      { m[i], m[j] = m[j], m[i] }
func (m *misfits) Push(x any)        { *m = append(*m, x.(*held)) }
func (m *misfits) Pop() any {
	old := *m
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*m = old[:len(old)-1]
	return x
}

// add holds an event back, and hands on those whose turn has come.
func (o *order) add(e *trace.Event, visit func(*trace.Event)) {
	o.newest = max(o.newest, e.Time)
	o.hold(e)
	o.size++
	o.index++
	o.bytes += weight(e)
	if o.full() {
		// Half at once, so that a full buffer is not looked at again for each event.
		for size, bytes := o.size/2, o.bytes/2; o.size > size || o.bytes > bytes; {
			o.next(visit)
		}
	} else if o.index%releaseEvery == 0 {
		o.release(o.newest-horizon, visit)
	}
}

func (o *order) hold(e *trace.Event) {
	var fit, free *run
	for _, r := range o.runs {
		switch {
		case r.empty():
			free = r
		case r.last().event.Time <= e.Time && (fit == nil || r.last().event.Time > fit.last().event.Time):
			fit = r
		}
	}
	if fit == nil {
		fit = free
	}
	if fit == nil && len(o.runs) < maxRuns {
		fit = &run{}
		o.runs = append(o.runs, fit)
	}
	if fit == nil {
		heap.Push(&o.misfit, &held{*e, o.index})
		return
	}
	fit.push(e, o.index)
}

func weight(e *trace.Event) int {
	return len(e.Name) + len(e.Accesses)*int(unsafe.Sizeof(trace.Access{}))
}

func (o *order) full() bool { return o.size >= heldEvents || o.bytes > heldBytes }

// earliest finds the run with the earliest event, and the earliest of the others; nil is none.
func (o *order) earliest() (best *run, other *held) {
	for _, r := range o.runs {
		switch {
		case r.empty():
		case best == nil:
			best = r
		case r.first().before(best.first()):
			best, other = r, best.first()
		case other == nil || r.first().before(other):
			other = r.first()
		}
	}
	if len(o.misfit) > 0 && (other == nil || o.misfit[0].before(other)) {
		other = o.misfit[0]
	}
	return best, other
}

// next hands on the earliest event.
func (o *order) next(visit func(*trace.Event)) {
	best, other := o.earliest()
	if best == nil || other != nil && other.before(best.first()) {
		o.hand(heap.Pop(&o.misfit).(*held), visit)
		return
	}
	o.hand(best.first(), visit)
	best.head++
}

// release hands on what is not younger than until.
func (o *order) release(until time.Duration, visit func(*trace.Event)) {
	for o.size > 0 {
		best, other := o.earliest()
		if best == nil || other != nil && other.before(best.first()) {
			if o.misfit[0].event.Time > until {
				return
			}
			o.next(visit)
			continue
		}
		if best.first().event.Time > until {
			return
		}
		for !best.empty() && best.first().event.Time <= until && (other == nil || best.first().before(other)) {
			o.hand(best.first(), visit)
			best.head++
		}
	}
}

func (o *order) hand(h *held, visit func(*trace.Event)) {
	e := &h.event
	o.size--
	if e.Time < o.taken {
		o.late++
	} else {
		o.taken = e.Time
	}
	visit(e)
	if w := weight(e); w > 0 {
		o.bytes -= w
		e.Name, e.Accesses = "", nil // the slot stays for a while
	}
}

// flush hands on everything.
func (o *order) flush(visit func(*trace.Event)) { o.release(o.newest, visit) }
