package replay

import (
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
)

// loop is what every engine has on the simulated GPU: the job's operations, numbered, and the
// engine's threads in virtual time. What the engine does with either is its own.
type loop struct {
	app     *application
	gpu     *sim.GPU
	driver  *sim.Thread
	streams *streamNumbers
	plain   int64  // bytes that never move
	seq     uint64 // of the last operation
	workers []*worker
	allocations
}

// newLoop begins an engine. wake is the engine's own, which calls the loop's.
func newLoop(g *sim.GPU, plain pool.Source, wake func()) loop {
	d := g.Thread("application")
	return loop{gpu: g, driver: d, streams: newStreamNumbers(d), allocations: newAllocations(plain, wake)}
}

// worker is one of an engine's threads. When it is idle and something may have changed it looks for a move.
type worker struct {
	thread *sim.Thread
	take   func() (carryOut func()) // nil: there is none
	busy   bool                     // until the engine says otherwise
	asked  bool
}

// wake wakes the workers that wait for something to do.
func (l *loop) wake() {
	for _, w := range l.workers {
		if w.busy || w.asked {
			continue
		}
		w.asked = true
		l.gpu.At(l.gpu.Now(), func() {
			w.asked = false
			if carryOut := w.take(); carryOut != nil {
				w.busy = true
				carryOut()
			}
		})
	}
}

// operation is a launch or a copy on its way to the GPU.
type operation struct {
	kernel sim.Kernel
	stream cuda.Stream
	um.Op  // as an engine is told of it; its stream's number is the engine's
}

// operation numbers one of the trace, whose slots are then the loop's.
func (l *loop) operation(e *trace.Event, finished func(time.Duration)) (operation, error) {
	s, number, err := l.streams.of(e.Stream)
	if err != nil {
		return operation{}, err
	}
	l.seq++
	seq := l.seq
	kernel := sim.Kernel{
		Duration: duration(e), Accesses: l.accesses(e),
		Done: func(at time.Duration) {
			l.engine.Progress(number, seq)
			finished(at)
			l.changed()
		},
	}
	return operation{kernel, s, um.Op{Seq: seq, Stream: number, Slots: l.slots, Work: uint32(e.Copy)<<28 ^ e.Function}}, nil
}

func (l *loop) fail(err error) { l.app.err = fmt.Errorf("replay: %w", err) }

func (l *loop) settle() error {
	if err := l.engine.Check(); err != nil {
		return fmt.Errorf("replay: the engine's ledger does not add up: %w", err)
	}
	return l.small.Check()
}

func (l *loop) Now() time.Duration { return l.gpu.Now() }
