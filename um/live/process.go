package live

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// processConfig is what an engine is to know, whichever it is.
type processConfig struct {
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
	config processConfig
	driver cuda.Driver
	hook   Hook // nil: no launches are seen
	log    *zap.Logger
	engine engine // chosen at the start, for good
	plain  plain

	mu      sync.Mutex
	tensors um.Engine // the engine's; nil while there are none
	budget  int64

	streams process.Streams

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
	plainBudget                atomic.Int64 // bytes of device memory
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

// plain is the pool of memory that stays on the device, as far as an engine has to do with it.
type plain interface {
	LiveBytes() int64 // without a lock
	// NoteBesides says how many bytes are live beside the pool's.
	NoteBesides(bytes int64)
	// ServeFront lets the pool's front serve requests, or stops it.
	ServeFront(on bool)
	Close()
}

const (
	progressEvery    = 16
	idleWait         = 10 * time.Millisecond
	busyWait         = 50 * time.Microsecond
	checkPatience    = 100 * time.Millisecond // for a copy to end, before it is asked whether it has failed
	watchdogPatience = 20 * time.Second       // for a move, while nothing runs after which one may be possible; then the engine is given up
	defaultStreams   = 2                      // handles up to this are default streams, the calling thread's own or the shared one
)

// newProcess returns a process without an engine and plain memory. The hook may be nil.
func newProcess(c processConfig, d cuda.Driver, hook Hook, log *zap.Logger) *Process {
	p := &Process{config: c, driver: d, hook: hook, log: log, sink: c.Sink}
	p.streams = process.NewStreams(hook, func(number int, seq uint64) { p.tensors.Progress(number, seq) })
	return p
}

func (p *Process) hostBudget() int64 {
	if p.config.HostBudgetBytes > 0 {
		return p.config.HostBudgetBytes
	}
	return defaultHostBudget(availableHostBytes(), p.config.LocalProcesses)
}

// moved notes that something went on. The caller holds the lock.
func (p *Process) moved() {
	p.idle.End()
	p.vain.End()
}

// Record stops telling the sink of operations, faults and moves, or goes on.
func (p *Process) Record(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sink == nil || p.closing {
		return
	}
	if p.hook != nil {
		p.hook.SetStamps(on)
		p.drain() // what was until now
		if !on {
			p.engine.pauseRecording()
		}
	}
	p.paused = !on
}

// fail gives the engine up. The caller holds the lock.
func (p *Process) fail(err error) {
	if p.failed == nil {
		p.engine.fail(err)
	}
}

// bindThread binds the calling thread to the device; where it cannot be, the engine is given up.
func (p *Process) bindThread() bool {
	err := p.driver.BindThread()
	if err != nil {
		p.mu.Lock()
		p.fail(err)
		p.mu.Unlock()
	}
	return err == nil
}

// GiveUp ends the engine for an error of its own: its accounts may be wrong. A thread that has panicked may have left
// the lock taken: then launches are refused all the same.
func (p *Process) GiveUp(err error) {
	p.engine.refuse()
	for until := time.Now().Add(time.Second); !p.mu.TryLock(); time.Sleep(busyWait) {
		if time.Now().After(until) {
			return
		}
	}
	defer p.mu.Unlock()
	p.fail(err)
}

// Close stops the threads and opens every gate. Allocations stay valid; under the
// explicit engine what is on the device can still be used, and operations that
// name anything else are refused.
func (p *Process) Close() error {
	p.mu.Lock()
	if p.closing {
		p.mu.Unlock()
		return nil
	}
	p.closing = true
	p.drain()
	p.engine.end()
	p.mu.Unlock()
	p.threads.Wait()
	p.plain.Close()
	p.engine.ended()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed != nil {
		return p.failed
	}
	if p.tensors != nil {
		return p.tensors.Check()
	}
	return nil
}

// Autopsy notes, before the last Stats, what has ended the context, which the job may have been told of first.
func (p *Process) Autopsy() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.engine.autopsy()
	}
}

// yield lets the engine's threads have the lock for a moment, and takes in what has happened meanwhile.
// The caller holds it.
func (p *Process) yield() {
	p.mu.Unlock()
	time.Sleep(busyWait)
	p.mu.Lock()
	p.drain()
	p.progress()
}

// lock takes mu for a thread of the job. It is held for microseconds at a time, so
// waiting actively is much shorter than being put to sleep and woken.
func (p *Process) lock() {
	if p.mu.TryLock() {
		return
	}
	const spins, pause = 1000, 64
	began := time.Now()
	defer func() { p.counts.lockWait.Add(int64(time.Since(began))) }()
	for range spins {
		for i := range pause { // without touching the lock, which would slow its holder down
			_ = i
		}
		if p.mu.TryLock() {
			return
		}
	}
	p.mu.Lock()
}

func (p *Process) hookHead() uint64 {
	if p.hook == nil {
		return 0
	}
	return p.hook.Head()
}

// synchronize waits for the device, in whichever context work was queued. From a thread of the job.
func (p *Process) synchronize() error {
	if err := p.driver.BindThread(); err != nil {
		return err
	}
	if err := p.driver.Synchronize(); err != nil {
		return err
	}
	return p.synchronizeOthers()
}

// synchronizeOthers waits for contexts of the process beside the engine's; there is rarely any.
func (p *Process) synchronizeOthers() error {
	if p.hook == nil {
		return nil
	}
	return p.hook.SynchronizeOthers()
}
