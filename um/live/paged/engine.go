package paged

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
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/stats"
	"github.com/penstock-gpu/penstock/um/managed"
)

// Config is what the managed engine alone is to know.
type Config struct {
	LimitBytes int64 // most managed address space; 0 = no limit
	PlainOnly  bool  // it is never opened
}

const (
	addressSlack = 2                      // address space over memory, so that fragmentation of addresses does not matter
	headPatience = 100 * time.Millisecond // for a launch that no move helps; then it may fault
	roomPatience = time.Second            // for tensors to leave before plain memory grows
)

// Engine is the managed engine in a process, whose lock guards it.
type Engine struct {
	config  Config
	proc    *process.Process
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

// New returns the engine, which is to be started.
func New(proc *process.Process, c Config) *Engine {
	e := &Engine{proc: proc, config: c}
	for d := range e.work {
		e.work[d] = sync.NewCond(&proc.Mu)
	}
	return e
}

// Name is the engine's.
const Name = "managed"

func (e *Engine) String() string { return Name }

func (e *Engine) Start() error {
	if e.proc.Config.BudgetBytes == 0 || e.config.PlainOnly {
		return nil
	}
	return e.Open()
}

func (e *Engine) Serving() bool { return e.opened.Load() }

func (e *Engine) StartsWhenFull() bool { return !e.config.PlainOnly }

func (e *Engine) Owns(p cuda.Ptr) bool { return e.opened.Load() && e.runtime.Owns(p) }

// Open starts the managed engine: from now on allocations can leave the device.
func (e *Engine) Open() error {
	proc := e.proc
	proc.Plain.ServeFront(false) // its lock comes before Mu
	p, bytes, err := e.reserveArena()
	if err != nil {
		return err
	}
	if p%managed.BlockBytes != 0 {
		return fmt.Errorf("the driver returned managed memory at %#x, not aligned to %d bytes", uint64(p), managed.BlockBytes)
	}
	if e.space, err = uvm.Open(cuda.Range{Base: p, Bytes: bytes}, proc.Driver.Info()); err != nil {
		proc.Log.Warn("the unified-memory driver cannot be asked directly: launches are not held back, and fault for what comes late", zap.Error(err))
	}
	proc.Mu.Lock()
	defer proc.Mu.Unlock()
	e.runtime = managed.New(managed.Config{
		Policy: proc.Config.Policy, BudgetBytes: proc.Budget, HostBudgetBytes: proc.HostBudget(), ArenaBytes: bytes,
		LookaheadBytes: proc.Config.LookaheadBytes,
	}, processOf{e}, p)
	proc.Tensors = e.runtime
	e.tellPlain()
	e.arenaBytes = bytes
	e.opened.Store(true)
	e.openFaults()
	if proc.Hook == nil {
		return nil
	}
	if err := e.startHook(); err != nil {
		return err
	}
	proc.Threads.Add(1)
	go e.loop()
	// Several take out: the driver maps each page for the CPU, and the maps of
	// different blocks can be made beside each other.
	for _, d := range []um.Direction{um.In, um.Out, um.Out, um.Out} {
		proc.Threads.Add(1)
		go e.worker(d)
	}
	if e.space != nil && proc.Config.Policy.Fetch != um.FetchOnFault { // demand paging is left as it is
		proc.Threads.Add(1)
		go e.prepare()
	}
	return nil
}

// reserveArena takes address space for the arena: with slack if it can be had.
func (e *Engine) reserveArena() (p cuda.Ptr, bytes int64, err error) {
	proc := e.proc
	for slack := int64(addressSlack); slack > 0; slack-- {
		bytes = slack * (proc.Budget + proc.HostBudget())
		if limit := e.config.LimitBytes; limit > 0 {
			bytes = min(bytes, limit)
		}
		bytes = bytes / managed.BlockBytes * managed.BlockBytes
		if bytes < managed.BlockBytes {
			return 0, 0, fmt.Errorf("a managed limit of %d bytes leaves no room for an arena: raise PENSTOCK_MANAGED_LIMIT", e.config.LimitBytes)
		}
		if p, err = proc.Driver.MemAllocManaged(bytes); err == nil {
			return p, bytes, nil
		}
	}
	return 0, 0, fmt.Errorf("managed arena of %d bytes: %w", bytes, err)
}

// startHook gives the hook its words and switches it on. Launches are held back
// only if the engine can then still act whatever the job's threads do in libcuda;
// without that the hook still reports how far each stream has got.
func (e *Engine) startHook() error {
	proc := e.proc
	if !proc.Driver.Capabilities().StreamMemOps {
		// Nothing would say how far a stream has got, and memory must not be taken for
		// idle on a guess: the hook stays off, and kernels fault.
		proc.Log.Warn("this driver has no stream memory operations: nothing can be foreseen, and kernels fault for what is away")
		return nil
	}
	words, err := proc.Driver.HostAlloc(2 * hook.WordsBytes)
	if err != nil {
		return fmt.Errorf("pinned memory for the gates: %w", err)
	}
	e.gateWords, proc.ProgressWords = words, words+hook.WordsBytes
	proc.Hook.Words(e.gateWords, proc.ProgressWords)
	proc.Hook.SetProgressEvery(process.ProgressEvery)
	proc.Hook.SetMode(hook.Gated)
	return nil
}

// processOf is what the runtime sees of this process.
type processOf struct{ e *Engine }

// holdsBack says whether launches wait for absent memory.
func (e *Engine) holdsBack() bool { return e.space != nil && e.proc.Failed == nil }

func (p processOf) Publish(slot uint32, r cuda.Range, resident bool) {
	if h := p.e.proc.Hook; h != nil {
		h.Publish(slot, r, resident || !p.e.holdsBack())
	}
}

func (p processOf) Withdraw(slot uint32, r cuda.Range) {
	if h := p.e.proc.Hook; h != nil {
		h.Withdraw(slot, r)
	}
}

func (p processOf) SetResident(slot uint32, resident bool) {
	if h := p.e.proc.Hook; h != nil {
		h.SetResident(slot, resident || !p.e.holdsBack())
	}
}

func (p processOf) OpenGate(stream int, seq uint64) {
	proc := p.e.proc
	if proc.Failed != nil {
		return // it is open, far ahead
	}
	if i := proc.Streams.Index(stream); i >= 0 && p.e.gateWords != 0 {
		proc.Hook.OpenGate(i, seq)
	}
}

func (p processOf) Now() time.Duration { return p.e.proc.Driver.Now() }

// letRun opens every gate for what is queued and for long after. The caller holds the lock.
func (e *Engine) letRun() {
	proc := e.proc
	if proc.Hook == nil || e.runtime == nil {
		return
	}
	e.runtime.OpenAll()
	const farAhead = 1 << 30 // half the range of the cyclic comparison
	for i := range proc.Hook.Streams() {
		if e.gateWords != 0 {
			proc.Hook.OpenGate(i, proc.Hook.Head()+farAhead)
		}
	}
}

// wakeAll wakes every worker, to see that it is over.
func (e *Engine) wakeAll() {
	for _, c := range e.work {
		c.Broadcast()
	}
}

// Fail opens every gate, and they stay open. The hook stays on, for the streams' progress says which dead memory may be used again.
func (e *Engine) Fail(err error) {
	proc := e.proc
	proc.Failed = err
	proc.Log.Error("the engine has failed; the job goes on under the driver's own demand paging", zap.Error(err))
	proc.Drain()
	e.letRun()
	if e.runtime != nil {
		e.runtime.Republish()
	}
	e.wakeAll()
}

func (e *Engine) Refuse() {} // nothing is ever refused

func (e *Engine) End() {
	proc := e.proc
	if proc.Hook != nil {
		proc.Hook.SetMode(hook.Off)
		proc.Drain()
	}
	if e.runtime != nil {
		e.runtime.OpenAll()
	}
	e.wakeAll()
	if e.faults.stop != nil {
		close(e.faults.stop)
	}
}

func (e *Engine) Ended() { e.closeFaults() }

func (e *Engine) Autopsy() {}

func (e *Engine) Listen() {
	if e.runtime != nil {
		e.deaths.hear()
	}
}

// HearAll tells the runtime of all frees: some of what was queued before may be written by a thread that is slow, see idleAfter in package managed.
func (e *Engine) HearAll() {
	if e.runtime != nil {
		e.tellFrees(math.MaxUint64)
	}
}

func (e *Engine) Op(rec *hook.Record) {
	proc := e.proc
	e.tellFrees(rec.Seq - 1)
	proc.Tell(rec)
	if rec.Flags&hook.FlagCaptured != 0 {
		return // it runs when its graph is launched, and is reported then
	}
	var op um.Op
	proc.Operation(rec, &op)
	op.Gated, op.Reports = rec.Flags&hook.FlagGated != 0, rec.Flags&hook.FlagProgress != 0
	e.runtime.Op(op)
	if rec.Stream == hook.SharedStream {
		e.runtime.Progress(op.Stream, op.Seq) // nobody reports it: it would keep what it names for ever
	}
}

func (e *Engine) CatchUp() { e.proc.Drain() }

func (e *Engine) Timed(uint64, time.Duration) {}

func (e *Engine) Assess(*stats.Stats, string) {}

func (e *Engine) PauseRecording() { e.askSeldom() }
