package explicit

import (
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// recent remembers when the last operations were reported and seen to end: what the log of
// operations does not, and what it takes to say how long each ran. It costs a write of 40
// bytes an operation.
type recent struct {
	launched []launched // by position, over and over
	seen     []seen     // over and over
	next     int        // of these, in all
	newest   int64      // position of the last operation
}

type launched struct {
	at     time.Duration // it may have begun
	stream int32
	work   uint32
	report Report
	toHost bool
}

// Report is how an operation was reported.
type Report struct {
	At     time.Duration
	Waited bool // the program did not go on before what it touches had come, or was granted
}

// seen says that a stream had finished everything up to a position.
type seen struct {
	at       time.Duration
	stream   int
	position int64
}

// Remember has the Runtime remember so many operations for Recent.
func (r *Runtime) Remember(ops int) {
	r.recent = recent{launched: make([]launched, ops), seen: make([]seen, ops/4)}
}

func (x *recent) at(position int64) *launched { return &x.launched[position%int64(len(x.launched))] }

func (x *recent) launch(position int64, at time.Duration, o *Op, waits bool) {
	if x.newest = position; len(x.launched) > 0 {
		*x.at(position) = launched{at, int32(o.Stream), o.Work, Report{at, waits}, o.ToHost}
	}
}

// delay says that operations can have begun only now.
func (x *recent) delay(positions []int64, now time.Duration) {
	for _, p := range positions {
		if p > x.newest-int64(len(x.launched)) {
			x.at(p).at = now
		}
	}
}

func (x *recent) finish(stream int, position int64, at time.Duration) {
	x.seen[x.next%len(x.seen)] = seen{at, stream, position}
	x.next++
}

// Granted says that an operation that had been reported may go only now.
func (r *Runtime) Granted(seq uint64) {
	if x := r.find(seq); x != nil {
		r.recent.delay([]int64{x.position}, r.process.Now())
		if len(r.recent.launched) > 0 {
			r.recent.at(x.position).report.Waited = true
		}
	}
}

// Recent is what a Runtime remembers.
type Recent struct {
	Trace   *trace.Trace
	Reports []Report // of the trace's operations, in order
}

// Recent has the last operations as a trace: allocations that were alive before them, then
// allocations, frees, operations and progress in order. An operation is a launch or a copy to the host, whose function is
// its Op.Work and whose time is when it was reported, or later when what it touches came later.
func (r *Runtime) Recent() Recent {
	t := &trace.Trace{Name: "recent"}
	x := &r.recent
	if len(x.launched) == 0 {
		return Recent{Trace: t}
	}
	var reports []Report
	events, position := r.history.Events(r.history.Now() - int64(len(x.launched)))
	marks := slices.Concat(x.seen[x.next%len(x.seen):], x.seen[:x.next%len(x.seen)])
	if x.next < len(x.seen) {
		marks = x.seen[:x.next]
	}
	first := position
	progress := func(before time.Duration) {
		for ; len(marks) > 0 && marks[0].at < before && marks[0].position < position; marks = marks[1:] {
			if n := marks[0].position - first + 1; n > 0 {
				t.Events = append(t.Events, trace.Event{Kind: trace.KindProgress, Time: marks[0].at, Stream: uint64(marks[0].stream), Alloc: uint64(n)})
			}
		}
	}
	for _, e := range events {
		if e.Kind == trace.KindLaunch {
			l := x.at(position)
			e.Time, e.Stream, e.Function, e.Duration = l.at, uint64(l.stream), l.work, -1
			if l.toHost {
				e.Kind, e.Copy = trace.KindCopy, trace.CopyDeviceToHost
			}
			reports = append(reports, l.report)
			progress(l.at)
			position++
		}
		t.Events = append(t.Events, e)
	}
	progress(1<<63 - 1)
	return Recent{t, reports}
}
