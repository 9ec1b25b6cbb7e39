package replay

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/managed"
)

// managedEngine is the real runtime on the simulated GPU.
type managedEngine struct {
	loop
	runtime  *managed.Runtime
	steered  bool        // the driver evicts, and the runtime follows what it does
	gates    []*sim.Gate // by stream number
	opened   []uint64    // by stream number: up to where its gate is open
	held     []uint64    // by stream number: the last operation with a gate
	resident []bool      // by slot, as the launch hook would see it
}

// addressSpace is how much more address space than memory the arena has, so that
// fragmentation of addresses is never what is measured.
const addressSpace = 4

func newManaged(t *trace.Trace, o Options, budget int64, p um.Policy) *managedEngine {
	capacity := budget
	if o.SoftwareCap {
		capacity = max(o.Profile.MemoryBytes, addressSpace*t.PeakLiveBytes())
	}
	g := sim.New(o.Profile, sim.Options{CapacityBytes: capacity, DirectMoves: o.SoftwareCap})
	x := &managedEngine{}
	x.loop = newLoop(g, plainSource{x}, x.wake)
	x.app = newApplication(t, o, g, x)
	arena := (t.PeakLiveBytes()*addressSpace/managed.BlockBytes + 1) * managed.BlockBytes
	base, err := x.driver.MemAllocManaged(arena)
	if err != nil {
		x.app.err = err
		return x
	}
	x.steered = !o.SoftwareCap
	x.runtime = managed.New(managed.Config{Policy: p, BudgetBytes: budget, ArenaBytes: arena, DriverEvicts: !o.SoftwareCap, EvictionsSeen: !o.SoftwareCap, AllWorkSeen: true}, x, base)
	x.engine = x.runtime
	g.Observe(x.observe)
	// Several bring in, because the software part of a prefetch overlaps another's
	// transfer; two take out, so that one maps pages while the other copies.
	for _, d := range []um.Direction{um.In, um.In, um.In, um.Out, um.Out} {
		w := &worker{thread: g.Thread([]string{"in", "out"}[d])}
		mover, err := managed.NewStreamed(w.thread)
		if err != nil {
			x.app.err = err
			return x
		}
		w.take = func() func() {
			m, ok := x.runtime.Next(d)
			if !ok {
				return nil
			}
			return func() { x.move(w, mover, m) }
		}
		x.workers = append(x.workers, w)
	}
	return x
}

// plainSource makes segments of plain device memory.
type plainSource struct{ x *managedEngine }

func (s plainSource) Acquire(bytes int64) (cuda.Ptr, error) {
	p, err := s.x.driver.MemAlloc(bytes)
	if err == nil {
		s.x.plain += bytes
		s.x.runtime.SetPlainBytes(s.x.plain, 0)
	}
	return p, err
}

func (s plainSource) Release(p cuda.Ptr, bytes int64) error {
	s.x.plain -= bytes
	s.x.runtime.SetPlainBytes(s.x.plain, 0)
	return s.x.driver.MemFree(p)
}

func (x *managedEngine) launch(e *trace.Event, finished func(time.Duration)) {
	o, err := x.operation(e, finished)
	if err != nil {
		x.app.err = err
		return
	}
	for len(x.gates) <= o.Stream {
		x.gates = append(x.gates, x.gpu.NewGate())
		x.opened, x.held = append(x.opened, 0), append(x.held, 0)
	}
	gated := x.opened[o.Stream] < x.held[o.Stream] // behind one that is held back
	for _, slot := range x.slots {
		gated = gated || !x.resident[slot]
	}
	if gated {
		x.held[o.Stream] = o.Seq
		x.gpu.WaitGate(o.stream, x.gates[o.Stream], o.Seq)
	}
	x.gpu.Launch(o.stream, o.kernel)
	o.Gated = gated
	x.runtime.Op(o.Op)
	x.wake()
}

// move has a worker carry a move out.
func (x *managedEngine) move(w *worker, mover *managed.Streamed, m *managed.Move) {
	if err := mover.Start(m); err != nil {
		x.fail(err)
		return
	}
	x.gpu.Callback(mover.Stream(), func(at time.Duration) {
		x.gpu.At(max(at, w.thread.Now()), func() {
			w.busy = false
			x.runtime.Done(m)
			x.wake()
		})
	})
}

// observe hears what the driver did on its own.
func (x *managedEngine) observe(e sim.Event) {
	switch e.Kind {
	case sim.EventMigration:
		switch e.Cause {
		case sim.CauseEviction:
			x.runtime.Migrated(e.Range, false)
		case sim.CauseCoherence, sim.CausePrefetch, sim.CauseUser:
			if x.steered {
				x.runtime.Migrated(e.Range, e.To == cuda.Device)
			}
		}
	}
}

func (x *managedEngine) sample(s *Sample) { s.ResidentBytes += x.plain }

func (x *managedEngine) predictions() (ops, predicted int64) {
	h := x.runtime.Stats().History
	return h.Ops, h.Predicted
}

// The engine's view of the process: the launch hook's part.

func (x *managedEngine) Publish(slot uint32, _ cuda.Range, resident bool) {
	for len(x.resident) <= int(slot) {
		x.resident = append(x.resident, false)
	}
	x.resident[slot] = resident
}

func (x *managedEngine) Withdraw(uint32, cuda.Range) {}

func (x *managedEngine) SetResident(slot uint32, resident bool) { x.resident[slot] = resident }

func (x *managedEngine) OpenGate(stream int, seq uint64) {
	x.opened[stream] = seq
	x.gates[stream].Open(seq)
}
