package live

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// Malloc allocates for work on a stream, given by its handle.
func (l *Live) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	return l.allocated(bytes, stream, func() (cuda.Ptr, error) { return l.malloc(bytes, stream) })
}

// allocated counts and tells of what malloc returns.
func (l *Live) allocated(bytes int64, stream uint64, malloc func() (cuda.Ptr, error)) (cuda.Ptr, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("cannot allocate %d bytes", bytes)
	}
	p, err := malloc()
	if err != nil {
		l.Counts.OOMs.Add(1)
		return 0, err
	}
	l.Counts.Allocs.Add(1)
	process.Raise(&l.Counts.LivePeak, l.LiveBytes())
	process.Raise(&l.Counts.ReservedPeak, l.ReservedBytes())
	if l.Sink != nil && !l.config.AllocsToldElsewhere {
		done := l.recording()
		l.Sink.Alloc(p, bytes, stream)
		done()
	}
	return p, nil
}

// recording makes sure that what the hook saw is told before an allocation or free
// is: records name slots, which get other owners. Call what it returns when that is
// told. In plain memory there are no slots, and the job's threads need not wait.
func (l *Live) recording() (done func()) {
	if !l.Engine.Serving() {
		return func() {}
	}
	l.Lock()
	l.Drain()
	return l.Mu.Unlock
}

func (l *Live) malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes > front.All {
		return 0, fmt.Errorf("%w: %s asked for: there are no addresses for so much", um.ErrOutOfMemory, size.Text(bytes))
	}
	if bytes >= um.SmallBytes && l.Engine.Serving() && l.active.Load() == nil {
		p, err := l.Engine.Malloc(bytes, stream)
		if err == nil || !l.Engine.OnlyFragmented(bytes) {
			return p, err
		}
		return l.mallocBeside(bytes, stream, err)
	}
	if l.active.Load() != nil {
		if p, ok, err := l.mallocPrivate(bytes, stream); ok {
			return p, err
		}
	}
	p, err := l.plain.Malloc(bytes, stream)
	if errors.Is(err, cuda.ErrOutOfMemory) && l.Engine.Shrink(err) { // the driver has less than the budget: tensors make room
		p, err = l.plain.Malloc(bytes, stream)
	}
	switch {
	case err == nil:
		return p, nil
	case !l.Engine.StartsWhenFull():
		return 0, l.plainIsFull(bytes, err)
	}
	return l.mallocAfterOverflow(bytes, stream, err)
}

// plainIsFull says why plain memory does not serve a request.
func (l *Live) plainIsFull(bytes int64, err error) error {
	if errors.Is(err, um.ErrOutOfMemory) || errors.Is(err, cuda.ErrOutOfMemory) {
		return fmt.Errorf("%w: %s asked for with %s live and %s reserved of a device budget of %s, and nothing may leave the device", um.ErrOutOfMemory,
			size.Text(bytes), size.Text(l.LiveBytes()), size.Text(l.ReservedBytes()), size.Text(l.PlainBudget.Load()))
	}
	return err
}

// mallocAfterOverflow serves a request that plain memory had no room for: from the
// arena, which is opened when the card is full for the first time.
func (l *Live) mallocAfterOverflow(bytes int64, stream uint64, err error) (cuda.Ptr, error) {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	switch {
	case l.Engine.Serving() && bytes >= um.SmallBytes: // another thread opened the arena while this one waited
		return l.Engine.Malloc(bytes, stream)
	case l.Engine.Serving():
		return 0, err // a small allocation, and plain memory is spent
	}
	l.Log.Info("device memory is full: further allocations can leave the device",
		zap.Int64("plain_bytes", l.PlainBytes.Load()), zap.Int64("budget_bytes", l.Budget))
	l.overflowed.Store(true)
	l.Counts.Retries.Add(1)
	if err := l.Engine.Open(); err != nil {
		return 0, fmt.Errorf("%w: %d bytes asked for with %d of %d in use, and %v", um.ErrOutOfMemory, bytes, l.PlainBytes.Load(), l.Budget, err)
	}
	if bytes < um.SmallBytes {
		return 0, err
	}
	return l.Engine.Malloc(bytes, stream)
}

// Free takes an allocation back; queued work may still use it.
func (l *Live) Free(p cuda.Ptr) error {
	if l.Sink != nil && !l.config.AllocsToldElsewhere {
		done := l.recording()
		l.Sink.Free(p)
		done()
	}
	private, err := l.freePrivate(p)
	if !private && l.Engine.Owns(p) {
		err := l.Engine.Free(p)
		l.Freed(err)
		return err
	}
	if !private {
		l.besides.freed(p)
		err = l.plain.Free(p)
		l.besides.giveBack(l.plain)
	}
	l.Freed(err)
	if l.overflowed.Load() {
		l.plain.GiveBackEmpty()
	}
	return err
}

// RecordStream says that work on another stream uses an allocation.
func (l *Live) RecordStream(p cuda.Ptr, stream uint64) error {
	if l.recordPrivate(p, stream) {
		return nil
	}
	if l.Engine.Owns(p) {
		l.Mu.Lock()
		defer l.Mu.Unlock()
		l.Engine.CatchUp()
		return l.Tensors.RecordStream(p, l.Streams.Number(stream))
	}
	l.plain.RecordStream(p, stream)
	return nil
}

// EmptyCache gives unused memory back to the driver. It waits for the device first, as
// cudaFree does, for freed memory may still be in use on a stream that it was not recorded for:
// that is well while nobody else is given it, and fatal once it is unmapped.
func (l *Live) EmptyCache() {
	if l.Synchronize() != nil {
		return
	}
	l.plain.EmptyCache()
	l.Engine.Empty()
}

// SetFraction limits the engine to a fraction of the device's memory.
func (l *Live) SetFraction(f float64) error {
	if !(f > 0 && f <= 1) {
		return fmt.Errorf("a memory fraction of %v is not between 0 and 1", f)
	}
	_, total, err := l.Driver.MemInfo()
	if err != nil {
		return err
	}
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	l.Mu.Lock()
	defer l.Mu.Unlock()
	limit := int64(f * float64(total))
	if l.config.BudgetBytes == 0 || limit < l.config.BudgetBytes {
		l.Budget = max(limit, minBudgetBytes)
	} else {
		l.Budget = l.config.BudgetBytes
	}
	l.PlainBudget.Store(l.Budget)
	if l.Tensors != nil {
		l.Tensors.SetBudget(l.Budget)
	}
	return nil
}
