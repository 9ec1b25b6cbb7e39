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

// paged is the managed engine in a process. Without a budget it is opened when the card is full for the first time;
// until then all memory is plain. Live's lock guards it.
type paged struct {
	l       *Live
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

func newPaged(l *Live) *paged {
	e := &paged{l: l}
	for d := range e.work {
		e.work[d] = sync.NewCond(&l.mu)
	}
	return e
}

func (e *paged) String() string { return Managed.String() }

func (e *paged) start() error {
	if c := e.l.config; c.BudgetBytes == 0 || c.PlainOnly {
		return nil
	}
	return e.open()
}

func (e *paged) serving() bool { return e.opened.Load() }

func (e *paged) startsWhenFull() bool { return !e.l.config.PlainOnly }

func (e *paged) owns(p cuda.Ptr) bool { return e.opened.Load() && e.runtime.Owns(p) }

// open starts the managed engine: from now on allocations can leave the device.
func (e *paged) open() error {
	l := e.l
	l.plain.ServeFront(false) // its lock comes before mu
	p, bytes, err := e.reserveArena()
	if err != nil {
		return err
	}
	if p%managed.BlockBytes != 0 {
		return fmt.Errorf("the driver returned managed memory at %#x, not aligned to %d bytes", uint64(p), managed.BlockBytes)
	}
	if e.space, err = uvm.Open(cuda.Range{Base: p, Bytes: bytes}, l.driver.Info()); err != nil {
		l.log.Warn("the unified-memory driver cannot be asked directly: launches are not held back, and fault for what comes late", zap.Error(err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.runtime = managed.New(managed.Config{
		Policy: l.config.Policy, BudgetBytes: l.budget, HostBudgetBytes: l.hostBudget(), ArenaBytes: bytes,
		LookaheadBytes: l.config.LookaheadBytes,
	}, pagedProcess{e}, p)
	l.tensors = e.runtime
	e.tellPlain()
	e.arenaBytes = bytes
	e.opened.Store(true)
	e.openFaults()
	if l.hook == nil {
		return nil
	}
	if err := e.startHook(); err != nil {
		return err
	}
	l.threads.Add(1)
	go e.loop()
	// Several take out: the driver maps each page for the CPU, and the maps of
	// different blocks can be made beside each other.
	for _, d := range []um.Direction{um.In, um.Out, um.Out, um.Out} {
		l.threads.Add(1)
		go e.worker(d)
	}
	if e.space != nil && l.config.Policy.Fetch != um.FetchOnFault { // demand paging is left as it is
		l.threads.Add(1)
		go e.prepare()
	}
	return nil
}

// reserveArena takes address space for the arena: with slack if it can be had.
func (e *paged) reserveArena() (p cuda.Ptr, bytes int64, err error) {
	l := e.l
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

// startHook gives the hook its words and switches it on. Launches are held back
// only if the engine can then still act whatever the job's threads do in libcuda;
// without that the hook still reports how far each stream has got.
func (e *paged) startHook() error {
	l := e.l
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
	e.gateWords, l.progressWords = words, words+hook.WordsBytes
	l.hook.Words(e.gateWords, l.progressWords)
	l.hook.SetProgressEvery(progressEvery)
	l.hook.SetMode(hook.Gated)
	return nil
}

// pagedProcess is what the runtime sees of this process.
type pagedProcess struct{ e *paged }

// holdsBack says whether launches wait for absent memory.
func (e *paged) holdsBack() bool { return e.space != nil && e.l.failed == nil }

func (p pagedProcess) Publish(slot uint32, r cuda.Range, resident bool) {
	if h := p.e.l.hook; h != nil {
		h.Publish(slot, r, resident || !p.e.holdsBack())
	}
}

func (p pagedProcess) Withdraw(slot uint32, r cuda.Range) {
	if h := p.e.l.hook; h != nil {
		h.Withdraw(slot, r)
	}
}

func (p pagedProcess) SetResident(slot uint32, resident bool) {
	if h := p.e.l.hook; h != nil {
		h.SetResident(slot, resident || !p.e.holdsBack())
	}
}

func (p pagedProcess) OpenGate(stream int, seq uint64) {
	l := p.e.l
	if l.failed != nil {
		return // it is open, far ahead
	}
	if i := l.streams.Index(stream); i >= 0 && p.e.gateWords != 0 {
		l.hook.OpenGate(i, seq)
	}
}

func (p pagedProcess) Now() time.Duration { return p.e.l.driver.Now() }

// letRun opens every gate for what is queued and for long after. The caller holds the lock.
func (e *paged) letRun() {
	l := e.l
	if l.hook == nil || e.runtime == nil {
		return
	}
	e.runtime.OpenAll()
	const farAhead = 1 << 30 // half the range of the cyclic comparison
	for i := range l.hook.Streams() {
		if e.gateWords != 0 {
			l.hook.OpenGate(i, l.hook.Head()+farAhead)
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
	l := e.l
	l.failed = err
	l.log.Error("the engine has failed; the job goes on under the driver's own demand paging", zap.Error(err))
	l.drain()
	e.letRun()
	if e.runtime != nil {
		e.runtime.Republish()
	}
	e.wakeAll()
}

func (e *paged) refuse() {} // nothing is ever refused

func (e *paged) end() {
	l := e.l
	if l.hook != nil {
		l.hook.SetMode(hook.Off)
		l.drain()
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
	l := e.l
	e.bury(rec.Seq - 1)
	l.tell(rec)
	if rec.Flags&hook.FlagCaptured != 0 {
		return // it runs when its graph is launched, and is reported then
	}
	var op um.Op
	l.operation(rec, &op)
	op.Gated, op.Reports = rec.Flags&hook.FlagGated != 0, rec.Flags&hook.FlagProgress != 0
	e.runtime.Op(op)
	if rec.Stream == hook.SharedStream {
		e.runtime.Progress(op.Stream, op.Seq) // nobody reports it: it would keep what it names for ever
	}
}

func (e *paged) catchUp() { e.l.drain() }

func (e *paged) timed(uint64, time.Duration) {}

func (e *paged) assess(*Stats, string) {}

func (e *paged) pauseRecording() { e.askSeldom() }
