package live

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/uvm"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/managed"
)

// pagedConfig is what the managed engine alone is to know.
type pagedConfig struct {
	LimitBytes int64 // most managed address space; 0 = no limit
	PlainOnly  bool  // it is never opened
}

const (
	addressSlack = 2                      // address space over memory, so that fragmentation of addresses does not matter
	headPatience = 100 * time.Millisecond // for a launch that no move helps; then it may fault
	roomPatience = time.Second            // for tensors to leave before plain memory grows
)

// paged is the managed engine in a process. Without a budget it is opened when the card is full for the first time;
// until then all memory is plain. Live's lock guards it.
type paged struct {
	config  pagedConfig
	proc    *Process
	opened  atomic.Bool // runtime is set and will stay
	runtime *managed.Runtime
	work    [2]*sync.Cond // by direction: its workers may have something to do
	space   *uvm.Space    // nil: the driver cannot be asked directly
	deaths  deaths

	arenaBytes int64 // of address space for tensors
	plainDue   int64 // of plain memory, what is still to be taken when there is room

	gateWords     cuda.Ptr
	gatesKept     uint64           // up to where the hook was read when every gate was last seen to
	askedAt       uint64           // the runtime's epoch when nothing had moved for long; 0: not so
	lookedAt      [2]uint64        // by direction: its epoch when a worker last found nothing to do
	moveTime      [2]time.Duration // by direction
	preparedBytes int64            // of host pages made ahead
	broadcastAt   uint64           // the runtime's epoch when the workers were last woken
	broadcastTime time.Time        // when that was
	faults        faultFeed
}

// newPaged returns the engine, which is to be started.
func newPaged(proc *Process, c pagedConfig) *paged {
	e := &paged{proc: proc, config: c}
	for d := range e.work {
		e.work[d] = sync.NewCond(&proc.mu)
	}
	return e
}

// pagedName is the engine's.
const pagedName = "managed"

func (e *paged) String() string { return pagedName }

func (e *paged) start() error {
	if e.proc.config.BudgetBytes == 0 || e.config.PlainOnly {
		return nil
	}
	return e.open()
}

func (e *paged) serving() bool { return e.opened.Load() }

func (e *paged) startsWhenFull() bool { return !e.config.PlainOnly }

func (e *paged) owns(p cuda.Ptr) bool { return e.opened.Load() && e.runtime.Owns(p) }

// open starts the managed engine: from now on allocations can leave the device.
func (e *paged) open() error {
	proc := e.proc
	proc.plain.ServeFront(false) // its lock comes before mu
	p, bytes, err := e.reserveArena()
	if err != nil {
		return err
	}
	if p%managed.BlockBytes != 0 {
		return fmt.Errorf("the driver returned managed memory at %#x, not aligned to %d bytes", uint64(p), managed.BlockBytes)
	}
	if e.space, err = uvm.Open(cuda.Range{Base: p, Bytes: bytes}, proc.driver.Info()); err != nil {
		proc.log.Warn("the unified-memory driver cannot be asked directly: launches are not held back, and fault for what comes late", zap.Error(err))
	}
	proc.mu.Lock()
	defer proc.mu.Unlock()
	e.runtime = managed.New(managed.Config{
		Policy: proc.config.Policy, BudgetBytes: proc.budget, HostBudgetBytes: proc.hostBudget(), ArenaBytes: bytes,
		LookaheadBytes: proc.config.LookaheadBytes,
	}, pagedProcess{e}, p)
	proc.tensors = e.runtime
	e.tellPlain()
	e.arenaBytes = bytes
	e.opened.Store(true)
	e.openFaults()
	if proc.hook == nil {
		return nil
	}
	if err := e.startHook(); err != nil {
		return err
	}
	proc.threads.Add(1)
	go e.loop()
	// Several take out: the driver maps each page for the CPU, and the maps of
	// different blocks can be made beside each other.
	for _, d := range []um.Direction{um.In, um.Out, um.Out, um.Out} {
		proc.threads.Add(1)
		go e.worker(d)
	}
	if e.space != nil && proc.config.Policy.Fetch != um.FetchOnFault { // demand paging is left as it is
		proc.threads.Add(1)
		go e.prepare()
	}
	return nil
}

// reserveArena takes address space for the arena: with slack if it can be had.
func (e *paged) reserveArena() (p cuda.Ptr, bytes int64, err error) {
	proc := e.proc
	for slack := int64(addressSlack); slack > 0; slack-- {
		bytes = slack * (proc.budget + proc.hostBudget())
		if limit := e.config.LimitBytes; limit > 0 {
			bytes = min(bytes, limit)
		}
		bytes = bytes / managed.BlockBytes * managed.BlockBytes
		if bytes < managed.BlockBytes {
			return 0, 0, fmt.Errorf("a managed limit of %d bytes leaves no room for an arena: raise PENSTOCK_MANAGED_LIMIT", e.config.LimitBytes)
		}
		if p, err = proc.driver.MemAllocManaged(bytes); err == nil {
			return p, bytes, nil
		}
	}
	return 0, 0, fmt.Errorf("managed arena of %d bytes: %w", bytes, err)
}

// startHook gives the hook its words and switches it on. Launches are held back
// only if the engine can then still act whatever the job's threads do in libcuda;
// without that the hook still reports how far each stream has got.
func (e *paged) startHook() error {
	proc := e.proc
	if !proc.driver.Capabilities().StreamMemOps {
		// Nothing would say how far a stream has got, and memory must not be taken for
		// idle on a guess: the hook stays off, and kernels fault.
		proc.log.Warn("this driver has no stream memory operations: nothing can be foreseen, and kernels fault for what is away")
		return nil
	}
	words, err := proc.driver.HostAlloc(2 * hook.WordsBytes)
	if err != nil {
		return fmt.Errorf("pinned memory for the gates: %w", err)
	}
	e.gateWords, proc.progressWords = words, words+hook.WordsBytes
	proc.hook.Words(e.gateWords, proc.progressWords)
	proc.hook.SetProgressEvery(progressEvery)
	proc.hook.SetMode(hook.Gated)
	return nil
}

// pagedProcess is what the runtime sees of this process.
type pagedProcess struct{ e *paged }

// holdsBack says whether launches wait for absent memory.
func (e *paged) holdsBack() bool { return e.space != nil && e.proc.failed == nil }

func (p pagedProcess) Publish(slot uint32, r cuda.Range, resident bool) {
	if h := p.e.proc.hook; h != nil {
		h.Publish(slot, r, resident || !p.e.holdsBack())
	}
}

func (p pagedProcess) Withdraw(slot uint32, r cuda.Range) {
	if h := p.e.proc.hook; h != nil {
		h.Withdraw(slot, r)
	}
}

func (p pagedProcess) SetResident(slot uint32, resident bool) {
	if h := p.e.proc.hook; h != nil {
		h.SetResident(slot, resident || !p.e.holdsBack())
	}
}

func (p pagedProcess) OpenGate(stream int, seq uint64) {
	proc := p.e.proc
	if proc.failed != nil {
		return // it is open, far ahead
	}
	if i := proc.streams.Index(stream); i >= 0 && p.e.gateWords != 0 {
		proc.hook.OpenGate(i, seq)
	}
}

func (p pagedProcess) Now() time.Duration { return p.e.proc.driver.Now() }

// letRun opens every gate for what is queued and for long after. The caller holds the lock.
func (e *paged) letRun() {
	proc := e.proc
	if proc.hook == nil || e.runtime == nil {
		return
	}
	e.runtime.OpenAll()
	const farAhead = 1 << 30 // half the range of the cyclic comparison
	for i := range proc.hook.Streams() {
		if e.gateWords != 0 {
			proc.hook.OpenGate(i, proc.hook.Head()+farAhead)
		}
	}
}

// wakeAll wakes every worker, to see that it is over.
func (e *paged) wakeAll() {
	for _, c := range e.work {
		c.Broadcast()
	}
}

// fail opens every gate, and they stay open. The hook stays on, for the streams' progress says which dead memory may be used again.
func (e *paged) fail(err error) {
	proc := e.proc
	proc.failed = err
	proc.log.Error("the engine has failed; the job goes on under the driver's own demand paging", zap.Error(err))
	proc.drain()
	e.letRun()
	if e.runtime != nil {
		e.runtime.Republish()
	}
	e.wakeAll()
}

func (e *paged) refuse() {} // nothing is ever refused

func (e *paged) end() {
	proc := e.proc
	if proc.hook != nil {
		proc.hook.SetMode(hook.Off)
		proc.drain()
	}
	if e.runtime != nil {
		e.runtime.OpenAll()
	}
	e.wakeAll()
	if e.faults.stop != nil {
		close(e.faults.stop)
	}
}

func (e *paged) ended() { e.closeFaults() }

func (e *paged) autopsy() {}

func (e *paged) listen() {
	if e.runtime != nil {
		e.deaths.hear()
	}
}

// hearAll buries all the dead: some of what was queued before may be written by a thread that is slow, see idleAfter in package managed.
func (e *paged) hearAll() {
	if e.runtime != nil {
		e.bury(math.MaxUint64)
	}
}

func (e *paged) op(rec *hook.Record) {
	proc := e.proc
	e.bury(rec.Seq - 1)
	proc.tell(rec)
	if rec.Flags&hook.FlagCaptured != 0 {
		return // it runs when its graph is launched, and is reported then
	}
	var op um.Op
	proc.operation(rec, &op)
	op.Gated, op.Reports = rec.Flags&hook.FlagGated != 0, rec.Flags&hook.FlagProgress != 0
	e.runtime.Op(op)
	if rec.Stream == hook.SharedStream {
		e.runtime.Progress(op.Stream, op.Seq) // nobody reports it: it would keep what it names for ever
	}
}

func (e *paged) catchUp() { e.proc.drain() }

func (e *paged) timed(uint64, time.Duration) {}

func (e *paged) assess(*Stats, string) {}

func (e *paged) pauseRecording() { e.askSeldom() }
