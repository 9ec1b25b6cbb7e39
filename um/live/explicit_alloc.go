package live

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/pool/stitch"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// malloc allocates a tensor that can leave the device.
func (e *swap) malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	proc := e.proc
	proc.lock()
	defer proc.mu.Unlock()
	e.catchUp()
	if e.front != nil {
		e.asked(bytes, stream, e.front.Requests(explicit.WholePages(bytes), stream))
	}
	p, err := e.runtime.Malloc(bytes, proc.streams.Number(stream))
	if err != nil {
		return 0, err
	}
	proc.noteTensors()
	e.hearAll()
	return p, nil
}

// free takes a tensor back.
func (e *swap) free(p cuda.Ptr) error {
	proc := e.proc
	proc.lock()
	defer proc.mu.Unlock()
	e.catchUp()
	err := e.runtime.Free(p)
	proc.noteTensors()
	return err
}

// acquirePlain makes a segment of plain device memory within the budget, for which
// tensors leave when they must. It is made of physical memory of its own: nothing
// of the driver's that could wait for the job's streams is called.
func (e *swap) acquirePlain(bytes int64) (cuda.Ptr, error) {
	proc := e.proc
	if err := proc.driver.BindThread(); err != nil {
		return 0, err
	}
	size := explicit.WholePages(bytes)
	for shrunk := false; ; shrunk = true {
		if err := e.takePlain(size); err != nil {
			return 0, err
		}
		p, err := e.mapPlain(size)
		if err == nil {
			e.publishPlain(cuda.Range{Base: p, Bytes: size})
			return p, nil
		}
		proc.addPlain(-size)
		if shrunk || !errors.Is(err, cuda.ErrOutOfMemory) {
			return 0, fmt.Errorf("%w: %w", ErrOutOfMemory, err)
		}
		e.shrink(err) // tensors make room
	}
}

// shrink lowers the budget to what is in use, as the driver has no more.
func (e *swap) shrink(err error) bool {
	e.proc.mu.Lock()
	defer e.proc.mu.Unlock()
	e.runtime.Shrink()
	e.lowered(err)
	return true
}

// lowered says that the budget has become what the card has. The caller holds the lock.
func (e *swap) lowered(err error) {
	proc := e.proc
	proc.budget = e.runtime.Budget()
	proc.log.Warn("the card has less memory than the budget: going on with what there is", zap.Int64("budget_bytes", proc.budget), zap.Error(err))
}

// takePlain takes room of the budget, when it has been made.
func (e *swap) takePlain(size int64) error {
	proc := e.proc
	proc.mu.Lock()
	defer proc.mu.Unlock()
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
		case proc.failed != nil:
			e.runtime.CancelPlain()
			return fmt.Errorf("no room is made for plain device memory any more: %w", proc.failed)
		case !fits, proc.closing, vain.Duration > e.patience(plainPatience):
			e.runtime.CancelPlain()
			return fmt.Errorf("%w: %d bytes of plain device memory asked for, and no room can be made in the budget of %d: raise --budget", ErrOutOfMemory, size, proc.budget)
		case nagger.Due(waited.Duration):
			proc.log.Warn("an allocation waits for memory that is in use", zap.Duration("for", waited.Round(time.Second)), zap.Int64("bytes", size), zap.String("state", e.runtime.Explain()))
		}
		e.wakeAll()
		if waited.Duration > reportPatience {
			proc.mu.Unlock()
			e.hook.ReportAll()
			proc.mu.Lock()
		}
		proc.yield()
	}
	proc.plainBytes.Add(size)
	return nil
}

// emptyPatience is how long empty waits for the worker that gives memory back, which goes on without it.
const emptyPatience = time.Second

// empty has what dead tensors have left on the device given back. The lock is released meanwhile.
func (e *swap) empty() {
	proc := e.proc
	e.hook.ReportAll() // or the last thing that streams have done would not be known to be over
	proc.mu.Lock()
	defer proc.mu.Unlock()
	e.catchUp()
	defer proc.noteReserved()
	proc.progress()
	e.runtime.EmptyCache()
	e.wakeAll()
	for began := time.Now(); e.runtime.Emptying() && !proc.closing && proc.failed == nil && time.Since(began) < emptyPatience; {
		proc.yield()
	}
}

func (e *swap) mapPlain(size int64) (p cuda.Ptr, err error) {
	d := e.proc.driver
	h, err := d.MemCreate(size, cuda.Device)
	if err != nil {
		return 0, err
	}
	if p, err = d.AddressReserve(size, explicit.PageBytes, plainHint); err != nil {
		_ = d.MemRelease(h) // the first error counts
		return 0, err
	}
	if err = e.mapPlainAt(p, size, h); err == nil {
		if err = d.SetAccess(p, size); err == nil {
			e.plainMu.Lock()
			e.plainHandles[p] = h
			e.plainMu.Unlock()
			return p, nil
		}
		_ = e.unmapPlain(p, size)
	}
	_ = d.MemRelease(h)
	_ = d.AddressFree(p, size)
	return 0, err
}

// releasePlain gives a segment back once the device has finished with it: unlike
// cuMemFree, unmapping does not wait for work that is queued.
func (e *swap) releasePlain(p cuda.Ptr, bytes int64) error {
	d := e.proc.driver
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
		if err := e.proc.synchronize(); err != nil {
			return err
		}
	}
	e.hook.WithdrawPlain(cuda.Range{Base: p, Bytes: size})
	if err := e.unmapPlain(p, size); err != nil {
		return err
	}
	e.plainMu.Lock()
	h := e.plainHandles[p]
	delete(e.plainHandles, p)
	e.plainMu.Unlock()
	if err := d.MemRelease(h); err != nil {
		return err
	}
	e.proc.addPlain(-size)
	return d.AddressFree(p, size)
}

// plainDriver tells the launch hook which addresses are those of plain memory, where
// an operation may find addresses of tensors.
type plainDriver struct {
	stitch.Driver
	e *swap
}

func (d plainDriver) AddressReserve(bytes, align int64, hint cuda.Ptr) (cuda.Ptr, error) {
	if hint == 0 {
		hint = plainHint
	}
	p, err := d.Driver.AddressReserve(bytes, align, hint)
	if err == nil {
		d.e.publishPlain(cuda.Range{Base: p, Bytes: bytes})
	}
	return p, err
}

// publishPlain tells the launch hook of addresses of plain memory, and notes between which all of them lie.
func (e *swap) publishPlain(r cuda.Range) {
	e.plainSpanMu.Lock()
	if e.plainSpan[1] == 0 {
		e.plainSpan[0] = r.Base
	}
	e.plainSpan = [2]cuda.Ptr{min(e.plainSpan[0], r.Base), max(e.plainSpan[1], r.End())}
	e.plainSpanMu.Unlock()
	e.hook.PublishPlain(r)
}

func (d plainDriver) Map(p cuda.Ptr, bytes int64, h cuda.Handle) error {
	return d.e.mapPlainAt(p, bytes, h)
}

func (d plainDriver) Unmap(p cuda.Ptr, bytes int64) error { return d.e.unmapPlain(p, bytes) }

func (d plainDriver) AddressFree(p cuda.Ptr, bytes int64) error {
	d.e.hook.WithdrawPlain(cuda.Range{Base: p, Bytes: bytes})
	return d.Driver.AddressFree(p, bytes)
}

func (e *swap) plainDriver(d stitch.Driver) stitch.Driver {
	return plainDriver{Driver: d, e: e}
}

func (e *swap) plainChanged() { e.runtime.SetPlainBytes(e.proc.plainBytes.Load()) }

func (e *swap) segments() bool { return true }

// onlyFragmented: addresses are never what is missing, they are many times the memory.
func (e *swap) onlyFragmented(int64) bool { return false }
