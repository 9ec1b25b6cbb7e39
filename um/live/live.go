package live

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// Hook is the launch hook as the engine sees it; *hook.Shared is the real one.
type Hook interface {
	Publish(slot uint32, r cuda.Range, resident bool)
	Withdraw(slot uint32, r cuda.Range)
	SetResident(slot uint32, resident bool)
	OpenGate(stream int, seq uint64)
	Progress(stream int) uint64
	Head() uint64
	Read() uint64
	Drain(visit func(*hook.Record)) int
	Streams() []uint64
	FunctionName(id uint32) string
	Wait(timeout time.Duration)
	SetMode(m hook.Mode)
	SetProgressEvery(n uint32)
	SetStamps(on bool)
	SetTiming(on bool)
	Timings(visit func(seq uint64, took, empty time.Duration))
	TimingsLost() uint64
	ReportAll()
	Words(gate, progress cuda.Ptr)
	Counters() hook.Counters
	Serve()
	SynchronizeOthers() error
}

// Live is the engine in a process. See the package comment.
type Live struct {
	config Config // with the engine that was chosen
	why    string // it was chosen; "" when there was no choice
	driver cuda.Driver
	hook   Hook // nil: no launches are seen
	log    *zap.Logger

	plain       plainPool    // has a lock of its own
	plainBudget atomic.Int64 // bytes of device memory
	overflowed  atomic.Bool  // the card was full once
	besides     besides

	// plainMu guards private pools and the opening of the arena. Like the lock of
	// the pool it is held across driver calls that may wait for another thread of the
	// job, so the engine's threads take neither.
	plainMu    sync.Mutex
	privates   map[PoolID]*private
	active     atomic.Pointer[private] // where allocations go; nil for the usual places
	anyPrivate atomic.Bool             // there are private pools

	engine  engine // chosen at the start, for good
	mu      sync.Mutex
	tensors um.Engine // that engine's; nil while there are none
	budget  int64

	streams process.Streams
	speed   speed

	sink   Sink
	paused bool // the sink is told of allocations only

	progressWords cuda.Ptr
	failed        error
	closing       bool
	threads       sync.WaitGroup
	idle          process.Idle   // since the last move; the loop looks
	vain          process.Idle   // of that, while nothing ran after which one may be possible
	nagger        process.Nagger // of the launch that waits
	emptyEvents   emptyEvents

	counts                     counts
	plainBytes                 atomic.Int64 // device memory in plain pools
	privateLive                atomic.Int64 // live bytes in private ones
	privateTensors             atomic.Int64 // bytes of tensors that are segments of private ones
	tensorLive, tensorReserved atomic.Int64
}

type counts struct {
	allocs, frees, ooms, retries atomic.Int64
	livePeak, reservedPeak       atomic.Int64
	beside                       atomic.Int64 // tensors in plain memory for want of address space
	lockWait                     atomic.Int64 // nanoseconds that the job's threads waited for mu
}

// Sink receives what happens, for recording. It is called under the lock and in
// order, but for allocations in plain memory, which come from any thread at any time.
type Sink interface {
	Alloc(p cuda.Ptr, bytes int64, stream uint64)
	Free(p cuda.Ptr)
	// Record is an operation. What it needs of the record it copies.
	Record(r *hook.Record, stream uint64, name func(function uint32) string, address func(slot uint32) (cuda.Ptr, bool))
	// Move says that the engine has moved what lies at these addresses.
	Move(ranges []cuda.Range, d um.Direction, began, ended time.Duration)
	// Progress says that a stream has finished everything up to a record.
	Progress(stream, seq uint64)
	// Timing says how long a record's operation took on the device.
	Timing(seq uint64, took time.Duration)
	// Faults are what the driver has reported, and what it has lost in all.
	Faults(events []faults.Event, lost faults.Lost)
	// FaultSource says once why the driver's events cannot be seen; "" when they can.
	FaultSource(why string)
	// DriverSums are the driver's own sums, at the end.
	DriverSums(s faults.Sums)
}

// ErrOutOfMemory is what Malloc fails with when both budgets are spent.
var ErrOutOfMemory = um.ErrOutOfMemory

// New starts the engine. hookOrNil is nil when no launch hook is loaded: then
// nothing can be foreseen, and managed memory moves by faults alone.
func New(c Config, d cuda.Driver, hookOrNil Hook, log *zap.Logger) (*Live, error) {
	if err := d.BindThread(); err != nil {
		return nil, err
	}
	if hookOrNil != nil {
		hookOrNil.Serve()
	}
	free, total, err := d.MemInfo()
	if err != nil {
		return nil, err
	}
	if err := c.validate(total); err != nil {
		return nil, err
	}
	chosen, why, err := c.choose(d.Capabilities(), hookOrNil, availableHostBytes())
	if err != nil {
		return nil, err
	}
	l := &Live{
		config: c, why: why, driver: d, hook: hookOrNil, log: log, sink: c.Sink,
		budget: c.BudgetBytes, privates: map[PoolID]*private{},
	}
	l.streams = process.NewStreams(l.hook, func(number int, seq uint64) { l.tensors.Progress(number, seq) })
	if l.budget == 0 {
		l.budget = max(minBudgetBytes, free-reserveBytes)
	}
	l.plainBudget.Store(l.budget)
	l.engine = engines[chosen](l)
	if l.hook != nil && l.sink != nil {
		l.hook.SetStamps(true)
		l.hook.SetTiming(true)
	}
	if err := l.openPlain(); err != nil {
		return nil, err
	}
	if err := l.engine.start(); err != nil {
		return nil, err
	}
	l.serveFront()
	if !c.PlainOnly {
		go l.followSpeed()
	}
	return l, nil
}

func (l *Live) hostBudget() int64 {
	if l.config.HostBudgetBytes > 0 {
		return l.config.HostBudgetBytes
	}
	return l.config.defaultHostBudget(availableHostBytes())
}

// moved notes that something went on. The caller holds the lock.
func (l *Live) moved() {
	l.idle.End()
	l.vain.End()
}

// Record stops telling the sink of operations, faults and moves, or goes on.
func (l *Live) Record(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sink == nil || l.closing {
		return
	}
	if l.hook != nil {
		l.hook.SetStamps(on)
		l.drain() // what was until now
		if !on {
			l.engine.pauseRecording()
		}
	}
	l.paused = !on
}

// fail gives the engine up. The caller holds the lock.
func (l *Live) fail(err error) {
	if l.failed == nil {
		l.engine.fail(err)
	}
}

// bindThread binds the calling thread to the device; where it cannot be, the engine is given up.
func (l *Live) bindThread() bool {
	err := l.driver.BindThread()
	if err != nil {
		l.mu.Lock()
		l.fail(err)
		l.mu.Unlock()
	}
	return err == nil
}

// GiveUp ends the engine for an error of its own: its accounts may be wrong. A thread that has panicked may have left
// the lock taken: then launches are refused all the same.
func (l *Live) GiveUp(err error) {
	l.engine.refuse()
	for until := time.Now().Add(time.Second); !l.mu.TryLock(); time.Sleep(busyWait) {
		if time.Now().After(until) {
			return
		}
	}
	defer l.mu.Unlock()
	l.fail(err)
}

// Close stops the threads and opens every gate. Allocations stay valid; under the
// explicit engine what is on the device can still be used, and operations that
// name anything else are refused.
func (l *Live) Close() error {
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return nil
	}
	l.closing = true
	l.drain()
	l.engine.end()
	l.mu.Unlock()
	l.threads.Wait()
	l.plain.Close()
	l.engine.ended()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return l.failed
	}
	if l.tensors != nil {
		return l.tensors.Check()
	}
	return nil
}

// Autopsy notes, before the last Stats, what has ended the context, which the job may have been told of first.
func (l *Live) Autopsy() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.engine.autopsy()
	}
}
