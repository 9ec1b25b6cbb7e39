package live

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/um"
)

// Malloc allocates for work on a stream, given by its handle.
func (l *Live) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("cannot allocate %d bytes", bytes)
	}
	p, err := l.malloc(bytes, stream)
	if err != nil {
		l.counts.ooms.Add(1)
		return 0, err
	}
	l.counts.allocs.Add(1)
	raise(&l.counts.livePeak, l.liveBytes())
	raise(&l.counts.reservedPeak, l.reservedBytes())
	if l.sink != nil && !l.config.AllocsToldElsewhere {
		done := l.recording()
		l.sink.Alloc(p, bytes, stream)
		done()
	}
	return p, nil
}

// recording makes sure that what the hook saw is told before an allocation or free
// is: records name slots, which get other owners. Call what it returns when that is
// told. In plain memory there are no slots, and the job's threads need not wait.
func (l *Live) recording() (done func()) {
	if !l.engine.serving() {
		return func() {}
	}
	l.lock()
	l.drain()
	return l.mu.Unlock
}

func (l *Live) malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes > front.All {
		return 0, fmt.Errorf("%w: %s asked for: there are no addresses for so much", ErrOutOfMemory, size.Text(bytes))
	}
	if bytes >= um.SmallBytes && l.engine.serving() && l.active.Load() == nil {
		p, err := l.engine.malloc(bytes, stream)
		if err == nil || !l.engine.onlyFragmented(bytes) {
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
	if errors.Is(err, cuda.ErrOutOfMemory) && l.engine.shrink(err) { // the driver has less than the budget: tensors make room
		p, err = l.plain.Malloc(bytes, stream)
	}
	switch {
	case err == nil:
		return p, nil
	case !l.engine.startsWhenFull():
		return 0, l.plainIsFull(bytes, err)
	}
	return l.mallocAfterOverflow(bytes, stream, err)
}

// plainIsFull says why plain memory does not serve a request.
func (l *Live) plainIsFull(bytes int64, err error) error {
	if errors.Is(err, ErrOutOfMemory) || errors.Is(err, cuda.ErrOutOfMemory) {
		return fmt.Errorf("%w: %s asked for with %s live and %s reserved of a device budget of %s, and nothing may leave the device", ErrOutOfMemory,
			size.Text(bytes), size.Text(l.liveBytes()), size.Text(l.reservedBytes()), size.Text(l.plainBudget.Load()))
	}
	return err
}

// mallocAfterOverflow serves a request that plain memory had no room for: from the
// arena, which is opened when the card is full for the first time.
func (l *Live) mallocAfterOverflow(bytes int64, stream uint64, err error) (cuda.Ptr, error) {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	switch {
	case l.engine.serving() && bytes >= um.SmallBytes: // another thread opened the arena while this one waited
		return l.engine.malloc(bytes, stream)
	case l.engine.serving():
		return 0, err // a small allocation, and plain memory is spent
	}
	l.log.Info("device memory is full: further allocations can leave the device",
		zap.Int64("plain_bytes", l.plainBytes.Load()), zap.Int64("budget_bytes", l.budget))
	l.overflowed.Store(true)
	l.counts.retries.Add(1)
	if err := l.engine.open(); err != nil {
		return 0, fmt.Errorf("%w: %d bytes asked for with %d of %d in use, and %v", ErrOutOfMemory, bytes, l.plainBytes.Load(), l.budget, err)
	}
	if bytes < um.SmallBytes {
		return 0, err
	}
	return l.engine.malloc(bytes, stream)
}

// Free takes an allocation back; queued work may still use it.
func (l *Live) Free(p cuda.Ptr) error {
	if l.sink != nil && !l.config.AllocsToldElsewhere {
		done := l.recording()
		l.sink.Free(p)
		done()
	}
	private, err := l.freePrivate(p)
	if !private && l.engine.owns(p) {
		err := l.engine.free(p)
		l.freed(err)
		return err
	}
	if !private {
		l.besides.freed(p)
		err = l.plain.Free(p)
		l.besides.giveBack(l.plain)
	}
	l.freed(err)
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
	if l.engine.owns(p) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.engine.catchUp()
		return l.tensors.RecordStream(p, l.streams.Number(stream))
	}
	l.plain.RecordStream(p, stream)
	return nil
}

// EmptyCache gives unused memory back to the driver. It waits for the device first, as
// cudaFree does, for freed memory may still be in use on a stream that it was not recorded for:
// that is well while nobody else is given it, and fatal once it is unmapped.
func (l *Live) EmptyCache() {
	if l.synchronize() != nil {
		return
	}
	l.plain.EmptyCache()
	l.engine.empty()
}

// SetFraction limits the engine to a fraction of the device's memory.
func (l *Live) SetFraction(f float64) error {
	if !(f > 0 && f <= 1) {
		return fmt.Errorf("a memory fraction of %v is not between 0 and 1", f)
	}
	_, total, err := l.driver.MemInfo()
	if err != nil {
		return err
	}
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := int64(f * float64(total))
	if l.config.BudgetBytes == 0 || limit < l.config.BudgetBytes {
		l.budget = max(limit, minBudgetBytes)
	} else {
		l.budget = l.config.BudgetBytes
	}
	l.plainBudget.Store(l.budget)
	if l.tensors != nil {
		l.tensors.SetBudget(l.budget)
	}
	return nil
}
