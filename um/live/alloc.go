package live

import (
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
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
	id := l.counts.allocs.Add(1)
	raise(&l.counts.livePeak, l.liveBytes())
	raise(&l.counts.reservedPeak, l.reservedBytes())
	if l.sink != nil {
		l.mu.Lock()
		l.drain() // what was queued before comes before
		l.sink.Alloc(uint64(id), p, bytes, stream)
		l.mu.Unlock()
	}
	return p, nil
}

// raise makes a peak at least n.
func raise(peak *atomic.Int64, n int64) {
	for {
		old := peak.Load()
		if n <= old || peak.CompareAndSwap(old, n) {
			return
		}
	}
}

func (l *Live) malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	if bytes >= explicit.SmallBytes && l.swap != nil && l.active.Load() == nil {
		return l.swap.malloc(bytes, stream)
	}
	if bytes >= um.SmallBytes && l.managed.Load() && l.active.Load() == nil {
		p, err := l.mallocTensor(bytes, stream)
		if err == nil || !l.onlyFragmented(bytes) {
			return p, err
		}
		return l.mallocBeside(bytes, stream, err)
	}
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	defer l.notePlain()
	if x := l.active.Load(); x != nil {
		return x.pool.Malloc(bytes, stream)
	}
	p, err := l.plain.Malloc(bytes, stream)
	switch {
	case err == nil || l.config.PlainOnly || l.swap != nil:
		return p, err
	case l.managed.Load() && bytes >= um.SmallBytes: // another thread opened the arena while this one waited
		return l.mallocTensor(bytes, stream)
	case l.managed.Load():
		return 0, err // a small allocation, and plain memory is spent
	}
	l.log.Info("device memory is full: further allocations can leave the device",
		zap.Int64("plain_bytes", l.plainBytes.Load()), zap.Int64("budget_bytes", l.budget))
	l.overflowed = true
	l.counts.retries.Add(1)
	if err := l.openArena(); err != nil {
		return 0, fmt.Errorf("%w: %d bytes asked for with %d of %d in use, and %v", ErrOutOfMemory, bytes, l.plainBytes.Load(), l.budget, err)
	}
	if bytes < um.SmallBytes {
		return 0, err
	}
	return l.mallocTensor(bytes, stream)
}

// mallocTensor allocates from the arena.
func (l *Live) mallocTensor(bytes int64, stream uint64) (cuda.Ptr, error) {
	l.lock()
	defer l.mu.Unlock()
	l.drain()
	p, err := l.runtime.Malloc(bytes, l.streamID(stream))
	if err != nil && l.reuseMayHelp(bytes) {
		l.counts.retries.Add(1)
		p, err = l.mallocWhenReusable(bytes, stream, err)
	}
	if err == nil {
		l.noteTensors()
	}
	return p, err
}

// onlyFragmented says whether an allocation that the arena refused is within the
// budgets: then it is address space that is missing, in one piece.
func (l *Live) onlyFragmented(bytes int64) bool {
	return l.liveBytes()+bytes <= l.budget+l.hostBudget() && l.tensorLive.Load()+bytes <= l.arenaBytes
}

// mallocBeside serves a tensor from plain device memory, where it stays, because
// the arena has no range of that size in one piece. Others leave to make room.
func (l *Live) mallocBeside(bytes int64, stream uint64, refused error) (cuda.Ptr, error) {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	defer l.notePlain()
	l.makeRoom(bytes)
	p, err := l.plain.Malloc(bytes, stream)
	if err != nil {
		l.addPlain(0)
		return 0, refused
	}
	l.counts.beside.Add(1)
	return p, nil
}

// makeRoom lets tensors leave until plain memory can grow by so much within the
// budget, or until waiting longer makes no sense.
func (l *Live) makeRoom(bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runtime.SetPlainBytes(l.plainBytes.Load() + bytes)
	for began := time.Now(); l.runtime.RoomBytes() < 0 && l.failed == nil && time.Since(began) < roomPatience; {
		l.work[um.Out].Signal()
		l.mu.Unlock()
		time.Sleep(busyWait)
		l.mu.Lock()
	}
}

// reuseMayHelp says whether an allocation failed only because dead memory is
// still in the hands of queued work. The caller holds the lock.
func (l *Live) reuseMayHelp(bytes int64) bool {
	return l.hook != nil && l.failed == nil && l.runtime.Queued() > 0 && l.runtime.LiveBytes()+bytes <= min(l.budget+l.hostBudget(), l.arenaBytes)
}

// mallocWhenReusable tries again while queued work finishes, as a caching
// allocator waits for its events before it says that it is out of memory. The
// caller holds the lock, which is released between attempts.
func (l *Live) mallocWhenReusable(bytes int64, stream uint64, err error) (cuda.Ptr, error) {
	queued, changed := l.runtime.Queued(), time.Now()
	// Also for a moment after the last: dead memory that has just become idle may be in a worker's hands.
	for !l.closing && l.failed == nil && (queued > 0 && time.Since(changed) < reusePatience || time.Since(changed) < idleWait) {
		l.mu.Unlock()
		time.Sleep(busyWait)
		l.mu.Lock()
		l.drain()
		l.progress()
		var p cuda.Ptr
		if p, err = l.runtime.Malloc(bytes, l.streamID(stream)); err == nil {
			return p, nil
		}
		if n := l.runtime.Queued(); n != queued {
			queued, changed = n, time.Now()
		}
	}
	return 0, err
}

// lock takes mu for a thread of the job. It is held for microseconds at a time, so
// waiting actively is much shorter than being put to sleep and woken.
func (l *Live) lock() {
	if l.mu.TryLock() {
		return
	}
	const spins, pause = 1000, 64
	began := time.Now()
	defer func() { l.counts.lockWait.Add(int64(time.Since(began))) }()
	for range spins {
		for i := range pause { // without touching the lock, which would slow its holder down
			_ = i
		}
		if l.mu.TryLock() {
			return
		}
	}
	l.mu.Lock()
}

// Free takes an allocation back; queued work may still use it.
func (l *Live) Free(p cuda.Ptr) error {
	if l.sink != nil {
		l.mu.Lock()
		l.drain()
		l.sink.Free(p)
		l.mu.Unlock()
	}
	if l.swap != nil && l.swap.runtime.Owns(p) {
		return l.swap.free(p)
	}
	if l.managed.Load() && l.runtime.Owns(p) {
		l.lock()
		defer l.mu.Unlock()
		l.drain()
		l.runtime.Reserved(l.hookHead())
		err := l.runtime.Free(p)
		l.noteTensors()
		l.freed(err)
		return err
	}
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	defer l.notePlain()
	err := l.plainPool(p).Free(p)
	l.freed(err)
	if l.overflowed && l.plain.HasEmpty() {
		l.plain.EmptyCache()
	}
	return err
}

// freed counts a free that was one.
func (l *Live) freed(err error) {
	if err == nil {
		l.counts.frees.Add(1)
	}
}

// noteTensors keeps the tensors' totals where they can be read without the lock.
func (l *Live) noteTensors() {
	l.tensorLive.Store(l.runtime.LiveBytes())
	l.tensorReserved.Store(l.runtime.ReservedBytes())
}

// notePlain does so for plain memory.
func (l *Live) notePlain() {
	n := l.plain.Stats().LiveBytes
	for _, x := range l.privates {
		n += x.pool.Stats().LiveBytes
	}
	l.plainLive.Store(n)
}

func (l *Live) hookHead() uint64 {
	if l.hook == nil {
		return 0
	}
	return l.hook.Head()
}

// RecordStream says that work on another stream uses an allocation.
func (l *Live) RecordStream(p cuda.Ptr, stream uint64) error {
	if l.swap != nil && l.swap.runtime.Owns(p) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.swap.runtime.RecordStream(p, l.streamID(stream))
	}
	if l.managed.Load() && l.runtime.Owns(p) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.runtime.RecordStream(p, l.streamID(stream))
	}
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
	l.plainPool(p).RecordStream(p, stream)
	return nil
}

// EmptyCache gives unused plain segments back to the driver.
func (l *Live) EmptyCache() {
	l.plainMu.Lock()
	defer l.plainMu.Unlock()
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
	switch {
	case l.swap != nil:
		l.swap.runtime.SetBudget(l.budget)
	case l.runtime != nil:
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

// plainSource provides plain device memory within the budget. The caller holds plainMu.
type plainSource struct{ l *Live }

func (s plainSource) Acquire(bytes int64) (cuda.Ptr, error) {
	l := s.l
	if l.swap != nil {
		return l.swap.acquirePlain(bytes)
	}
	if used := l.plainBytes.Load(); used+bytes > l.budget {
		return 0, fmt.Errorf("%w: %d bytes of plain device memory asked for with %d of the budget of %d in use", ErrOutOfMemory, bytes, used, l.budget)
	}
	if err := l.driver.BindThread(); err != nil {
		return 0, err
	}
	p, err := l.driver.MemAlloc(bytes)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrOutOfMemory, err)
	}
	l.addPlain(bytes)
	return p, nil
}

func (s plainSource) Release(p cuda.Ptr, bytes int64) error {
	l := s.l
	if l.swap != nil {
		return l.swap.releasePlain(p, bytes)
	}
	if err := l.driver.BindThread(); err != nil {
		return err
	}
	if err := l.driver.MemFree(p); err != nil {
		return err
	}
	l.addPlain(-bytes)
	return nil
}

// addPlain accounts for plain device memory.
func (l *Live) addPlain(bytes int64) {
	n := l.plainBytes.Add(bytes)
	if l.swap != nil {
		l.mu.Lock()
		l.swap.runtime.SetPlainBytes(n)
		l.mu.Unlock()
		return
	}
	if l.managed.Load() {
		l.mu.Lock()
		l.runtime.SetPlainBytes(n)
		l.mu.Unlock()
	}
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
