package process

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// Config is what an engine is to know, whichever it is.
type Config struct {
	Policy          um.Policy
	BudgetBytes     int64 // device memory as it was asked for; 0: it was not
	HostBudgetBytes int64 // host memory; 0 = this process's share of most of what is available
	LocalProcesses  int   // of the job on this host, which share its memory; 0 is 1
	LookaheadBytes  int64 // most that is fetched ahead of need at a time; 0 = as much as fits
	Timeline        *timeline.Timeline
	Sink            Sink // may be nil
}

// Process is what an engine and what stands above it share of a process.
type Process struct {
	Config Config
	Driver cuda.Driver
	Hook   Hook // nil: no launches are seen
	Log    *zap.Logger
	Engine Engine // chosen at the start, for good
	Plain  Plain

	Mu      sync.Mutex
	Tensors um.Engine // the engine's; nil while there are none
	Budget  int64

	Streams Streams

	Sink   Sink
	Paused bool // the sink is told of allocations only

	ProgressWords cuda.Ptr
	Failed        error
	Closing       bool
	Threads       sync.WaitGroup
	Idle          Idle   // since the last move; the loop looks
	Vain          Idle   // of that, while nothing ran after which one may be possible
	Nagger        Nagger // of the launch that waits
	emptyEvents   emptyEvents

	Counts                     Counts
	PlainBudget                atomic.Int64 // bytes of device memory
	PlainBytes                 atomic.Int64 // device memory in plain pools
	PrivateLive                atomic.Int64 // live bytes in private ones
	PrivateTensors             atomic.Int64 // bytes of tensors that are segments of private ones
	TensorLive, TensorReserved atomic.Int64
}

// Counts are the process's own.
type Counts struct {
	Allocs, Frees, OOMs, Retries atomic.Int64
	LivePeak, ReservedPeak       atomic.Int64
	Beside                       atomic.Int64 // tensors in plain memory for want of address space
	LockWait                     atomic.Int64 // nanoseconds that the job's threads waited for Mu
}

// Plain is the pool of memory that stays on the device, as far as an engine has to do with it.
type Plain interface {
	LiveBytes() int64 // without a lock
	// NoteBesides says how many bytes are live beside the pool's.
	NoteBesides(bytes int64)
	// ServeFront lets the pool's front serve requests, or stops it.
	ServeFront(on bool)
	Close()
}

// What both engines wait for, and how often they look.
const (
	ProgressEvery    = 16 // operations, after which a stream says how far it is
	IdleWait         = 10 * time.Millisecond
	BusyWait         = 50 * time.Microsecond
	CheckPatience    = 100 * time.Millisecond // for a copy to end, before it is asked whether it has failed
	WatchdogPatience = 20 * time.Second       // for a move, while nothing runs after which one may be possible; then the engine is given up
	DefaultStreams   = 2                      // handles up to this are default streams, the calling thread's own or the shared one
)

// New returns a process without an engine and plain memory. The hook may be nil.
func New(c Config, d cuda.Driver, hook Hook, log *zap.Logger) *Process {
	p := &Process{Config: c, Driver: d, Hook: hook, Log: log, Sink: c.Sink}
	p.Streams = NewStreams(hook, func(number int, seq uint64) { p.Tensors.Progress(number, seq) })
	return p
}

// HostBudget is the host memory that tensors may take, as things are now.
func (p *Process) HostBudget() int64 {
	if p.Config.HostBudgetBytes > 0 {
		return p.Config.HostBudgetBytes
	}
	return DefaultHostBudget(AvailableHostBytes(), p.Config.LocalProcesses)
}

// Moved notes that something went on. The caller holds the lock.
func (p *Process) Moved() {
	p.Idle.End()
	p.Vain.End()
}

// Record stops telling the sink of operations, faults and moves, or goes on.
func (p *Process) Record(on bool) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if p.Sink == nil || p.Closing {
		return
	}
	if p.Hook != nil {
		p.Hook.SetStamps(on)
		p.Drain() // what was until now
		if !on {
			p.Engine.PauseRecording()
		}
	}
	p.Paused = !on
}

// Fail gives the engine up. The caller holds the lock.
func (p *Process) Fail(err error) {
	if p.Failed == nil {
		p.Engine.Fail(err)
	}
}

// BindThread binds the calling thread to the device; where it cannot be, the engine is given up.
func (p *Process) BindThread() bool {
	err := p.Driver.BindThread()
	if err != nil {
		p.Mu.Lock()
		p.Fail(err)
		p.Mu.Unlock()
	}
	return err == nil
}

// GiveUp ends the engine for an error of its own: its accounts may be wrong. A thread that has panicked may have left
// the lock taken: then launches are refused all the same.
func (p *Process) GiveUp(err error) {
	p.Engine.Refuse()
	for until := time.Now().Add(time.Second); !p.Mu.TryLock(); time.Sleep(BusyWait) {
		if time.Now().After(until) {
			return
		}
	}
	defer p.Mu.Unlock()
	p.Fail(err)
}

// Close stops the threads and opens every gate. Allocations stay valid; under the
// explicit engine what is on the device can still be used, and operations that
// name anything else are refused.
func (p *Process) Close() error {
	p.Mu.Lock()
	if p.Closing {
		p.Mu.Unlock()
		return nil
	}
	p.Closing = true
	p.Drain()
	p.Engine.End()
	p.Mu.Unlock()
	p.Threads.Wait()
	p.Plain.Close()
	p.Engine.Ended()
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if p.Failed != nil {
		return p.Failed
	}
	if p.Tensors != nil {
		return p.Tensors.Check()
	}
	return nil
}

// Autopsy notes, before the last Stats, what has ended the context, which the job may have been told of first.
func (p *Process) Autopsy() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if p.Failed == nil {
		p.Engine.Autopsy()
	}
}

// Yield lets the engine's threads have the lock for a moment, and takes in what has happened meanwhile.
// The caller holds it, and has waited for so long.
func (p *Process) Yield(waited time.Duration) {
	p.Mu.Unlock()
	time.Sleep(max(BusyWait, PauseAfter(waited)))
	p.Mu.Lock()
	p.Drain()
	p.Progress()
}

// Lock takes Mu for a thread of the job. It is held for microseconds at a time, so
// waiting actively is much shorter than being put to sleep and woken.
func (p *Process) Lock() {
	if p.Mu.TryLock() {
		return
	}
	const spins, pause = 1000, 64
	began := time.Now()
	defer func() { p.Counts.LockWait.Add(int64(time.Since(began))) }()
	for range spins {
		for i := range pause { // without touching the lock, which would slow its holder down
			_ = i
		}
		if p.Mu.TryLock() {
			return
		}
	}
	p.Mu.Lock()
}

func (p *Process) HookHead() uint64 {
	if p.Hook == nil {
		return 0
	}
	return p.Hook.Head()
}

// Synchronize waits for the device, in whichever context work was queued. From a thread of the job.
func (p *Process) Synchronize() error {
	if err := p.Driver.BindThread(); err != nil {
		return err
	}
	if err := p.Driver.Synchronize(); err != nil {
		return err
	}
	return p.SynchronizeOthers()
}

// SynchronizeOthers waits for contexts of the process beside the engine's; there is rarely any.
func (p *Process) SynchronizeOthers() error {
	if p.Hook == nil {
		return nil
	}
	return p.Hook.SynchronizeOthers()
}
