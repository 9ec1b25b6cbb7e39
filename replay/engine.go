package replay

import (
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/managed"
)

// engine is the real runtime on the simulated GPU.
type engine struct {
	app     *application
	gpu     *sim.GPU
	driver  *sim.Thread
	runtime *um.Runtime
	steered bool // the driver evicts, and the runtime follows what it does
	streams *streamNumbers
	gates   []*sim.Gate // by stream number
	opened  []uint64    // by stream number: up to where its gate is open
	held    []uint64    // by stream number: the last operation with a gate
	plain   int64

	allocations
	slotOf   map[cuda.Ptr]uint32 // that the runtime published
	resident []bool              // by slot, as the launch hook would see it
	seq      uint64
	workers  []*worker
}

// worker is one of the engine's threads, in virtual time.
type worker struct {
	direction um.Direction
	thread    *sim.Thread
	mover     *managed.Streamed
	busy      bool
	asked     bool
}

// addressSpace is how much more address space than memory the arena has, so that
// fragmentation of addresses is never what is measured.
const addressSpace = 4

func newEngine(t *trace.Trace, o Options, budget int64, p um.Policy) *engine {
	capacity := budget
	if o.SoftwareCap {
		capacity = max(o.Profile.MemoryBytes, addressSpace*t.PeakLiveBytes())
	}
	g := sim.New(o.Profile, sim.Options{CapacityBytes: capacity, DirectMoves: o.SoftwareCap})
	x := &engine{
		gpu: g, driver: g.Thread("application"),
	}
	x.streams = newStreamNumbers(x.driver)
	x.allocations = newAllocations(um.SmallBytes, plainSource{x}, x.wake)
	x.app = newApplication(t, o, g, x)
	arena := (t.PeakLiveBytes()*addressSpace/um.BlockBytes + 1) * um.BlockBytes
	base, err := x.driver.MemAllocManaged(arena)
	if err != nil {
		x.app.err = err
		return x
	}
	x.steered = !o.SoftwareCap
	x.runtime = um.New(um.Config{Policy: p, BudgetBytes: budget, ArenaBytes: arena, DriverEvicts: !o.SoftwareCap, EvictionsSeen: !o.SoftwareCap, AllWorkSeen: true}, x, base)
	x.slotOf = map[cuda.Ptr]uint32{}
	x.tensors, x.slotAt = x.runtime, func(p cuda.Ptr) uint32 { return x.slotOf[p] }
	g.Observe(x.observe)
	// Several bring in, because the software part of a prefetch overlaps another's
	// transfer; two take out, so that one maps pages while the other copies.
	for _, d := range []um.Direction{um.In, um.In, um.In, um.Out, um.Out} {
		w := &worker{direction: d, thread: g.Thread([]string{"in", "out"}[d])}
		if w.mover, x.app.err = managed.NewStreamed(w.thread); x.app.err != nil {
			return x
		}
		x.workers = append(x.workers, w)
	}
	return x
}

// plainSource makes segments of plain device memory.
type plainSource struct{ x *engine }

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

func (x *engine) launch(e *trace.Event, finished func(time.Duration)) {
	s, number, err := x.streams.of(e.Stream)
	if err != nil {
		x.app.err = err
		return
	}
	for len(x.gates) <= number {
		x.gates = append(x.gates, x.gpu.NewGate())
		x.opened, x.held = append(x.opened, 0), append(x.held, 0)
	}
	x.seq++
	seq := x.seq
	k := sim.Kernel{Duration: duration(e), Done: func(at time.Duration) {
		x.runtime.Progress(number, seq)
		finished(at)
		x.wake()
	}}
	k.Accesses = x.accesses(e)
	gated := x.opened[number] < x.held[number] // behind one that is held back
	for _, slot := range x.slots {
		gated = gated || !x.resident[slot]
	}
	if gated {
		x.held[number] = seq
		x.gpu.WaitGate(s, x.gates[number], seq)
	}
	x.gpu.Launch(s, k)
	x.runtime.Op(um.Op{Seq: seq, Stream: number, Signature: um.Signature(int(e.Kind), uint64(e.Copy)<<32|uint64(e.Function), len(x.slots)), Slots: x.slots, Gated: gated})
	x.wake()
}

// wake wakes the workers that wait for something to do.
func (x *engine) wake() {
	for _, w := range x.workers {
		if w.busy || w.asked {
			continue
		}
		w.asked = true
		x.gpu.At(x.gpu.Now(), func() {
			w.asked = false
			x.work(w)
		})
	}
}

// work lets a worker take a move.
func (x *engine) work(w *worker) {
	if w.busy {
		return
	}
	m, ok := x.runtime.Next(w.direction)
	if !ok {
		return
	}
	w.busy = true
	if err := w.mover.Start(m); err != nil {
		x.app.err = fmt.Errorf("replay: %w", err)
		return
	}
	x.gpu.Callback(w.mover.Stream(), func(at time.Duration) {
		x.gpu.At(max(at, w.thread.Now()), func() {
			w.busy = false
			x.runtime.Done(m)
			x.wake()
		})
	})
}

// observe hears what the driver did on its own.
func (x *engine) observe(e sim.Event) {
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

func (x *engine) sample(s *Sample) { s.ResidentBytes += x.plain }

func (x *engine) predictions() (ops, predicted int64) {
	h := x.runtime.Stats().History
	return h.Ops, h.Predicted
}

func (x *engine) settle() error {
	if err := x.runtime.Check(); err != nil {
		return fmt.Errorf("replay: the engine's ledger does not add up: %w", err)
	}
	return x.small.Check()
}

// The engine's view of the process: the launch hook's part.

func (x *engine) Publish(slot uint32, r cuda.Range, resident bool) {
	for len(x.resident) <= int(slot) {
		x.resident = append(x.resident, false)
	}
	x.resident[slot] = resident
	x.slotOf[r.Base] = slot
}

func (x *engine) Withdraw(_ uint32, r cuda.Range) { delete(x.slotOf, r.Base) }

func (x *engine) SetResident(slot uint32, resident bool) { x.resident[slot] = resident }

func (x *engine) OpenGate(stream int, seq uint64) {
	x.opened[stream] = seq
	x.gates[stream].Open(seq)
}

func (x *engine) Now() time.Duration { return x.gpu.Now() }
