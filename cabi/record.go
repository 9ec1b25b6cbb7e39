package main

import (
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/faults/record"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
)

// recorder writes what happens to a trace. While everything is in plain memory it
// reads allocations from a log that the exported calls fill, and launches are not
// recorded: none of them can fault. Else the engine tells of allocations, in order with
// the operations that name them. Alloc and Free are called from any
// thread, its other methods under the engine's lock, in order.
type recorder struct {
	log    *record.Log
	zap    *zap.Logger
	stacks bool
	driver bool // the driver's own events are recorded, and the engine's moves are among them
	failed atomic.Bool

	allocs *allocLog // nil: the engine tells of allocations

	accesses []trace.Access // of the record at hand

	// The encoder's alone.
	ids  map[uint64]uint64 // live allocations, by address
	last uint64            // id given
}

// startRecording creates the trace.
func startRecording(o options.Runtime, gpu string, log *zap.Logger) (*recorder, error) {
	r := &recorder{zap: log, stacks: o.Stacks, ids: map[uint64]uint64{}}
	var err error
	if plain := o.Budget == 0 && (o.Engine == options.EngineManaged || o.Engine == options.EngineNone); plain && !o.Stacks {
		if r.allocs, err = newAllocLog(); err != nil {
			return nil, err
		}
	}
	how := record.Options{Clock: hook.Clock, Translate: r.translate}
	if r.allocs != nil { // else the engine tells of everything, in order
		how.Gather, how.Sort = r.gather, true
	}
	r.log, err = record.Create(o.TracePath, trace.Header{
		Source: "penstock", Command: strings.Join(os.Args, " "), GPU: gpu, Policy: o.Policy, BudgetBytes: o.Budget, Process: os.Getpid(),
	}, how)
	if err != nil {
		return nil, err
	}
	if r.allocs != nil {
		r.allocs.use(true)
	}
	return r, nil
}

// gather reads what the job's threads have noted, and says whether that is all of what they did before the call.
func (r *recorder) gather() bool {
	all := true
	if e := state.engine.Load(); e != nil {
		all = e.Hear()
	}
	return r.readAllocs() && all
}

// readAllocs reads the log of allocations, and says whether all that were noted before the call are read.
func (r *recorder) readAllocs() bool {
	var lost uint64
	head := r.allocs.head()
	all := true
	var e trace.Event // one for all, as each would be on the heap
	r.log.AddAll(func(add func(e *trace.Event, at int64)) {
		lost = r.allocs.read(func(c allocCall) {
			e = trace.Event{Kind: trace.KindAlloc, Address: c.at, Bytes: c.bytes, Stream: c.stream}
			if c.bytes == 0 {
				e.Kind = trace.KindFree
			}
			add(&e, c.nanos)
		})
		all = r.allocs.next >= head
	})
	if lost > 0 {
		r.log.Add(trace.Event{Kind: trace.KindLost, Bytes: int64(lost), Name: "allocations and frees: their log was full"})
	}
	return all
}

// pause stops recording, or goes on.
func (r *recorder) pause(on bool) {
	if r.allocs != nil {
		r.allocs.use(on)
	}
	r.log.Pause(!on)
}

// check tells of a write error, once.
func (r *recorder) check() {
	if err := r.log.Err(); err != nil && r.failed.CompareAndSwap(false, true) {
		r.zap.Error("the trace is not recorded any further", zap.Error(err))
	}
}

// Alloc implements process.Sink.
func (r *recorder) Alloc(p cuda.Ptr, bytes int64, stream uint64) {
	site := ""
	if r.stacks {
		site = pythonSite()
	}
	r.log.Add(trace.Event{Kind: trace.KindAlloc, Bytes: bytes, Address: uint64(p), Stream: stream, Name: site})
}

// Free implements process.Sink.
func (r *recorder) Free(p cuda.Ptr) {
	r.log.Add(trace.Event{Kind: trace.KindFree, Address: uint64(p)})
}

// Record implements process.Sink.
func (r *recorder) Record(rec *hook.Record, stream uint64, name func(function uint32) string, address func(slot uint32) (cuda.Ptr, bool)) {
	if rec.Flags&hook.FlagCaptured != 0 {
		return // it runs when its graph is launched, which is recorded then
	}
	if r.allocs != nil && len(rec.Slots) > 0 {
		r.readAllocs() // what it names
	}
	e := operationOf(rec, stream)
	e.Accesses = r.accesses[:0]
	for _, s := range rec.Slots {
		if p, ok := address(s); ok {
			e.Accesses = append(e.Accesses, trace.Access{Alloc: uint64(p)})
		}
	}
	r.accesses = e.Accesses
	r.log.Operation(&e, rec.Seq, name, rec.Nanos)
	if rec.Seq%1024 == 0 {
		r.check()
	}
}

// translate numbers allocations, and gives frees and accesses the number in place of
// the address. It is called by the encoder, so that nobody waits for it.
func (r *recorder) translate(e *trace.Event, write func(*trace.Event)) {
	switch e.Kind {
	case trace.KindAlloc:
		if id, live := r.ids[e.Address]; live { // its free was not recorded
			write(&trace.Event{Kind: trace.KindFree, Time: e.Time, Alloc: id})
		}
		r.last++
		e.Alloc = r.last
		r.ids[e.Address] = e.Alloc
	case trace.KindFree:
		id, ok := r.ids[e.Address]
		if !ok {
			return
		}
		delete(r.ids, e.Address)
		e.Alloc, e.Address = id, 0
	case trace.KindLaunch, trace.KindCopy:
		known := e.Accesses[:0]
		for _, x := range e.Accesses {
			if id, ok := r.ids[x.Alloc]; ok {
				known = append(known, trace.Access{Alloc: id})
			}
		}
		e.Accesses = known
	}
	write(e)
}

// dimensions is a hash of a launch's dimensions or a copy's bytes in few bits, so that recordings stay small.
func dimensions(hash uint32) uint32 { return (hash ^ hash>>8 ^ hash>>16 ^ hash>>24) & 0xff }

// operationOf is a hook's record in a trace's terms, without its accesses.
func operationOf(rec *hook.Record, stream uint64) trace.Event {
	e := trace.Event{Stream: stream, Duration: -1, Kind: trace.KindLaunch, Batch: dimensions(rec.Grid)}
	if rec.Kind != hook.Copy {
		e.Function = rec.Function()
		return e
	}
	e.Kind = trace.KindCopy
	switch rec.ID {
	case hook.CopyH2D:
		e.Copy = trace.CopyHostToDevice
	case hook.CopyD2H:
		e.Copy = trace.CopyDeviceToHost
	case hook.CopyD2D:
		e.Copy = trace.CopyDeviceToDevice
	case hook.CopyFill:
		e.Copy = trace.CopyFill
	}
	return e
}

// Progress implements process.Sink.
func (r *recorder) Progress(stream, seq uint64) { r.log.Progress(stream, seq) }

// Timing implements process.Sink.
func (r *recorder) Timing(seq uint64, took time.Duration) { r.log.Timing(seq, took) }

// Faults implements process.Sink.
func (r *recorder) Faults(events []faults.Event, lost faults.Lost) {
	r.log.Faults(events)
	r.log.Lost(lost)
	r.check()
}

// FaultSource implements process.Sink.
func (r *recorder) FaultSource(why string) {
	r.driver = why == ""
	if why != "" {
		r.log.Lacks(why)
	}
}

// DriverSums implements process.Sink.
func (r *recorder) DriverSums(s faults.Sums) { r.log.Mark(analyse.Counters(s).Mark()) }

// Move implements process.Sink.
func (r *recorder) Move(ranges []cuda.Range, d um.Direction, began, ended time.Duration) {
	if r.driver {
		return
	}
	to := trace.SideDevice
	if d == um.Out {
		to = trace.SideHost
	}
	for _, x := range ranges {
		r.log.Add(trace.Event{Kind: trace.KindMigration, Address: uint64(x.Base), Bytes: x.Bytes, To: to, Cause: trace.CauseUser, Duration: ended - began})
	}
}

func (r *recorder) close() {
	if r.allocs != nil {
		r.allocs.use(false)
		r.readAllocs()
	}
	if err := r.log.Close(nil); err != nil && !r.failed.Load() {
		r.zap.Error("closing the trace", zap.Error(err))
	}
}
