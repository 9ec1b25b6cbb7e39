package live

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/internal/segments"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// plainPool serves memory that stays on the device. It may be used by several
// threads, and takes what it needs within the budget.
type plainPool interface {
	Malloc(bytes int64, stream uint64) (cuda.Ptr, error)
	Free(p cuda.Ptr) error
	RecordStream(p cuda.Ptr, stream uint64)
	EmptyCache() (released int64)
	// Trim gives about so many bytes of free memory back, without waiting for work.
	Trim(bytes int64) (released int64)
	// GiveBackEmpty gives back what is wholly free, for a device that is full.
	GiveBackEmpty()
	LiveBytes() int64 // without a lock
	Stats() pool.PoolStats
	ResetPeaks()
	// Containing is the allocation that an address lies in.
	Containing(p cuda.Ptr) (cuda.Range, bool)
	// TryContaining is the same, and says that it is busy where Containing would wait.
	TryContaining(p cuda.Ptr) (r cuda.Range, ok, busy bool)
	// Segments are all the memory that it has, in no order.
	Segments() []segments.Segment
	// ServeFront lets the pool's front serve requests, or stops it.
	ServeFront(on bool)
	// NoteBesides says how many bytes are live beside the pool's.
	NoteBesides(bytes int64)
	Close()
}

// serveFront lets the front of the pool serve the job where every allocation is the
// pool's, and that of the tensors where large ones are tensors; if the sink, where
// there is one, need not be told here.
func (l *Live) serveFront() {
	may := (l.Sink == nil || l.config.AllocsToldElsewhere) && l.active.Load() == nil
	l.plain.ServeFront(l.Engine.ServeFront(may))
}

// openPlain makes the pool: planned and stitched where the driver can map memory, else a
// caching allocator.
func (l *Live) openPlain() error {
	if !l.Driver.Capabilities().VirtualMemory {
		l.havePlain(&cachingPool{caching: pool.NewCaching(plainSource{l}, eventFences{l.Driver, l.Hook})})
		return nil
	}
	c := l.config.Pool
	// What is planned lies twice in address space, and so may be what was given back in between.
	c.Stitch.ReserveBytes = 4 * l.Driver.Info().TotalBytes
	p, err := pool.New(c, l.Engine.PlainDriver(l.Driver), plainBudget{l}, eventFences{l.Driver, l.Hook})
	if err != nil {
		return err
	}
	l.havePlain(&stitchedPool{Pool: p})
	return nil
}

func (l *Live) havePlain(p plainPool) { l.plain, l.Process.Plain = p, p }

// stitchedPool is the pool where the driver can map memory.
type stitchedPool struct {
	*pool.Pool
	mu      sync.Mutex
	trimmed int64 // bytes that were free when some were last given back
}

// GiveBackEmpty looks only when much more is free than when it last looked.
func (p *stitchedPool) GiveBackEmpty() {
	const worthLooking = 16 << 20
	p.mu.Lock()
	defer p.mu.Unlock()
	free := p.ReservedBytes() - p.LiveBytes()
	if p.trimmed = min(p.trimmed, free); free-p.trimmed < worthLooking {
		return
	}
	p.trimmed = free - p.Trim(free)
}

// cachingPool is the pool where it cannot.
type cachingPool struct {
	mu      sync.Mutex
	caching *pool.Caching
	live    atomic.Int64 // the engine's threads, which must not take mu, ask for it
}

func (c *cachingPool) Malloc(bytes int64, stream uint64) (cuda.Ptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.note()
	return c.caching.Malloc(bytes, stream)
}

func (c *cachingPool) Free(p cuda.Ptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.note()
	return c.caching.Free(p)
}

func (c *cachingPool) note() { c.live.Store(c.caching.Stats().LiveBytes) }

func (c *cachingPool) RecordStream(p cuda.Ptr, stream uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caching.RecordStream(p, stream)
}

func (c *cachingPool) EmptyCache() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.caching.EmptyCache()
}

func (c *cachingPool) Trim(int64) (released int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.caching.HasEmpty() {
		return 0
	}
	return c.caching.EmptyCache()
}

func (c *cachingPool) GiveBackEmpty() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.caching.HasEmpty() {
		c.caching.EmptyCache()
	}
}

// Containing is the block behind a live allocation that an address lies in.
func (c *cachingPool) Containing(p cuda.Ptr) (cuda.Range, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.caching.Containing(p)
}

// TryContaining is Containing where nobody has the lock.
func (c *cachingPool) TryContaining(p cuda.Ptr) (r cuda.Range, ok, busy bool) {
	if !c.mu.TryLock() {
		return r, false, true
	}
	defer c.mu.Unlock()
	r, ok = c.caching.Containing(p)
	return r, ok, false
}

func (c *cachingPool) Segments() []segments.Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.caching.Segments()
}

func (c *cachingPool) LiveBytes() int64 { return c.live.Load() }

func (c *cachingPool) Stats() pool.PoolStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return pool.PoolStats{Stats: c.caching.Stats(), PlanState: "off"}
}

func (c *cachingPool) ResetPeaks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caching.ResetPeaks()
}

func (c *cachingPool) ServeFront(bool) {}

func (c *cachingPool) NoteBesides(int64) {}

func (c *cachingPool) Close() {}

// plainBudget is the device memory that plain pools may take.
type plainBudget struct{ l *Live }

// Take counts memory against the budget before the driver is asked for it, and has
// tensors leave for it.
func (b plainBudget) Take(bytes int64) error {
	return b.l.Engine.TakePlain(bytes)
}

func (b plainBudget) Give(bytes int64) { b.l.AddPlain(-bytes) }

// plainSource provides segments of plain device memory within the budget.
type plainSource struct{ l *Live }

func (s plainSource) Acquire(bytes int64) (cuda.Ptr, error) { return s.l.Engine.AcquirePlain(bytes) }

func (s plainSource) Release(p cuda.Ptr, bytes int64) error { return s.l.Engine.ReleasePlain(p, bytes) }

// eventFences orders reuse of plain memory by driver events.
type eventFences struct {
	driver cuda.Driver
	hook   process.Hook // may be nil
}

// fence is an event behind what was queued on a stream. One that was captured says nothing of the stream, and cannot be
// asked: it is recorded anew once the stream captures no more, behind what was queued until then.
type fence struct {
	event    cuda.Event
	stream   cuda.Stream
	recorded bool
}

// record records a fence unless its stream captures. It is an event of the engine's context; a default stream is each
// context's own: those of others are waited for.
func (f eventFences) record(x *fence) error {
	if x.recorded || f.driver.StreamCapturing(x.stream) {
		return nil
	}
	if x.stream <= process.DefaultStreams && f.hook != nil {
		if err := f.hook.SynchronizeOthers(); err != nil {
			return err
		}
	}
	if err := f.driver.EventRecord(x.event, x.stream); err != nil {
		return err
	}
	x.recorded = true
	return nil
}

func (f eventFences) Fence(stream uint64) (any, error) {
	if err := f.driver.BindThread(); err != nil {
		return nil, err
	}
	if stream == hook.StreamPerThread && f.driver.StreamCapturing(cuda.Stream(stream)) {
		return nil, errors.New("a thread's own stream captures, and no other thread can ask it later")
	}
	e, err := f.driver.EventCreate()
	if err != nil {
		return nil, err
	}
	x := &fence{event: e, stream: cuda.Stream(stream)}
	if err := f.record(x); err != nil {
		_ = f.driver.EventDestroy(e) // it was never of use
		return nil, err
	}
	return x, nil
}

func (f eventFences) Passed(of any) bool {
	x := of.(*fence)
	if f.driver.BindThread() != nil {
		return false
	}
	if !x.recorded {
		_ = f.record(x) // it has not passed in either case
		return false
	}
	done, err := f.driver.EventQuery(x.event)
	if err != nil {
		x.recorded = x.stream == hook.StreamPerThread // its stream began to capture just before: only its own thread could record it again
		return false
	}
	if done {
		_ = f.driver.EventDestroy(x.event) // it has completed; a failure to destroy it leaks a few bytes
	}
	return done
}

func (f eventFences) Wait(of any) error {
	x := of.(*fence)
	if err := f.driver.BindThread(); err != nil {
		return err
	}
	if err := f.record(x); err != nil {
		return err
	}
	if !x.recorded {
		return errors.New("the stream captures a graph")
	}
	if err := f.driver.EventSynchronize(x.event); err != nil {
		return err
	}
	_ = f.driver.EventDestroy(x.event) // as in Passed
	return nil
}
