package swapped

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/explicit/hostpool"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// Config is what the explicit engine alone is to know.
type Config struct {
	Verify bool      // every move is checked by checksum
	Replay um.Replay // what is made again instead of being moved
	Packs  bool      // allocations that live together get one range
	// Front gives out what the job has just freed, nil: nothing does; PlainFront is that of plain memory.
	Front, PlainFront *front.Front
}

// Blocks are those of memory that stays on the device.
type Blocks interface {
	// Containing is the block that an address lies in.
	Containing(p cuda.Ptr) (cuda.Range, bool)
	// TryContaining is the same for the engine's threads, and says that it is busy where Containing would wait: who has the
	// locks may be waiting for them to make room.
	TryContaining(p cuda.Ptr) (r cuda.Range, ok, busy bool)
}

// Engine is the explicit engine in a process, whose lock guards it.
type Engine struct {
	config  Config
	blocks  Blocks
	proc    *process.Process
	hook    Hook
	runtime *explicit.Runtime
	host    *hostpool.Pool
	kernels *kernels.Kernels
	finder  *kernels.Finder
	words   words
	wake    [2]*sync.Cond
	lane    *lane // copies what leaves; nil until it is made
	gives   givesWay
	waked   uint64        // the epoch when the workers were last woken
	epoch   atomic.Uint64 // the runtime's, for who looks without the lock whether something has happened
	asking  *question
	trails  trails
	// chasersOf are the functions that reach tensors through memory, by id.
	chasersOf   map[uint32]*chaser
	lookedAgain time.Time // when everything was last looked at again
	hostErr     error     // why host memory could not be had when something was last to leave
	growing     bool      // it could not, but is being made
	accesses    accesses
	verifier    *verifier // nil: nothing is made again
	// endVerifier asks the worker that takes out to give the verifier's memory back.
	endVerifier bool
	timing      bool // operations are timed

	front    *front.Front       // of the tensors' ranges; nil: the job asks the engine each time
	calls    []front.Note       // that the front served, read and not dealt with
	requests map[request]uint64 // how many had come with the last one that was dealt with
	heard    uint64             // how many were dealt with
	taken    int64              // bytes that they took, less those they gave back

	plain plainMemory

	moveTime   [2]time.Duration // copies were under way
	pace       [2]pace
	spent      [2][workerParts]time.Duration
	driverTime [2]explicit.Times // of the workers' moves, by kind of call
	inspected  int64             // launches whose memory was searched for addresses
	chasers    int64             // of these, launches that reached tensors by addresses in memory
	unresolved int64             // launches for which everything had to be on the device
	grantTime  time.Duration     // launches waited for a grant with their memory there
}

// Hook is the launch hook as the explicit engine needs it.
type Hook interface {
	process.Hook
	LastSeq(slot uint32) uint64
	Arrived(word cuda.Ptr)
	SetArriving(slot, ticket uint32)
	SetGuarded(slot uint32)
	SetGraphBytes(bytes int64)
	GraphsChase()
	Published(p cuda.Ptr) bool
	PublishPlain(r cuda.Range)
	WithdrawPlain(r cuda.Range)
	Refuse(code uint32)
	Inspection() (seq uint64, addresses []uint64)
	Grant(seq uint64)
	SetInspect(function uint32, state hook.Inspect)
	LeaveTrails()
	Follow(function, after uint32)
	HeadWord() *uint64
	Read() uint64
	SetRecord(function uint32, written []uint32)
	EndRecord(function uint32)
	Launch(r *hook.Record) *cuda.RecordedLaunch
	Unloads() uint32
}

const (
	addressFactor = 64 // address space over memory: ranges are kept by size, not joined
	mostAddresses = 1 << 40
	// reservationHint is where the reservation should lie: memory is searched for
	// words of its range, and words that begin so are rare in data (as bfloat16,
	// they hold 1e36; as half precision, not a number; of integers up to 32,767 it is
	// 0.4 %, of 64 MiB of an int8 product some 5,000). So many are told apart. In parameters, two numbers
	// of four bytes side by side look so when the second is 31,797 or somewhat more: sizes of vocabularies are 32,000 and 32,128.
	reservationHint = 0x7c35_0000_0000
	// lowAddresses are those that two numbers of four bytes look like, the second of them small.
	lowAddresses = 1 << 44
	// plainHint is the same for plain memory.
	plainHint         = 0x7b35_0000_0000
	findCapacity      = 1 << 16
	mostInFlight      = 8                // moves in one direction
	plainPatience     = 3 * time.Second  // for tensors to leave before plain memory grows, while nothing is unfinished
	hostPatience      = time.Second      // for host memory that is over the budget: others may free some
	growthPatience    = 30 * time.Second // for host memory that the machine refuses
	longRun           = time.Second      // an operation that has run for longer is waited for: others merely come and go
	reportPatience    = time.Millisecond // for a move, before streams are asked how far they are
	lookAgainPatience = time.Second      // for a move while a launch waits, before everything is looked at again, and each time again
	longestRest       = time.Millisecond // for which a worker does not look at what there is to do
	resultOOM         = 2                // CUDA_ERROR_OUT_OF_MEMORY
	resultUnknown     = 999              // CUDA_ERROR_UNKNOWN
	// resultDeinitialized is CUDA_ERROR_DEINITIALIZED, for what comes after the engine.
	resultDeinitialized = 4
)

var stallNames = [um.StallCauses]string{um.ForFetch: "for a copy or a making", um.ForSpace: "for room", um.ForMap: "for new memory"}

// trustAfter is explicit.Config.TrustAfter: tests lower it.
var trustAfter = 0

// mostWrong is explicit.Config.MostWrong: tests raise it.
var mostWrong = 0

// level is explicit.Config.Level: tests fix it.
var level = explicit.LevelTried

// New returns the engine, which is to be started.
func New(proc *process.Process, c Config, b Blocks) *Engine {
	e := &Engine{
		proc: proc, config: c, blocks: b, hook: proc.Hook.(Hook), // whoever chose has looked
		chasersOf: map[uint32]*chaser{}, requests: map[request]uint64{},
		accesses: newAccesses(),
	}
	e.plain.driver, e.plain.hook, e.plain.follows = proc.Driver, e.hook, c.Replay != um.ReplayOff
	e.plain.handles, e.plain.mapped = map[cuda.Ptr]cuda.Handle{}, map[cuda.Ptr]int64{}
	for d := range e.wake {
		e.wake[d] = sync.NewCond(&proc.Mu)
	}
	return e
}

// Name is the engine's.
const Name = "explicit"

func (e *Engine) String() string { return Name }

// Start starts the explicit engine.
func (e *Engine) Start() error {
	proc, h := e.proc, e.hook
	hostBudget := proc.HostBudget()
	if hostBudget > hostpool.Granularity { // less is refused, by its own size
		hostBudget = hostBudget / hostpool.Granularity * hostpool.Granularity
	}
	var err error
	if e.kernels, err = kernels.Load(proc.Driver); err != nil {
		return fmt.Errorf("device code of the explicit engine: %w", err)
	}
	if e.finder, err = e.kernels.NewFinder(findCapacity); err != nil {
		return err
	}
	at, err := proc.Driver.HostAlloc(wordsBytes)
	if err != nil {
		return fmt.Errorf("pinned memory for the engine's words: %w", err)
	}
	e.words = words(at)
	space := min(addressFactor*(proc.Budget+hostBudget), mostAddresses) / explicit.PageBytes * explicit.PageBytes
	base, err := proc.Driver.AddressReserve(space, explicit.PageBytes, reservationHint)
	if err != nil {
		return fmt.Errorf("reserving %d bytes of address space: %w", space, err)
	}
	e.accesses.tries = base >= lowAddresses
	if e.host, err = hostpool.New(proc.Driver, hostpool.Config{BudgetBytes: hostBudget}, proc.Log); err != nil {
		return err
	}
	c := explicit.Config{
		BudgetBytes: proc.Budget, HostBudgetBytes: hostBudget, Addresses: cuda.Range{Base: base, Bytes: space},
		Victims: proc.Config.Policy.Victims, Ahead: proc.Config.Policy.Fetch == um.FetchAhead, LookaheadBytes: proc.Config.LookaheadBytes, Depth: mostInFlight / 2,
		Checksums: true,
		Packs:     e.config.Packs && proc.Sink == nil, // a recording names allocations by their slots
		Replay:    e.config.Replay, TrustAfter: trustAfter, MostWrong: mostWrong, Level: level,
	}
	if e.config.Verify {
		c.Replay = min(c.Replay, um.ReplayInsured) // a copy of all that is dropped is compared with
	}
	if c.Replay != um.ReplayOff {
		if c.ScratchBytes, err = e.openVerifier(explicit.ScratchFor(c)); err != nil {
			return err
		}
	}
	if c.Victims == nil {
		c.Victims = evict.NextUse
	}
	proc.Mu.Lock()
	defer proc.Mu.Unlock()
	e.runtime = explicit.New(c, processOf{e})
	if t := proc.Config.Timeline; t != nil {
		e.runtime.ShowWaits(func(seq uint64, cause um.StallCause, from, to time.Duration) {
			t.Add(timeline.Span{Track: timeline.Waits, Name: stallNames[cause], From: from, To: to, Detail: fmt.Sprint("operation ", seq)})
		})
	}
	e.PlainChanged()
	e.runtime.Remember(rememberedOps)
	proc.Tensors = e.runtime
	if e.front = e.config.Front; e.front != nil {
		e.front.Stand(c.Addresses, um.SmallBytes, explicit.PageBytes, h.HeadWord())
	}
	if f := e.config.PlainFront; f != nil {
		f.NoteBirths(h.HeadWord()) // for unwritten
	}
	proc.ProgressWords = at + hook.WordsBytes
	h.Words(at, proc.ProgressWords)
	h.Arrived(e.words.finished(um.In))
	h.SetProgressEvery(process.ProgressEvery)
	h.SetMode(hook.Strict)
	proc.Threads.Add(3)
	go e.loop()
	go e.work(um.In)
	go e.work(um.Out)
	return nil
}

// processOf is what the explicit runtime sees of this process.
type processOf struct{ e *Engine }

func (p processOf) Publish(slot uint32, r cuda.Range) {
	p.e.hook.Publish(slot, r, false)
}

func (p processOf) Withdraw(slot uint32, r cuda.Range) { p.e.hook.Withdraw(slot, r) }

func (p processOf) SetState(slot uint32, s explicit.State, ticket uint32) {
	switch s {
	case explicit.Arriving:
		p.e.hook.SetArriving(slot, ticket)
	case explicit.Guarded:
		p.e.hook.SetGuarded(slot)
	default:
		p.e.hook.SetResident(slot, s == explicit.Resident)
	}
}

func (p processOf) LastSeq(slot uint32) uint64 { return p.e.hook.LastSeq(slot) }

func (p processOf) Offer(r cuda.Range, stream int) bool {
	return p.e.front != nil && p.e.front.Offer(r.Base, r.Bytes, p.e.proc.Streams.Handle(stream))
}

func (p processOf) SetApart(at cuda.Ptr, bytes int64, stream int) bool {
	return p.e.front == nil || p.e.front.SetApart(at, bytes, p.e.proc.Streams.Handle(stream))
}

func (p processOf) Reserve(r cuda.Range, size int64, stream, after int) bool {
	f, handle := p.e.front, p.e.proc.Streams.Handle(stream)
	return f != nil && f.Reserve(r, size, handle, p.e.requests[request{size, handle}]+uint64(after))
}

// request is what the job asks the front for.
type request struct {
	size   int64 // in whole pages
	stream uint64
}

// mostRequests is of how many kinds requests are counted. When there are more all are forgotten, and no place is
// reserved for a kind until the next one of it has come.
const mostRequests = 1 << 14

// asked notes how many requests of a kind have come with one that is being dealt with.
func (e *Engine) asked(bytes int64, stream, requests uint64) {
	if len(e.requests) > mostRequests {
		clear(e.requests)
	}
	e.requests[request{explicit.WholePages(bytes), stream}] = requests
}

func (p processOf) Recall(at cuda.Ptr) bool { return p.e.front.Recall(at, p.e.heard) }

func (p processOf) TakeHost(bytes int64) ([]cuda.Range, bool) {
	extents, ready, err := p.e.host.TryTake(bytes)
	p.e.hostErr, p.e.growing = err, !ready && err == nil
	return extents, ready && err == nil
}

func (p processOf) GiveHost(extents []cuda.Range) {
	if err := p.e.host.Give(extents); err != nil {
		p.e.proc.Log.Error("host memory was not taken back", zap.Error(err))
	}
}

func (p processOf) EndReplay() { p.e.endVerifier = true }

func (p processOf) GiveClones(clones []cuda.Range) { p.e.verifier.clones.give(clones) }

func (p processOf) Now() time.Duration { return p.e.proc.Driver.Now() }

// Op hands an operation of the hook's ring to the runtime.
func (e *Engine) Op(rec *hook.Record) {
	proc := e.proc
	e.hear(rec.Seq - 1)
	proc.Tell(rec)
	if rec.Flags&hook.FlagCaptured != 0 {
		return // it runs when its graph is launched, and is reported then
	}
	var o um.Op
	proc.Operation(rec, &o)
	o.Shape, o.Keep = rec.Grid, rec.Flags&hook.FlagKeep != 0
	o.ToHost, o.Fill = rec.Kind == hook.Copy && rec.ID == hook.CopyD2H, rec.Kind == hook.Copy && rec.ID == hook.CopyFill
	if e.verifier != nil {
		e.accesses.note(e, rec, &o)
	}
	e.runtime.Op(o)
	if t := proc.Config.Timeline; t != nil {
		t.Launched(o.Stream, o.Seq, o.Name, e.runtime.History.Now(), e.runtime.History.Period())
	}
	before := e.trails.step(rec)
	if rec.Flags&(hook.FlagOpaque|hook.FlagInspect) != 0 {
		e.asking = &question{seq: rec.Seq, stream: rec.Stream, function: rec.ID, opaque: rec.Flags&hook.FlagInspect == 0, named: slices.Clone(rec.Slots), before: before}
		if rec.Kind != hook.Launch {
			e.asking.function = noFunction
		}
		if e.asking.opaque {
			e.extendAll(rec.Seq)
		}
	}
}

// Fail ends the explicit engine: launches that would have to wait are refused. What
// is on the device stays usable. The caller holds the lock.
func (e *Engine) Fail(err error) {
	proc := e.proc
	proc.Failed = illegal(err)
	code := uint32(resultUnknown)
	var driver *cuda.Error
	var growth *hostpool.GrowthError
	switch {
	case errors.Is(err, hostpool.ErrHostBudget) || errors.Is(err, um.ErrOutOfMemory) || errors.As(err, &growth):
		code = resultOOM
	case errors.As(err, &driver) && driver.EndsContext():
		code = uint32(driver.Code) // as the driver answers the job's own calls
	}
	proc.Log.Error("the explicit engine has failed; launches that need what is not on the device are refused from now on", zap.Error(proc.Failed))
	e.hook.Refuse(code)
	e.wakeAll()
}

// illegal says what an access to memory that is not mapped can mean.
func illegal(err error) error {
	if !errors.Is(err, cuda.ErrIllegalAddress) {
		return err
	}
	return fmt.Errorf("a kernel or a copy has reached memory that is not mapped (%w): if the job ends so with --engine managed as well, it is at fault; so it is if a CUDA graph names what has been freed since, which PyTorch alone keeps cached: keep model and optimizer as long as the graph; if not, something finds memory in a way that this engine does not see, so stay with --engine managed and please report it", err)
}

func (e *Engine) Autopsy() {
	proc := e.proc
	if proc.Driver.BindThread() != nil {
		return
	}
	var driver *cuda.Error
	if _, err := proc.Driver.StreamQuery(0); errors.As(err, &driver) && driver.EndsContext() {
		proc.Failed = illegal(err)
	}
}

func (e *Engine) Refuse() { e.hook.Refuse(resultUnknown) }

// End has launches refused that would have to wait: nobody brings in any more what is away, and it must not be reached for.
func (e *Engine) End() {
	e.hook.Refuse(resultDeinitialized)
	e.wakeAll()
}

func (e *Engine) Ended() {}

func (e *Engine) Serving() bool { return true }

func (e *Engine) StartsWhenFull() bool { return false }

func (e *Engine) Open() error { return nil }

func (e *Engine) Owns(p cuda.Ptr) bool { return e.runtime.Owns(p) }

func (e *Engine) Listen() {}

// CatchUp drains until the runtime knows of everything that
// the job has done until now, for who is about to speak of an allocation. It waits at
// most for another thread that is between taking its place in the ring and writing
// there. The caller holds the lock, which is released meanwhile.
func (e *Engine) CatchUp() {
	proc := e.proc
	head := e.hook.Head()
	for proc.Drain(); e.hook.Read() < head && proc.Failed == nil && !proc.Closing; proc.Drain() {
		proc.Mu.Unlock()
		runtime.Gosched()
		proc.Mu.Lock()
	}
}

func (e *Engine) Timed(seq uint64, took time.Duration) { e.runtime.Timed(seq, took) }

func (e *Engine) PauseRecording() {}

func (e *Engine) wakeAll() {
	for _, c := range e.wake {
		c.Broadcast()
	}
}
