package live

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/explicit/hostpool"
)

// swap is the explicit engine in a process: what Live has instead of the managed
// arena. Live's lock guards it.
type swap struct {
	l       *Live
	hook    StrictHook
	runtime *explicit.Runtime
	host    *hostpool.Pool
	kernels *kernels.Kernels
	finder  *kernels.Finder
	words   cuda.Ptr // pinned: one line for each direction's tickets
	wake    [2]*sync.Cond
	waked   uint64 // the epoch when the workers were last woken
	asking  *question
	hostErr error // why host memory cannot be had
	warned  bool  // of the launch that waits now

	plainMu      sync.Mutex               // guards plainHandles; the last of all locks
	plainHandles map[cuda.Ptr]cuda.Handle // of segments of plain memory

	moveTime   [2]time.Duration // copies were under way
	inspected  int64            // launches whose memory was searched for addresses
	chasers    int64            // of these, launches that reached tensors by addresses in memory
	unresolved int64            // launches for which everything had to be on the device
	grantTime  time.Duration    // launches waited for a grant with their memory there
}

// StrictHook is the launch hook as the explicit engine needs it.
type StrictHook interface {
	Hook
	LastSeq(slot uint32) uint64
	Arrived(word cuda.Ptr)
	SetArriving(slot, ticket uint32)
	PublishPlain(r cuda.Range)
	WithdrawPlain(r cuda.Range)
	Refuse(code uint32)
	ReportAll()
	Inspection() (seq uint64, addresses []uint64)
	Grant(seq uint64)
	SetInspect(function uint32, state hook.Inspect)
}

// question is an operation that waits for a grant.
type question struct {
	seq      uint64
	stream   int // the hook's index
	function uint32
	opaque   bool
	searched bool          // what its parameters name has been searched for addresses
	settled  bool          // what it is known to need is there
	since    time.Duration // it is settled
}

const (
	wordLine      = 64
	addressFactor = 64 // address space over memory: ranges are kept by size, not joined
	mostAddresses = 1 << 40
	// reservationHint is where the reservation should lie: memory is searched for
	// words of its range, and words that begin so are rare in data (as bfloat16,
	// they hold 1e37; as half precision, not a number).
	reservationHint = 0x7d00_0000_0000
	findCapacity    = 4096
	mostInFlight    = 8                      // moves in one direction
	shortWait       = 10 * time.Microsecond  // while work is queued
	plainPatience   = 10 * time.Second       // for tensors to leave before plain memory grows
	slowPatience    = 2 * time.Second        // for a launch that waits, before it is said
	checkPatience   = 100 * time.Millisecond // for a copy to end, before it is asked whether it has failed
	reportPatience  = time.Millisecond       // for a move, before streams are asked how far they are
	resultOOM       = 2                      // CUDA_ERROR_OUT_OF_MEMORY
	resultUnknown   = 999                    // CUDA_ERROR_UNKNOWN
	// resultDeinitialized is CUDA_ERROR_DEINITIALIZED, for what comes after the engine.
	resultDeinitialized = 4
	defaultStreams      = 2 // handles up to this are default streams, the calling thread's own or the shared one
)

// openSwap starts the explicit engine.
func (l *Live) openSwap() error {
	h, ok := l.hook.(StrictHook)
	if !ok {
		return errors.New("the explicit engine needs the launch hook") // New has looked
	}
	if len(l.config.MissedRoutes) > 0 {
		return fmt.Errorf("launches by way of %s pass the hook by, and would reach memory that is away: the explicit engine cannot run safely; use --engine managed", strings.Join(l.config.MissedRoutes, ", "))
	}
	hostBudget := l.hostBudget()
	if hostBudget > hostpool.Granularity { // less is refused, by its own size
		hostBudget = hostBudget / hostpool.Granularity * hostpool.Granularity
	}
	var err error
	e := &swap{l: l, hook: h, plainHandles: map[cuda.Ptr]cuda.Handle{}}
	for d := range e.wake {
		e.wake[d] = sync.NewCond(&l.mu)
	}
	if e.kernels, err = kernels.Load(l.driver); err != nil {
		return fmt.Errorf("device code of the explicit engine: %w", err)
	}
	if e.finder, err = e.kernels.NewFinder(findCapacity); err != nil {
		return err
	}
	if e.words, err = l.driver.HostAlloc(2*hook.WordsBytes + 2*wordLine); err != nil {
		return fmt.Errorf("pinned memory for the engine's words: %w", err)
	}
	space := min(addressFactor*(l.budget+hostBudget), mostAddresses) / explicit.PageBytes * explicit.PageBytes
	base, err := l.driver.AddressReserve(space, explicit.PageBytes, reservationHint)
	if err != nil {
		return fmt.Errorf("reserving %d bytes of address space: %w", space, err)
	}
	if e.host, err = hostpool.New(l.driver, hostpool.Config{BudgetBytes: hostBudget}, l.log); err != nil {
		return err
	}
	c := explicit.Config{
		BudgetBytes: l.budget, HostBudgetBytes: hostBudget, Addresses: cuda.Range{Base: base, Bytes: space},
		Victims: l.config.Policy.Victims, Ahead: l.config.Policy.Fetch == um.FetchAhead, LookaheadBytes: l.config.LookaheadBytes, Depth: mostInFlight / 2,
	}
	if c.Victims == nil {
		c.Victims = evict.NextUse
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.runtime = explicit.New(c, swapProcess{e})
	l.swap = e
	gate := e.words
	l.gateWords, l.progressWords = gate, gate+hook.WordsBytes
	h.Words(l.gateWords, l.progressWords)
	h.Arrived(e.word(explicit.In))
	h.SetProgressEvery(progressEvery)
	h.SetMode(hook.Strict)
	l.threads.Add(3)
	go e.loop()
	go e.worker(explicit.In)
	go e.worker(explicit.Out)
	return nil
}

// word is where a direction's finished tickets are written.
func (e *swap) word(d explicit.Direction) cuda.Ptr {
	return e.words + 2*hook.WordsBytes + cuda.Ptr(d)*wordLine
}

// swapProcess is what the explicit runtime sees of this process.
type swapProcess struct{ e *swap }

func (p swapProcess) Publish(slot uint32, r cuda.Range) {
	p.e.hook.Publish(slot, r, false)
}

func (p swapProcess) Withdraw(slot uint32, r cuda.Range) { p.e.hook.Withdraw(slot, r) }

func (p swapProcess) SetState(slot uint32, s explicit.State, ticket uint32) {
	switch s {
	case explicit.Arriving:
		p.e.hook.SetArriving(slot, ticket)
	default:
		p.e.hook.SetResident(slot, s == explicit.Resident)
	}
}

func (p swapProcess) LastSeq(slot uint32) uint64 { return p.e.hook.LastSeq(slot) }

func (p swapProcess) TakeHost(bytes int64) ([]cuda.Range, bool) {
	extents, ready, err := p.e.host.TryTake(bytes)
	p.e.hostErr = err
	return extents, ready && err == nil
}

func (p swapProcess) GiveHost(extents []cuda.Range) {
	if err := p.e.host.Give(extents); err != nil {
		p.e.l.log.Error("host memory was not taken back", zap.Error(err))
	}
}

func (p swapProcess) Now() time.Duration { return p.e.l.driver.Now() }

// op hands an operation of the hook's ring to the runtime.
func (e *swap) op(rec *hook.Record) {
	if rec.Flags&hook.FlagCaptured != 0 {
		return // it runs when its graph is launched, and is reported then
	}
	l := e.l
	o := explicit.Op{Seq: rec.Seq, Stream: l.opStream(rec.Stream), Signature: l.signature(rec), Slots: rec.Slots}
	if rec.Kind == hook.Launch {
		o.Name = l.hook.FunctionName(rec.ID)
	}
	e.runtime.Op(o)
	if rec.Flags&(hook.FlagOpaque|hook.FlagInspect) != 0 {
		e.asking = &question{seq: rec.Seq, stream: rec.Stream, function: rec.ID, opaque: rec.Flags&hook.FlagInspect == 0}
		if rec.Kind != hook.Launch {
			e.asking.function = 0
		}
		if e.asking.opaque {
			e.unresolved++
			if err := e.runtime.ExtendAll(rec.Seq); err != nil {
				l.fail(err)
			}
		}
	}
}

// fail ends the explicit engine: launches that would have to wait are refused. What
// is on the device stays usable. The caller holds the lock.
func (e *swap) fail(err error) {
	l := e.l
	l.failed = err
	code := uint32(resultUnknown)
	if errors.Is(err, hostpool.ErrHostBudget) || errors.Is(err, ErrOutOfMemory) {
		code = resultOOM
	}
	l.log.Error("the explicit engine has failed; launches that need what is not on the device are refused from now on", zap.Error(err))
	e.hook.Refuse(code)
	e.wakeAll()
}

func (e *swap) wakeAll() {
	for _, c := range e.wake {
		c.Broadcast()
	}
}

// loop feeds the runtime, answers what launches ask, and wakes the workers.
func (e *swap) loop() {
	l := e.l
	defer l.threads.Done()
	runtime.LockOSThread()
	finePauses()
	if err := l.driver.BindThread(); err != nil {
		l.mu.Lock()
		l.fail(err)
		l.mu.Unlock()
		return
	}
	var reported time.Time
	for {
		l.mu.Lock()
		if l.closing {
			l.mu.Unlock()
			return
		}
		l.drain()
		l.progress()
		l.tensorReserved.Store(e.runtime.ReservedBytes())
		held := e.runtime.Held() || e.asking != nil
		if n := e.runtime.Epoch(); n != e.waked || held && !e.runtime.Moving() { // what was refused may be possible now, such as host memory
			e.waked = n
			e.wakeAll()
		}
		busy := e.runtime.Queued() > 0 || held
		switch idle := time.Since(l.lastMove); {
		case !held || e.runtime.Moving():
			l.lastMove, e.warned = time.Now(), false
		case idle > slowPatience && !e.warned:
			e.warned = true
			l.log.Warn("a launch has waited long without any move being possible", zap.String("state", e.runtime.Explain()), zap.Bool("asks", e.asking != nil), zap.Uint64("reported", e.runtime.Drained()), zap.Uint64("head", e.hook.Head()))
		case idle > watchdogPatience:
			l.fail(fmt.Errorf("a launch has waited for %s without any move being possible: %s", watchdogPatience, e.runtime.Explain()))
		}
		if held && !e.runtime.Moving() && l.failed == nil {
			if e.hostErr != nil {
				l.fail(e.hostErr)
			} else if err := e.runtime.Hopeless(); err != nil {
				l.fail(err)
			}
		}
		e.answer()
		// The last operations of streams that nobody is launching on have not been
		// reported, and would keep what they name on the device for ever.
		ask := held && !e.runtime.Moving() && time.Since(l.lastMove) > reportPatience && time.Since(reported) > reportPatience
		l.mu.Unlock()
		if ask {
			e.hook.ReportAll()
			reported = time.Now()
		}
		if busy {
			pause(shortWait)
		} else {
			l.hook.Wait(idleWait)
		}
	}
}

// answer grants what the operation that asks may have. The caller holds the lock,
// which is released while the device searches.
func (e *swap) answer() {
	q, l := e.asking, e.l
	if q == nil || l.failed != nil || !e.runtime.Settled(q.seq) {
		return
	}
	if !q.settled {
		q.settled, q.since = true, l.driver.Now()
	}
	if !q.opaque && !q.searched {
		found, err := e.search(q)
		if err != nil {
			l.fail(err)
			return
		}
		q.searched = true
		e.inspected++
		found = slices.DeleteFunc(found, func(p cuda.Ptr) bool { _, ok := e.runtime.Range(p); return !ok }) // data that looks like an address
		if len(found) == 0 {
			e.hook.SetInspect(q.function, hook.InspectCleared)
		} else {
			e.hook.SetInspect(q.function, hook.InspectAlways)
			e.chasers++
			n := e.runtime.Extend(q.seq, found)
			l.log.Debug("a launch reaches tensors through memory", zap.String("kernel", l.hook.FunctionName(q.function)),
				zap.Int("addresses", len(found)), zap.Int("tensors", n), zap.Uint64("first", uint64(found[0])))
			if n > 0 {
				q.settled = false
				e.grantTime += l.driver.Now() - q.since
				return // when they have come
			}
		}
	}
	e.grantTime += l.driver.Now() - q.since
	e.asking = nil
	e.hook.Grant(q.seq)
}

// search looks in everything that an operation's parameters name for addresses of
// tensors, after what was queued on its stream before. The caller holds the lock.
func (e *swap) search(q *question) ([]cuda.Ptr, error) {
	l := e.l
	seq, addresses := e.hook.Inspection()
	if seq != q.seq {
		return nil, fmt.Errorf("operation %d asks for a grant while %d is inspected", q.seq, seq)
	}
	ranges := map[cuda.Range]bool{}
	var plain []cuda.Ptr
	for _, a := range addresses {
		if r, ok := e.runtime.Range(cuda.Ptr(a)); ok {
			ranges[r] = true
		} else {
			plain = append(plain, cuda.Ptr(a))
		}
	}
	lo, hi := e.runtime.Span()
	stream := cuda.Stream(l.handle(q.stream))
	if stream <= defaultStreams {
		stream = 0
	}
	l.mu.Unlock()
	defer l.mu.Lock()
	for _, p := range plain {
		if r, ok := l.containing(p); ok {
			ranges[r] = true
		}
	}
	if err := e.finder.Begin(stream); err != nil {
		return nil, err
	}
	for r := range ranges {
		r.Base = (r.Base + 7) &^ 7
		if err := e.finder.Scan(r, lo, hi, stream); err != nil {
			return nil, err
		}
	}
	if err := e.finder.End(stream); err != nil {
		return nil, err
	}
	if err := l.driver.StreamSynchronize(stream); err != nil {
		return nil, err
	}
	kept, total := e.finder.Found()
	if total > int64(len(kept)) {
		return nil, fmt.Errorf("%s may reach memory through %d addresses, more than the %d that can be followed: use --engine managed",
			l.hook.FunctionName(q.function), total, len(kept))
	}
	return unique(kept), nil
}

// unique are the different words, in no order.
func unique(words []uint64) []cuda.Ptr {
	seen := make(map[uint64]bool, len(words))
	out := make([]cuda.Ptr, 0, len(words))
	for _, w := range words {
		if !seen[w] {
			seen[w] = true
			out = append(out, cuda.Ptr(w))
		}
	}
	return out
}

// flight is a move whose copy is under way.
type flight struct {
	move   *explicit.Move
	ticket uint32
	began  time.Duration
}

// worker carries out the moves of one direction.
func (e *swap) worker(d explicit.Direction) {
	l := e.l
	defer l.threads.Done()
	runtime.LockOSThread()
	finePauses()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.driver.BindThread(); err != nil {
		l.fail(err)
		return
	}
	mover, err := explicit.NewMover(l.driver, e.word(d))
	if err != nil {
		l.fail(err)
		return
	}
	if l.config.Verify {
		if err := mover.Verify(e.kernels, mostInFlight); err != nil {
			l.fail(err)
			return
		}
	}
	word := hook.NewWord(e.word(d))
	var flights []flight
	var since time.Duration // when flights stopped being none
	checked := time.Now()   // when the first of them was last seen to fly, or asked for
	for !l.closing && l.failed == nil {
		for len(flights) > 0 && word.Reached(flights[0].ticket) {
			m, began := flights[0].move, flights[0].began
			flights = flights[1:]
			checked = time.Now()
			l.mu.Unlock()
			err := mover.Finish(m)
			l.mu.Lock()
			if err != nil {
				l.fail(err)
				return
			}
			now := l.driver.Now()
			if l.sink != nil && !l.paused {
				l.sink.Move([]cuda.Range{m.Chunk}, um.Direction(d), began, now)
			}
			e.runtime.Done(m)
			e.wake[explicit.In+explicit.Out-d].Signal()
			if len(flights) == 0 {
				e.moveTime[d] += now - since
			}
		}
		l.drain() // what is already queued decides better than what was known before
		l.progress()
		m, ok := e.runtime.Next(d)
		if !ok {
			if len(flights) == 0 {
				e.wake[d].Wait()
				continue
			}
			l.mu.Unlock()
			pause(shortWait)
			var err error
			if time.Since(checked) > checkPatience {
				checked, err = time.Now(), mover.Check()
			}
			l.mu.Lock()
			if err != nil {
				l.fail(err)
				return
			}
			continue
		}
		l.mu.Unlock()
		began := l.driver.Now()
		ticket, err := mover.Begin(m)
		l.mu.Lock()
		l.lastMove = time.Now()
		if errors.Is(err, explicit.ErrNoMemory) {
			l.log.Warn("the card has less memory than the budget: going on with what there is", zap.Error(err))
			err = e.runtime.Failed(m)
			l.budget = e.runtime.Budget()
			if err == nil {
				continue
			}
		}
		if err != nil {
			l.fail(err)
			return
		}
		if ticket == 0 {
			e.runtime.Done(m)
			continue
		}
		e.runtime.Submitted(m, ticket)
		if len(flights) == 0 {
			since, checked = l.driver.Now(), time.Now()
		}
		flights = append(flights, flight{m, ticket, began})
	}
}
