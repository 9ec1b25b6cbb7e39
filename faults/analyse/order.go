package analyse

import (
	"slices"
	"time"
	"unsafe"

	"github.com/penstock-gpu/penstock/trace"
)

const (
	// heldEvents bounds how many events wait to be put in order.
	heldEvents = 1 << 16
	// heldBytes bounds what their names and accesses take; real events come nowhere near.
	heldBytes = 64 << 20
	// horizon is how late an event may come, against others' time.
	horizon = 200 * time.Millisecond
)

// order puts events in order of time, as far as a bounded buffer can.
type order struct {
	events []trace.Event
	keys   []orderKey
	spare  []trace.Event
	newest time.Duration // seen
	taken  time.Duration // of the last event handed on
	late   int64         // events that came after a later one had been handed on
	bytes  int           // of names and accesses in events
}

type orderKey struct {
	time  time.Duration
	index int32
}

// add holds an event back, and hands on those whose turn has come.
func (o *order) add(e *trace.Event, visit func(*trace.Event)) {
	if o.events == nil {
		o.events = make([]trace.Event, 0, heldEvents)
		o.keys = make([]orderKey, 0, heldEvents)
		o.spare = make([]trace.Event, 0, heldEvents)
	}
	o.newest = max(o.newest, e.Time)
	o.keys = append(o.keys, orderKey{e.Time, int32(len(o.events))})
	o.events = append(o.events, *e)
	if o.bytes += weight(e); o.full() {
		o.release(o.newest-horizon, visit)
	}
}

func weight(e *trace.Event) int {
	return len(e.Name) + len(e.Accesses)*int(unsafe.Sizeof(trace.Access{}))
}

func (o *order) full() bool { return len(o.events) >= heldEvents || o.bytes > heldBytes }

// release hands on what is not younger than until, and in a full buffer at least half.
func (o *order) release(until time.Duration, visit func(*trace.Event)) {
	slices.SortFunc(o.keys, func(a, b orderKey) int {
		switch {
		case a.time < b.time:
			return -1
		case a.time > b.time:
			return 1
		}
		return int(a.index - b.index)
	})
	n := len(o.keys)
	if o.full() {
		n = (n + 1) / 2
	} else {
		for n > 0 && o.keys[n-1].time > until {
			n--
		}
	}
	for n < len(o.keys) && o.keys[n].time <= until {
		n++
	}
	for _, k := range o.keys[:n] {
		e := &o.events[k.index]
		if e.Time < o.taken {
			o.late++
		} else {
			o.taken = e.Time
		}
		visit(e)
	}
	// What stays keeps its order among equals: it is sorted already.
	rest := o.keys[n:]
	o.spare = o.spare[:0]
	o.bytes = 0
	for _, k := range rest {
		o.spare = append(o.spare, o.events[k.index])
		o.bytes += weight(&o.events[k.index])
	}
	o.keys = o.keys[:0]
	for i := range o.spare {
		o.keys = append(o.keys, orderKey{o.spare[i].Time, int32(i)})
	}
	clear(o.events) // of what they point to
	o.events, o.spare = o.spare, o.events
}

// flush hands on everything.
func (o *order) flush(visit func(*trace.Event)) {
	for len(o.events) > 0 {
		o.release(o.newest, visit)
	}
}
