package explicit

import (
	"slices"
	"sort"
	"time"

	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
)

// recent remembers when the last operations were reported and seen to end: what the log of
// operations does not, and what it takes to say how long each ran. It costs a write of 40
// bytes an operation.
type recent struct {
	launched []launched // by position, over and over
	seen     []seen     // over and over
	next     int        // of these, in all
	newest   int64      // position of the last operation
	timings  trace.Timings
}

type launched struct {
	at     time.Duration // it may have begun
	seq    uint64
	kind   trace.OpKind
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
func (r *operations) Remember(ops int) {
	r.recent = recent{launched: make([]launched, ops), seen: make([]seen, ops/4), timings: trace.Timings{}}
}

func (x *recent) at(position int64) *launched { return &x.launched[position%int64(len(x.launched))] }

func (x *recent) launch(position int64, at time.Duration, o *um.Op, kind trace.OpKind, waits bool) {
	if x.newest = position; len(x.launched) > 0 {
		*x.at(position) = launched{at, o.Seq, kind, int32(o.Stream), o.Work, Report{at, waits}, o.ToHost}
	}
}

// kindOf tells apart what does other work. Allocations that share a range do not always share one.
func (x *op) kindOf(o *um.Op) trace.OpKind {
	k := trace.OpKind{Rough: trace.Mix(uint64(o.Work), uint64(o.Shape))}
	k.Exact = trace.Mix(k.Rough, uint64(len(x.Tensors)))
	for _, t := range x.Tensors {
		if t.parts == nil {
			k.Exact = trace.Mix(k.Exact, uint64(t.bytes))
		}
	}
	return k
}

// Timed says how long an operation that had been reported took on the device, without what it waited for. One of
// long ago is left out.
func (r *operations) Timed(seq uint64, took time.Duration) {
	x := &r.recent
	n := sort.Search(min(len(x.launched), int(x.newest+1)), func(i int) bool { return x.at(x.newest-int64(i)).seq <= seq })
	if n == len(x.launched) || int64(n) > x.newest || x.at(x.newest-int64(n)).seq != seq {
		return
	}
	x.timings.Add(x.at(x.newest-int64(n)).kind, took)
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
func (r *operations) Granted(seq uint64) {
	if x := r.find(seq); x != nil {
		r.recent.delay([]int64{x.Position}, r.process.Now())
		if len(r.recent.launched) > 0 {
			r.recent.at(x.Position).report.Waited = true
		}
	}
}

// Recent is what a Runtime remembers.
type Recent struct {
	Trace   *trace.Trace
	Reports []Report       // of the trace's operations, in order
	Kinds   []trace.OpKind // likewise: what they do, equal for those that take as long
	Timings trace.Timings  // of kinds
}

// EstimateDurations gives the operations durations: those that operations of their kinds were timed to have, and where
// none was, what the progress of streams allows, with waits among it. It says whether there are any.
func (x Recent) EstimateDurations() bool {
	if !x.Trace.EstimateDurations() {
		return false
	}
	x.Trace.UseTimings(x.Kinds, x.Timings)
	return true
}

// Recent has the last operations, so many at most, as a trace: allocations that were alive before them, then
// allocations, frees, operations and progress in order. An operation is a launch or a copy to the host, whose function is
// its Op.Work and whose time is when it was reported, or later when what it touches came later.
func (r *operations) Recent(ops int) Recent {
	t := &trace.Trace{Name: "recent"}
	x := &r.recent
	if len(x.launched) == 0 {
		return Recent{Trace: t}
	}
	var reports []Report
	var kinds []trace.OpKind
	events, position := r.History.Events(r.History.Now() - int64(min(ops, len(x.launched))))
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
			kinds = append(kinds, l.kind)
			progress(l.at)
			position++
		}
		t.Events = append(t.Events, e)
	}
	progress(1<<63 - 1)
	return Recent{t, reports, kinds, x.timings}
}
