package live

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/uvm"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/managed"
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
	deaths      deaths

	// plainMu guards private pools and the opening of the arena. Like the lock of
	// the pool it is held across driver calls that may wait for another thread of the
	// job, so the engine's threads take neither.
	plainMu    sync.Mutex
	privates   map[PoolID]*private
	active     atomic.Pointer[private] // where allocations go; nil for the usual places
	anyPrivate atomic.Bool             // there are private pools

	managed    atomic.Bool // runtime is set and will stay
	mu         sync.Mutex
	work       [2]*sync.Cond // by direction: its workers may have something to do
	runtime    *managed.Runtime
	tensors    tensors    // runtime, or that of swap; nil while there are none
	swap       *swap      // the explicit engine, set at the start and for good; nil in the managed one
	space      *uvm.Space // nil: the driver cannot be asked directly
	budget     int64
	arenaBytes int64 // of address space for tensors; 0 without an arena
	plainDue   int64 // of plainBytes, what is still to be taken when there is room

	streamIDs   map[uint64]int // stream handle to the runtime's number for it
	handles     []uint64       // the runtime's number to the handle
	hookStreams []hookStream   // by the hook's index
	ownStreams  []int          // the runtime's number to the hook's index, -1 if unknown

	freeStreamIDs []int // numbers whose streams are gone

	sink   Sink
	paused bool // the sink is told of allocations only

	gateWords, progressWords cuda.Ptr
	gatesKept                uint64 // up to where the hook was read when every gate was last seen to
	failed                   error
	closing                  bool
	threads                  sync.WaitGroup
	idle                     idle             // since the last move; the loop looks
	vain                     idle             // of that, while nothing ran after which one may be possible
	nagger                   nagger           // of the launch that waits
	askedAt                  uint64           // the runtime's epoch when nothing had moved for long; 0: not so
	lookedAt                 [2]uint64        // by direction: its epoch when a worker last found nothing to do
	moveTime                 [2]time.Duration // by direction
	preparedBytes            int64            // of host pages made ahead
	broadcastAt              uint64           // the runtime's epoch when the workers were last woken
	broadcastTime            time.Time        // when that was
	faults                   faultFeed
	emptyEvents              emptyEvents

	counts                     counts
	plainBytes                 atomic.Int64 // device memory in plain pools
	plainSpanMu                sync.Mutex   // guards plainSpan; the last of all locks
	plainSpan                  [2]cuda.Ptr  // plain memory's addresses lie from the first to before the second, under the explicit engine
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
	caps, why := d.Capabilities(), ""
	if c.Engine, why, err = c.choose(caps, hookOrNil); err != nil {
		return nil, err
	}
	if !c.PlainOnly && c.Engine == Managed {
		if err := managedError(caps); err != nil {
			return nil, err
		}
	}
	l := &Live{
		config: c, why: why, driver: d, hook: hookOrNil, log: log, sink: c.Sink,
		budget: c.BudgetBytes, privates: map[PoolID]*private{},
		streamIDs: map[uint64]int{0: 0}, handles: []uint64{0}, ownStreams: []int{0},
	}
	if l.budget == 0 {
		l.budget = max(minBudgetBytes, free-reserveBytes)
	}
	for d := range l.work {
		l.work[d] = sync.NewCond(&l.mu)
	}
	l.plainBudget.Store(l.budget)
	if l.hook != nil && l.sink != nil {
		l.hook.SetStamps(true)
		l.hook.SetTiming(true)
	}
	if err := l.openPlain(); err != nil {
		return nil, err
	}
	if c.Engine == Explicit {
		if err := l.openSwap(); err != nil {
			return nil, err
		}
		l.serveFront()
		return l, nil
	}
	if c.BudgetBytes > 0 && !c.PlainOnly {
		if err := l.openArena(); err != nil {
			return nil, err
		}
	}
	l.serveFront()
	return l, nil
}

// openArena starts the managed engine: from now on allocations can leave the device.
func (l *Live) openArena() error {
	l.plain.ServeFront(false) // its lock comes before mu
	p, bytes, err := l.reserveArena()
	if err != nil {
		return err
	}
	if p%managed.BlockBytes != 0 {
		return fmt.Errorf("the driver returned managed memory at %#x, not aligned to %d bytes", uint64(p), managed.BlockBytes)
	}
	if l.space, err = uvm.Open(cuda.Range{Base: p, Bytes: bytes}, l.driver.Info()); err != nil {
		l.log.Warn("the unified-memory driver cannot be asked directly: launches are not held back, and fault for what comes late", zap.Error(err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runtime = managed.New(managed.Config{
		Policy: l.config.Policy, BudgetBytes: l.budget, HostBudgetBytes: l.hostBudget(), ArenaBytes: bytes,
		LookaheadBytes: l.config.LookaheadBytes,
	}, process{l}, p)
	l.tensors = l.runtime
	l.tellPlain()
	l.arenaBytes = bytes
	l.managed.Store(true)
	l.openFaults()
	if l.hook == nil {
		return nil
	}
	if err := l.startHook(); err != nil {
		return err
	}
	l.threads.Add(1)
	go l.loop()
	// Several take out: the driver maps each page for the CPU, and the maps of
	// different blocks can be made beside each other.
	for _, d := range []um.Direction{um.In, um.Out, um.Out, um.Out} {
		l.threads.Add(1)
		go l.worker(d)
	}
	if l.space != nil && l.config.Policy.Fetch != um.FetchOnFault { // demand paging is left as it is
		l.threads.Add(1)
		go l.prepare()
	}
	return nil
}

// reserveArena takes address space for the arena: with slack if it can be had.
func (l *Live) reserveArena() (p cuda.Ptr, bytes int64, err error) {
	for slack := int64(addressSlack); slack > 0; slack-- {
		bytes = slack * (l.budget + l.hostBudget())
		if limit := l.config.ManagedLimitBytes; limit > 0 {
			bytes = min(bytes, limit)
		}
		bytes = bytes / managed.BlockBytes * managed.BlockBytes
		if bytes < managed.BlockBytes {
			return 0, 0, fmt.Errorf("a managed limit of %d bytes leaves no room for an arena: raise PENSTOCK_MANAGED_LIMIT", l.config.ManagedLimitBytes)
		}
		if p, err = l.driver.MemAllocManaged(bytes); err == nil {
			return p, bytes, nil
		}
	}
	return 0, 0, fmt.Errorf("managed arena of %d bytes: %w", bytes, err)
}

func (l *Live) hostBudget() int64 {
	if l.config.HostBudgetBytes > 0 {
		return l.config.HostBudgetBytes
	}
	return l.config.defaultHostBudget()
}

// startHook gives the hook its words and switches it on. Launches are held back
// only if the engine can then still act whatever the job's threads do in libcuda;
// without that the hook still reports how far each stream has got.
func (l *Live) startHook() error {
	if !l.driver.Capabilities().StreamMemOps {
		// Nothing would say how far a stream has got, and memory must not be taken for
		// idle on a guess: the hook stays off, and kernels fault.
		l.log.Warn("this driver has no stream memory operations: nothing can be foreseen, and kernels fault for what is away")
		return nil
	}
	words, err := l.driver.HostAlloc(2 * hook.WordsBytes)
	if err != nil {
		return fmt.Errorf("pinned memory for the gates: %w", err)
	}
	l.gateWords, l.progressWords = words, words+hook.WordsBytes
	l.hook.Words(l.gateWords, l.progressWords)
	l.hook.SetProgressEvery(progressEvery)
	l.hook.SetMode(hook.Gated)
	return nil
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
			l.askSeldom()
		}
	}
	l.paused = !on
}

// process is what the runtime sees of this process.
type process struct{ l *Live }

// holdsBack says whether launches wait for absent memory.
func (l *Live) holdsBack() bool { return l.space != nil && l.failed == nil }

func (p process) Publish(slot uint32, r cuda.Range, resident bool) {
	if p.l.hook != nil {
		p.l.hook.Publish(slot, r, resident || !p.l.holdsBack())
	}
}

func (p process) Withdraw(slot uint32, r cuda.Range) {
	if p.l.hook != nil {
		p.l.hook.Withdraw(slot, r)
	}
}

func (p process) SetResident(slot uint32, resident bool) {
	if p.l.hook != nil {
		p.l.hook.SetResident(slot, resident || !p.l.holdsBack())
	}
}

func (p process) OpenGate(stream int, seq uint64) {
	if p.l.failed != nil {
		return // it is open, far ahead
	}
	if i := p.l.ownStreams[stream]; i >= 0 && p.l.gateWords != 0 {
		p.l.hook.OpenGate(i, seq)
	}
}

func (p process) Now() time.Duration { return p.l.driver.Now() }

// fail gives the engine up: every gate opens and stays open. The hook stays on, for
// the streams' progress says which dead memory may be used again. The caller holds
// the lock.
func (l *Live) fail(err error) {
	if l.failed != nil {
		return
	}
	if l.swap != nil {
		l.swap.fail(err)
		return
	}
	l.failed = err
	l.log.Error("the engine has failed; the job goes on under the driver's own demand paging", zap.Error(err))
	l.drain()
	l.letRun()
	if l.runtime != nil {
		l.runtime.Republish()
	}
	l.wakeAll()
}

// GiveUp ends the engine for an error of its own: its accounts may be wrong. A thread that has panicked may have left
// the lock taken: then launches are refused all the same.
func (l *Live) GiveUp(err error) {
	if l.swap != nil {
		l.swap.hook.Refuse(resultUnknown)
	}
	for until := time.Now().Add(time.Second); !l.mu.TryLock(); time.Sleep(busyWait) {
		if time.Now().After(until) {
			return
		}
	}
	defer l.mu.Unlock()
	l.fail(err)
}

// letRun opens every gate for what is queued and for long after. The caller holds the lock.
func (l *Live) letRun() {
	if l.hook == nil || l.runtime == nil {
		return
	}
	l.runtime.OpenAll()
	const farAhead = 1 << 30 // half the range of the cyclic comparison
	for i := range l.hook.Streams() {
		if l.gateWords != 0 {
			l.hook.OpenGate(i, l.hook.Head()+farAhead)
		}
	}
}

// wakeAll wakes every worker, to see that it is over.
func (l *Live) wakeAll() {
	for _, c := range l.work {
		c.Broadcast()
	}
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
	switch {
	case l.swap != nil:
		// Nobody brings in any more what is away, and it must not be reached for.
		l.swap.hook.Refuse(resultDeinitialized)
	case l.hook != nil:
		l.hook.SetMode(hook.Off)
		l.drain()
	}
	if l.runtime != nil {
		l.runtime.OpenAll()
	}
	l.wakeAll()
	if l.swap != nil {
		l.swap.wakeAll()
	}
	l.mu.Unlock()
	if l.faults.stop != nil {
		close(l.faults.stop)
	}
	l.threads.Wait()
	l.plain.Close()
	l.closeFaults()
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
