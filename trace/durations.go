package trace

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// DurationSource says where the durations of a trace's launches and copies are from.
type DurationSource string

// Sources of durations.
const (
	DurationsRecorded  DurationSource = "recorded"  // measured on the GPU
	DurationsEstimated DurationSource = "estimated" // by EstimateDurations
	DurationsNone      DurationSource = "none"
)

// Durations says where the durations are from.
func (t *Trace) Durations() DurationSource {
	if t.Estimate != nil {
		return DurationsEstimated
	}
	for i := range t.Events {
		if e := &t.Events[i]; e.isOperation() && e.Duration > 0 {
			return DurationsRecorded
		}
	}
	return DurationsNone
}

func (e *Event) isOperation() bool { return e.Kind == KindLaunch || e.Kind == KindCopy }

// Estimate says what durations were estimated from.
type Estimate struct {
	Operations int // launches and copies
	Unknown    int // of these, never seen to finish: they have no duration
	Progress   int // moments at which a stream was seen to have got on
	Moves      int // moves of memory to the device, for which operations may have waited, or faulted
	// Of UseTimings: operations that were timed, the part of the sum of all durations that is of kinds that were,
	// and the standard error of that part's sum, as a part of it.
	Timed                  int
	TimedShare, TimedError float64
}

// EstimateDurations gives the launches and copies of a recording that has none the durations
// that its progress events allow, in place, and says whether there are any. A trace
// with durations stays as it is.
//
// On each stream the time between two moments of progress belongs to the operations that
// ended in between. None of them began before it was launched, before the one before
// it on its stream had ended, or before the last move of memory that it touches had brought that
// to the device; what can be idle by this is. The rest is shared among them alike. While
// several streams work, each has its part of the time: the durations of any stretch never
// add up to more than the stretch.
//
// Where some operations were timed (progress with a duration), all that are alike have what those took: the same function
// or kind of copy, and allocations of the same sizes. See [Trace.UseTimings].
//
// What it cannot tell from work: page faults within kernels, a stream that waits for another, and
// waits for room or for memory to be mapped.
func (t *Trace) EstimateDurations() bool {
	if t.Durations() != DurationsNone {
		return t.Estimate != nil
	}
	c := clockwork{streams: map[uint64]*timedStream{}, where: map[uint64]span{}, timed: map[uint64]time.Duration{}}
	for i := range t.Events {
		c.event(i, &t.Events[i])
	}
	if c.estimate.Progress == 0 {
		return false
	}
	for i, d := range shares(c.runs) {
		t.Events[c.runs[i].event].Duration = d
	}
	c.estimate.Operations = int(c.number)
	c.estimate.Unknown = c.estimate.Operations - len(c.runs)
	t.Estimate = &c.estimate
	t.UseTimings(c.kinds, c.timings())
	return true
}

// clockwork follows the streams of a recording.
type clockwork struct {
	streams  map[uint64]*timedStream
	where    map[uint64]span          // of live allocations
	arrivals []arrival                // the newest
	number   uint64                   // of the last operation
	kinds    []OpKind                 // of operations, from number 1 on
	timed    map[uint64]time.Duration // by number
	runs     []run
	estimate Estimate
}

// timedStream is a stream's operations that are not known to be done.
type timedStream struct {
	queued []queuedOp
	done   time.Duration // when it was last seen to get on
}

type queuedOp struct {
	event    int
	number   uint64
	earliest time.Duration // when it may have begun
	touches  []span
}

// run is when an operation ran, as far as is known.
type run struct {
	event      int
	begin, end time.Duration
}

// span is addresses from First to before End.
type span struct{ first, end uint64 }

// arrival is memory that was brought to the device.
type arrival struct {
	span
	at time.Duration
}

// mostArrivals is for how many moves an operation may have waited.
const mostArrivals = 256

func (c *clockwork) event(i int, e *Event) {
	switch e.Kind {
	case KindAlloc:
		c.where[e.Alloc] = span{e.Address, e.Address + uint64(e.Bytes)}
	case KindFree:
		delete(c.where, e.Alloc)
	case KindLaunch, KindCopy:
		c.number++
		s := c.streams[e.Stream]
		if s == nil {
			s = &timedStream{}
			c.streams[e.Stream] = s
		}
		o := queuedOp{event: i, number: c.number, earliest: e.Time}
		for _, a := range e.Accesses {
			if at := c.where[a.Alloc]; at.first != 0 {
				o.touches = append(o.touches, at)
			}
		}
		s.queued = append(s.queued, o)
		c.kinds = append(c.kinds, c.kindOf(e))
	case KindMigration:
		c.arrive(e)
	case KindProgress:
		if e.Duration > 0 { // it may be told long after
			c.timed[e.Alloc] = e.Duration
			return
		}
		s := c.streams[e.Stream]
		if s == nil {
			return
		}
		n := 0
		for n < len(s.queued) && s.queued[n].number <= e.Alloc {
			n++
		}
		if n > 0 {
			c.estimate.Progress++
			c.settle(s, n, e.Time)
		}
	}
}

func (c *clockwork) kindOf(e *Event) OpKind {
	rough := Mix(Mix(uint64(e.Kind)<<8|uint64(e.Copy), uint64(e.Function)), uint64(e.Bytes))
	rough = Mix(rough, uint64(e.Batch))
	for i := range e.Grid {
		rough = Mix(rough, uint64(e.Grid[i])<<32|uint64(e.Block[i]))
	}
	exact := rough
	for _, a := range e.Accesses {
		at := c.where[a.Alloc]
		exact = Mix(exact, at.end-at.first)
	}
	return OpKind{exact, rough}
}

func (c *clockwork) timings() Timings {
	timings := Timings{}
	for _, number := range slices.Sorted(maps.Keys(c.timed)) {
		if number > 0 && number <= uint64(len(c.kinds)) {
			timings.Add(c.kinds[number-1], c.timed[number])
		}
	}
	return timings
}

// arrive notes a move to the device that operations wait for. Faults bring memory to kernels that run.
func (c *clockwork) arrive(e *Event) {
	if e.To != SideDevice {
		return
	}
	c.estimate.Moves++
	if e.Cause != CauseUser && e.Cause != CausePrefetch {
		return
	}
	at := e.Time // the engine's own moves are noted when they end, the driver's have the time of their beginning
	if e.GPU != 0 {
		at += e.Duration
	}
	if len(c.arrivals) >= 2*mostArrivals {
		c.arrivals = append(c.arrivals[:0], c.arrivals[mostArrivals:]...)
	}
	c.arrivals = append(c.arrivals, arrival{span{e.Address, e.Address + uint64(e.Bytes)}, at})
}

// latest keeps sums of times from overflow.
const latest = math.MaxInt64 / 2

// settle says that the first n operations of a stream had ended at a time.
func (c *clockwork) settle(s *timedStream, n int, at time.Duration) {
	ops, begin := s.queued[:n], s.done
	at = min(max(at, begin), latest) // clocks differ
	each := at - begin
	for j := range ops {
		o := &ops[j]
		o.earliest = min(at, max(begin, o.earliest, c.arrived(o, at)))
		begin = o.earliest // that of the next is no earlier
		// From here on the rest of them ran, one after the other, within what is left.
		each = min(each, (at-begin)/time.Duration(n-j))
	}
	end := s.done
	for j := range ops {
		r := run{event: ops[j].event, begin: max(ops[j].earliest, end)}
		end = r.begin + each
		r.end = end
		c.runs = append(c.runs, r)
	}
	s.done = at
	s.queued = s.queued[n:]
}

// arrived is when the last memory came that an operation had to wait for; 0 when it had not.
// What it names is on the device from when it is launched, or comes after that, until it has ended.
func (c *clockwork) arrived(o *queuedOp, before time.Duration) (at time.Duration) {
	for _, a := range c.arrivals {
		if a.at <= o.earliest || a.at > before || a.at <= at {
			continue
		}
		if slices.ContainsFunc(o.touches, func(s span) bool { return s.first < a.end && a.first < s.end }) {
			at = a.at
		}
	}
	return at
}

// shares are the durations of runs: at any time that several of them take place, each has an
// equal part of it.
func shares(runs []run) []time.Duration {
	type edge struct {
		at    time.Duration
		run   int
		opens bool
	}
	edges := make([]edge, 0, 2*len(runs))
	for i, r := range runs {
		if r.end > r.begin {
			edges = append(edges, edge{r.begin, i, true}, edge{r.end, i, false})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	durations := make([]time.Duration, len(runs))
	opened := make([]float64, len(runs))
	var part float64 // nanoseconds that a run would have had which is open all the time
	var open int
	var last time.Duration
	for _, e := range edges {
		if open > 0 {
			part += float64(e.at-last) / float64(open)
		}
		last = e.at
		if e.opens {
			opened[e.run] = part
			open++
		} else {
			durations[e.run] = time.Duration(part - opened[e.run])
			open--
		}
	}
	return durations
}
