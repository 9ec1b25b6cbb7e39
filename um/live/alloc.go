package live

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// Malloc allocates for work on a stream, given by its handle.
func (l *Live) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("cannot allocate %d bytes", bytes)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.malloc(bytes, stream)
	if err != nil {
		l.counts.ooms++
		return 0, err
	}
	l.counts.allocs++
	live, reserved := l.liveBytes(), l.reservedBytes()
	l.counts.livePeak = max(l.counts.livePeak, live)
	l.counts.reservedPeak = max(l.counts.reservedPeak, reserved)
	for _, s := range l.sinks {
		s.Alloc(uint64(l.counts.allocs), p, bytes, stream)
	}
	return p, nil
}

func (l *Live) malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes >= um.SmallBytes && l.runtime != nil {
		l.drain()
		p, err := l.runtime.Malloc(bytes, l.streamID(stream))
		if err == nil {
			l.work.Broadcast()
		}
		return p, err
	}
	p, err := l.plain.Malloc(bytes, stream)
	if err == nil || l.config.PlainOnly {
		return p, err
	}
	if l.runtime != nil { // a small allocation, and plain memory is spent
		return 0, err
	}
	// The card is full: go over to the arena.
	l.log.Info("device memory is full: further allocations can leave the device",
		zapBytes("plain_bytes", l.plainBytes), zapBytes("budget_bytes", l.budget))
	l.overflowed = true
	l.counts.retries++
	if err := l.openArena(); err != nil {
		return 0, fmt.Errorf("%w: %d bytes asked for with %d of %d in use, and %v", ErrOutOfMemory, bytes, l.plainBytes, l.budget, err)
	}
	return l.malloc(bytes, stream)
}

// Free takes an allocation back; queued work may still use it.
func (l *Live) Free(p cuda.Ptr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.frees++
	for _, s := range l.sinks {
		s.Free(p)
	}
	if l.runtime != nil && l.runtime.Owns(p) {
		l.drain()
		l.runtime.Reserved(l.hookHead())
		err := l.runtime.Free(p)
		l.work.Broadcast()
		return err
	}
	err := l.plain.Free(p)
	if l.overflowed && l.plain.HasEmpty() {
		l.plain.EmptyCache()
	}
	return err
}

func (l *Live) hookHead() uint64 {
	if l.hook == nil {
		return 0
	}
	return l.hook.Head()
}

// RecordStream says that work on another stream uses an allocation.
func (l *Live) RecordStream(p cuda.Ptr, stream uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runtime != nil && l.runtime.Owns(p) {
		return l.runtime.RecordStream(p, l.streamID(stream))
	}
	l.plain.RecordStream(p, stream)
	return nil
}

// EmptyCache gives unused plain segments back to the driver.
func (l *Live) EmptyCache() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plain.EmptyCache()
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
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := int64(f * float64(total))
	if l.config.BudgetBytes == 0 || limit < l.config.BudgetBytes {
		l.budget = max(limit, minBudgetBytes)
	} else {
		l.budget = l.config.BudgetBytes
	}
	if l.runtime != nil {
		l.runtime.SetBudget(l.budget)
	}
	return nil
}

// streamID is the runtime's number for a stream.
func (l *Live) streamID(handle uint64) int {
	// cudaStreamLegacy is another name of the default stream.
	if handle == 1 {
		handle = 0
	}
	id, ok := l.streamIDs[handle]
	if !ok {
		id = len(l.ownStreams)
		l.streamIDs[handle] = id
		l.ownStreams = append(l.ownStreams, -1)
	}
	return id
}

// plainSource provides plain device memory within the budget.
type plainSource struct{ l *Live }

func (s plainSource) Acquire(bytes int64) (cuda.Ptr, error) {
	l := s.l
	if l.plainBytes+bytes > l.budget {
		return 0, fmt.Errorf("%w: %d bytes of plain device memory asked for with %d of the budget of %d in use", ErrOutOfMemory, bytes, l.plainBytes, l.budget)
	}
	if err := l.driver.BindThread(); err != nil {
		return 0, err
	}
	p, err := l.driver.MemAlloc(bytes)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrOutOfMemory, err)
	}
	l.plainBytes += bytes
	if l.runtime != nil {
		l.runtime.SetPlainBytes(l.plainBytes)
	}
	return p, nil
}

func (s plainSource) Release(p cuda.Ptr, bytes int64) error {
	l := s.l
	if err := l.driver.BindThread(); err != nil {
		return err
	}
	if err := l.driver.MemFree(p); err != nil {
		return err
	}
	l.plainBytes -= bytes
	if l.runtime != nil {
		l.runtime.SetPlainBytes(l.plainBytes)
	}
	return nil
}

// eventFences orders reuse of plain memory by driver events.
type eventFences struct{ driver cuda.Driver }

func (f eventFences) Fence(stream uint64) (any, error) {
	if err := f.driver.BindThread(); err != nil {
		return nil, err
	}
	e, err := f.driver.EventCreate()
	if err != nil {
		return nil, err
	}
	return e, f.driver.EventRecord(e, cuda.Stream(stream))
}

func (f eventFences) Passed(fence any) bool {
	e := fence.(cuda.Event)
	done, err := f.driver.EventQuery(e)
	if err != nil || !done {
		return false
	}
	_ = f.driver.EventDestroy(e) // it has completed; a failure to destroy it leaks a few bytes
	return true
}
