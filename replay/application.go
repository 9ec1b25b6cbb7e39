package replay

import (
	"context"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/trace"
)

// What the application's CPU thread costs and may do.
const (
	// queuedLaunches is how many launches fit in a stream's queue before the
	// launching thread waits (1,019 measured on an H200, driver 580.159).
	queuedLaunches = 1019
	// strictQueue is how many the launch hook lets be unfinished in the explicit engine.
	strictQueue = 512
)

// memory is what a policy does with the application's calls.
type memory interface {
	alloc(e *trace.Event) error
	free(e *trace.Event) error
	// launch queues an operation; finished must be called when it is done on the GPU.
	launch(e *trace.Event, finished func(at time.Duration))
	// sample fills in what the policy knows.
	sample(s *Sample)
	// predictions are the operations seen and those of them that were predicted.
	predictions() (ops, predicted int64)
	// settle is called at the end, to check what can be checked.
	settle() error
}

// application plays a trace's CPU thread in virtual time.
type application struct {
	ctx      context.Context
	trace    *trace.Trace
	options  Options
	gpu      *sim.GPU
	memory   memory
	next     int
	queued   int
	clock    time.Duration // the CPU thread's own
	queue    int           // launches that may be unfinished
	blocked  bool          // the last launch waits for memory, and the thread with it
	waiting  bool          // for queued to fall, or for a copy to the host
	waitsFor int           // operations that must be finished before it goes on; 0 = any room
	err      error

	judged      trace.Range // what is reported, of so many iterations
	iterations  int
	started     bool
	ended       bool
	live        int64
	sizes       map[uint64]int64
	begin       moment
	final       moment
	before      predictions // at the beginning of what is reported
	after       predictions
	compute     time.Duration
	timeline    []Sample
	begins      []int    // events that iterations begin with, and that which ends the last, still to come; with Options.Each
	turns       []moment // at these, as the GPU gets there
	foretold    []predictions
	nextSample  time.Duration
	sampleEvery time.Duration
	launchCost  time.Duration
	copiesSlow  bool // the job's work on the CPU takes longer while something crosses the bus
}

// moment is the state of the counters at one time.
type moment struct {
	Sample
	taken  bool
	faults int64
}

// predictions are counted as operations are queued, which is long before they run.
type predictions struct{ ops, predicted int64 }

const samplesPerIteration = 400

func newApplication(t *trace.Trace, o Options, g *sim.GPU, m memory) *application {
	a := &application{trace: t, options: o, gpu: g, memory: m, queue: queuedLaunches, sizes: map[uint64]int64{}}
	a.judged, a.iterations = t.Judged()
	if o.Each {
		for _, r := range t.Iterations() {
			a.begins = append(a.begins, r.First)
		}
		a.begins = append(a.begins, a.judged.End)
	}
	for _, e := range t.Events[a.judged.First:a.judged.End] {
		if d := e.Duration; d > 0 && (e.Kind == trace.KindLaunch || e.Kind == trace.KindCopy) {
			a.compute += d
		}
	}
	a.sampleEvery = a.compute / samplesPerIteration
	if a.launchCost = o.LaunchCost; a.launchCost == 0 {
		a.launchCost = DefaultLaunchCost
	}
	return a
}

// replay plays the trace to its end and reports its last full iteration, or the mean of several.
func (a *application) replay(ctx context.Context) (Result, error) {
	if a.err == nil {
		a.err = a.run(ctx)
	}
	if a.err != nil {
		return Result{}, a.err
	}
	return a.result(), nil
}

// run plays the trace to its end.
func (a *application) run(ctx context.Context) error {
	a.ctx = ctx
	a.gpu.At(0, a.step)
	for steps := 0; a.err == nil && a.gpu.Step(); steps++ {
		if steps%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if a.err != nil {
		return a.err
	}
	if err := a.gpu.Err(); err != nil {
		return err
	}
	if a.next < len(a.trace.Events) || !a.ended {
		return badInput("the replay of %s stopped at event %d of %d: nothing could make progress", a.trace.Name, a.next, len(a.trace.Events))
	}
	return a.memory.settle()
}

// unblock lets the thread go on whose launch waited for memory.
func (a *application) unblock() {
	if !a.blocked {
		return
	}
	a.blocked = false
	if e := &a.trace.Events[a.next-1]; e.Kind == trace.KindCopy && e.Copy == trace.CopyDeviceToHost {
		a.waiting, a.waitsFor = true, 1
		return
	}
	a.gpu.At(a.gpu.Now(), a.step)
}

// step plays events until the thread has to wait.
func (a *application) step() {
	if a.blocked {
		return
	}
	a.waiting = false
	a.clock = max(a.clock, a.gpu.Now())
	for a.next < len(a.trace.Events) && a.err == nil {
		if a.clock > a.gpu.Now() {
			a.gpu.At(a.clock, a.step)
			return
		}
		e := &a.trace.Events[a.next]
		switch e.Kind {
		case trace.KindLaunch, trace.KindCopy:
			if a.queued >= a.queue {
				a.waiting = true
				return
			}
		}
		a.mark(a.next)
		a.next++
		switch e.Kind {
		case trace.KindAlloc:
			a.live += e.Bytes
			a.sizes[e.Alloc] = e.Bytes
			a.err = a.memory.alloc(e)
		case trace.KindFree:
			a.live -= a.sizes[e.Alloc]
			delete(a.sizes, e.Alloc)
			a.err = a.memory.free(e)
		case trace.KindLaunch, trace.KindCopy:
			a.queued++
			a.clock += a.cpuTime()
			a.memory.launch(e, a.finished)
			if a.blocked {
				return
			}
			if e.Kind == trace.KindCopy && e.Copy == trace.CopyDeviceToHost {
				a.waiting, a.waitsFor = true, 1 // everything queued
				return
			}
		}
		if a.options.Progress != nil && a.next%1024 == 0 {
			a.options.Progress(a.next, len(a.trace.Events))
		}
	}
	a.mark(a.next)
}

// cpuTime is what the job's thread takes from this launch to the next.
func (a *application) cpuTime() time.Duration {
	if !a.copiesSlow {
		return a.launchCost
	}
	return time.Duration(float64(a.launchCost) * a.gpu.CPUSlowdown())
}

// finished is called when an operation is done.
func (a *application) finished(at time.Duration) {
	a.queued--
	a.observe(at)
	if !a.waiting || a.waitsFor > 0 && a.queued > 0 {
		return
	}
	a.waiting, a.waitsFor = false, 0
	a.gpu.At(at, a.step)
}

// mark notes the beginning and the end of what is reported, as the GPU gets there.
func (a *application) mark(index int) {
	if len(a.begins) > 0 && index == a.begins[0] {
		a.begins = a.begins[1:]
		var p predictions
		p.ops, p.predicted = a.memory.predictions()
		a.foretold = append(a.foretold, p)
		a.gpu.Callback(0, func(at time.Duration) { a.turns = append(a.turns, a.now(at)) })
	}
	switch {
	case index == a.judged.First && !a.started:
		a.started = true
		a.before.ops, a.before.predicted = a.memory.predictions()
		a.gpu.Callback(0, func(at time.Duration) {
			a.begin = a.now(at)
			a.nextSample = at
		})
	case index == a.judged.End && !a.ended:
		a.ended = true
		a.after.ops, a.after.predicted = a.memory.predictions()
		a.gpu.Callback(0, func(at time.Duration) { a.final = a.now(at) })
	}
}

func (a *application) now(at time.Duration) moment {
	st := a.gpu.Stats()
	m := moment{taken: true, faults: st.Faults}
	m.Sample = Sample{
		Seconds: at.Seconds(), LiveBytes: a.live,
		H2DBytes: st.H2DBytes, D2HBytes: st.D2HBytes, ResidentBytes: a.gpu.ResidentBytes(), StallSeconds: st.StallTime.Seconds(),
	}
	a.memory.sample(&m.Sample)
	return m
}

// observe samples the timeline of what is reported.
func (a *application) observe(at time.Duration) {
	if !a.options.Timeline || !a.begin.taken || a.final.taken || at < a.nextSample {
		return
	}
	a.nextSample = at + a.sampleEvery
	a.timeline = append(a.timeline, a.since(a.now(at).Sample))
}

func (a *application) since(s Sample) Sample {
	s.Seconds -= a.begin.Seconds
	s.H2DBytes -= a.begin.H2DBytes
	s.D2HBytes -= a.begin.D2HBytes
	s.StallSeconds -= a.begin.StallSeconds
	return s
}

// result reports an iteration.
func (a *application) result() Result {
	d, n := a.since(a.final.Sample), int64(a.iterations)
	r := Result{
		ComputeSeconds: a.compute.Seconds() / float64(n), IterationSeconds: d.Seconds / float64(n),
		H2DBytes: d.H2DBytes / n, D2HBytes: d.D2HBytes / n, Timeline: a.timeline,
		Faults: (a.final.faults - a.begin.faults) / n, LaunchCostSeconds: a.launchCost.Seconds(),
	}
	r.StallSeconds = max(0, r.IterationSeconds-r.ComputeSeconds)
	if ops := a.after.ops - a.before.ops; ops > 0 {
		r.PredictionHitRate = float64(a.after.predicted-a.before.predicted) / float64(ops)
	}
	for i := 1; i < len(a.turns); i++ {
		r.Each = append(r.Each, Turn{
			Seconds: a.turns[i].Seconds - a.turns[i-1].Seconds, H2DBytes: a.turns[i].H2DBytes - a.turns[i-1].H2DBytes,
			Operations: a.foretold[i].ops - a.foretold[i-1].ops, Predicted: a.foretold[i].predicted - a.foretold[i-1].predicted,
		})
	}
	return r
}

// duration is an operation's time on the GPU; unknown counts as none.
func duration(e *trace.Event) time.Duration { return max(0, e.Duration) }

// streamNumbers gives a trace's streams the simulator's.
type streamNumbers struct {
	driver cuda.Driver
	known  map[uint64]cuda.Stream
	index  map[uint64]int
}

func newStreamNumbers(d cuda.Driver) *streamNumbers {
	return &streamNumbers{driver: d, known: map[uint64]cuda.Stream{0: 0}, index: map[uint64]int{0: 0}}
}

func (s *streamNumbers) of(handle uint64) (cuda.Stream, int, error) {
	if x, ok := s.known[handle]; ok {
		return x, s.index[handle], nil
	}
	x, err := s.driver.StreamCreate()
	if err != nil {
		return 0, 0, err
	}
	s.known[handle], s.index[handle] = x, len(s.index)
	return x, s.index[handle], nil
}
