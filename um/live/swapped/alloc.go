package swapped

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/pool/stitch"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// Malloc allocates a tensor that can leave the device.
func (e *Engine) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	proc := e.proc
	proc.Lock()
	defer proc.Mu.Unlock()
	e.CatchUp()
	if e.front != nil {
		e.asked(bytes, stream, e.front.Requests(explicit.WholePages(bytes), stream))
	}
	p, err := e.runtime.Malloc(bytes, proc.Streams.Number(stream))
	if err != nil {
		return 0, err
	}
	proc.NoteTensors()
	e.HearAll()
	return p, nil
}

// Free takes a tensor back.
func (e *Engine) Free(p cuda.Ptr) error {
	proc := e.proc
	proc.Lock()
	defer proc.Mu.Unlock()
	e.CatchUp()
	err := e.runtime.Free(p)
	proc.NoteTensors()
	return err
}

// AcquirePlain makes a segment of plain device memory within the budget, for which
// tensors leave when they must. It is made of physical memory of its own: nothing
// of the driver's that could wait for the job's streams is called.
func (e *Engine) AcquirePlain(bytes int64) (cuda.Ptr, error) {
	proc := e.proc
	if err := proc.Driver.BindThread(); err != nil {
		return 0, err
	}
	size := explicit.WholePages(bytes)
	for shrunk := false; ; shrunk = true {
		if err := e.TakePlain(size); err != nil {
			return 0, err
		}
		p, err := e.plain.segment(size)
		if err == nil {
			e.plain.publish(cuda.Range{Base: p, Bytes: size})
			return p, nil
		}
		proc.AddPlain(-size)
		if shrunk || !errors.Is(err, cuda.ErrOutOfMemory) {
			return 0, fmt.Errorf("%w: %w", um.ErrOutOfMemory, err)
		}
		e.Shrink(err) // tensors make room
	}
}

// Shrink lowers the budget to what is in use, as the driver has no more.
func (e *Engine) Shrink(err error) bool {
	e.proc.Mu.Lock()
	defer e.proc.Mu.Unlock()
	e.runtime.Shrink()
	e.lowered(err)
	return true
}

// lowered says that the budget has become what the card has. The caller holds the lock.
func (e *Engine) lowered(err error) {
	proc := e.proc
	proc.Budget = e.runtime.Budget()
	proc.Log.Warn("the card has less memory than the budget: going on with what there is", zap.Int64("budget_bytes", proc.Budget), zap.Error(err))
}

// TakePlain takes room of the budget, when it has been made.
func (e *Engine) TakePlain(size int64) error {
	proc := e.proc
	proc.Mu.Lock()
	defer proc.Mu.Unlock()
	var waited, vain process.Idle
	var nagger process.Nagger
	for {
		fits := e.runtime.PlainFits(size)
		if fits && e.runtime.ReservePlain(size) {
			break
		}
		now := time.Now()
		waited.Look(now)
		if vain.Look(now); e.unfinished() {
			vain.End()
		}
		switch {
		case proc.Failed != nil:
			e.runtime.CancelPlain()
			return fmt.Errorf("no room is made for plain device memory any more: %w", proc.Failed)
		case !fits, proc.Closing, vain.Duration > e.patience(plainPatience):
			e.runtime.CancelPlain()
			return fmt.Errorf("%w: %d bytes of plain device memory asked for, and no room can be made in the budget of %d: raise --budget", um.ErrOutOfMemory, size, proc.Budget)
		case nagger.Due(waited.Duration):
			proc.Log.Warn("an allocation waits for memory that is in use", zap.Duration("for", waited.Round(time.Second)), zap.Int64("bytes", size), zap.String("state", e.runtime.Explain()))
		}
		e.wakeAll()
		if waited.Duration > reportPatience {
			proc.Mu.Unlock()
			e.hook.ReportAll()
			proc.Mu.Lock()
		}
		proc.Yield(waited.Duration)
	}
	proc.PlainBytes.Add(size)
	return nil
}

// emptyPatience is how long empty waits for the worker that gives memory back, which goes on without it.
const emptyPatience = time.Second

// Empty has what dead tensors have left on the device given back. The lock is released meanwhile.
func (e *Engine) Empty() {
	proc := e.proc
	e.hook.ReportAll() // or the last thing that streams have done would not be known to be over
	proc.Mu.Lock()
	defer proc.Mu.Unlock()
	e.CatchUp()
	defer proc.NoteReserved()
	proc.Progress()
	e.runtime.EmptyCache()
	e.wakeAll()
	for began := time.Now(); e.runtime.Emptying() && !proc.Closing && proc.Failed == nil && time.Since(began) < emptyPatience; {
		proc.Yield(0)
	}
}

// ReleasePlain gives a segment back once the device has finished with it: unlike
// cuMemFree, unmapping does not wait for work that is queued.
func (e *Engine) ReleasePlain(p cuda.Ptr, bytes int64) error {
	d := e.proc.Driver
	if err := d.BindThread(); err != nil {
		return err
	}
	size := explicit.WholePages(bytes)
	unasked := false
	for _, handle := range e.hook.Streams() {
		switch handle {
		case hook.StreamMany: // each was waited for
		case hook.StreamGone, hook.StreamPerThread: // nobody can ask it, or only its own thread
			unasked = true
		default:
			// One that is destroyed just now answers with an error, as may one of another context.
			unasked = d.StreamSynchronize(cuda.Stream(handle)) != nil || unasked
		}
	}
	if unasked {
		if err := e.proc.Synchronize(); err != nil {
			return err
		}
	}
	e.hook.WithdrawPlain(cuda.Range{Base: p, Bytes: size})
	if err := e.plain.unmap(p, size); err != nil {
		return err
	}
	if err := d.MemRelease(e.plain.forget(p)); err != nil {
		return err
	}
	e.proc.AddPlain(-size)
	return d.AddressFree(p, size)
}

func (e *Engine) PlainDriver(d stitch.Driver) stitch.Driver {
	return plainDriver{Driver: d, m: &e.plain}
}

func (e *Engine) PlainChanged() {
	plain := e.proc.PlainBytes.Load()
	e.runtime.SetPlainBytes(plain)
	e.hook.SetGraphBytes(e.proc.Budget - plain)
}

// OnlyFragmented: addresses are never what is missing, they are many times the memory.
func (e *Engine) OnlyFragmented(int64) bool { return false }
