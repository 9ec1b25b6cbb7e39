package replay

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/explicit/hostpool"
)

// explicitEngine is the explicit engine on the simulated GPU.
type explicitEngine struct {
	loop
	runtime    *explicit.Runtime
	arrived    *sim.Gate
	host       *hostpool.Pool
	states     []explicit.State // by slot, as the launch hook would see it
	tickets    []uint32
	lastSeq    []uint64
	held       func() // the launch that waits, or nil
	heldSeq    uint64
	directions [2]*directionWorker
	paging     int // of these, those that map or unmap
	lane       lane

	issuing  *issuing       // nil: no launch is issued again
	launched map[uint64]int // by what is launched, in which shape; nil: nothing is timed
}

// moveCost is what a worker takes to find out what to do next, and waits for the
// engine's lock. Measured on an H200, medians of jobs, in_plan and in_lock of
// worker_seconds over moves: 39 us for GPT-2 medium, 53 for ResNet-152, 80 for others.
const moveCost = 50 * time.Microsecond

// simulatedTrust is how often what a kernel makes must have been the same: logs have few iterations, and a job is to be shown at rest.
const simulatedTrust = 1

// laneGap is what lies between a piece that leaves and the next where that is queued once the first
// has ended, because memory is being mapped: to see the end and to queue it. On H200s lane_submit is 7 to 10 us a
// piece, and a piece is behind the one before by some 12.
const laneGap = 12 * time.Microsecond

// lane copies moves out, one after the other.
type lane struct {
	thread *sim.Thread
	copier *explicit.Copier
	moves  []*explicit.Move
}

// directionWorker is the worker of one direction.
type directionWorker struct {
	worker
	direction um.Direction
	mover     *explicit.Mover
}

func newExplicit(t *trace.Trace, o Options, budget int64) *explicitEngine {
	g := sim.New(o.Profile, sim.Options{CapacityBytes: budget})
	x := &explicitEngine{arrived: g.NewGate(), states: make([]explicit.State, 1), tickets: make([]uint32, 1), lastSeq: make([]uint64, 1)}
	x.loop = newLoop(g, roomSource{x}, x.wake)
	x.app = newApplication(t, o, g, x)
	x.app.queue, x.app.copiesSlow = strictQueue, true
	if x.app.err = x.open(t, o, budget); x.app.err != nil {
		return x
	}
	return x
}

func (x *explicitEngine) open(t *trace.Trace, o Options, budget int64) error {
	space := (t.PeakLiveBytes()*addressSpace*4/explicit.PageBytes + 64) * explicit.PageBytes
	base, err := x.driver.AddressReserve(space, explicit.PageBytes, 0)
	if err != nil {
		return err
	}
	hostBytes := explicit.WholePages(2 * t.PeakLiveBytes())
	if x.host, err = hostpool.New(x.driver, hostpool.Config{BudgetBytes: hostBytes}, zap.NewNop()); err != nil {
		return err
	}
	// No Checksums: a launch log does not say what is written, so nothing leaves without a copy.
	c := explicit.Config{
		BudgetBytes: budget, HostBudgetBytes: hostBytes, Addresses: cuda.Range{Base: base, Bytes: space},
		Victims: evict.NextUse, Ahead: true, Packs: !o.NoPacks,
	}
	if o.Replay {
		x.issuing = newIssuing(t)
		c.Level = o.level
	}
	if o.Replay && o.level != explicit.LevelNothing { // else the memory to verify in is given back
		c.Replay, c.TrustAfter, c.ProveAfter, c.ScratchBytes = um.ReplayOn, simulatedTrust, simulatedTrust, explicit.ScratchFor(c)
		x.issuing.kept = c.ScratchBytes + explicit.TempsBytes(c.ScratchBytes)
		c.BudgetBytes -= x.issuing.kept
	}
	if o.Policy == PolicyLRU {
		c.Victims, c.Ahead = evict.LRU, false
	}
	x.runtime = explicit.New(c, x)
	x.engine = x.runtime
	for _, d := range []um.Direction{um.In, um.Out} {
		w := &directionWorker{direction: d, worker: worker{thread: x.gpu.Thread([]string{"in", "out"}[d])}}
		word, err := w.thread.HostAlloc(4096)
		if err != nil {
			return err
		}
		if w.mover, err = explicit.NewMover(w.thread, word); err != nil {
			return err
		}
		w.take = func() func() {
			m, ok := x.runtime.Next(d)
			if !ok {
				return nil
			}
			return func() { x.gpu.At(x.gpu.Now()+moveCost, func() { x.begin(w, m) }) }
		}
		x.directions[d], x.workers = w, append(x.workers, &w.worker)
	}
	x.lane.thread = x.gpu.Thread("copies out")
	word, err := x.lane.thread.HostAlloc(4096)
	if err != nil {
		return err
	}
	x.lane.copier, err = explicit.NewCopier(x.lane.thread, word)
	return err
}

// roomSource makes segments of plain device memory, for which room must be made.
type roomSource struct{ x *explicitEngine }

func (s roomSource) Acquire(bytes int64) (cuda.Ptr, error) {
	x := s.x
	x.wake()
	for !x.runtime.ReservePlain(bytes) {
		if !x.gpu.Step() {
			return 0, fmt.Errorf("replay: no room can be made for %d bytes of plain memory", bytes)
		}
	}
	p, err := x.driver.MemAlloc(bytes)
	if err == nil {
		x.plain += bytes
	}
	return p, err
}

func (s roomSource) Release(p cuda.Ptr, bytes int64) error {
	s.x.plain -= bytes
	s.x.runtime.SetPlainBytes(s.x.plain)
	return s.x.driver.MemFree(p)
}

// shape is that of an operation, as the launch hook tells it.
func shape(e *trace.Event) uint32 {
	hash := uint64(e.Bytes)
	for i := range e.Grid {
		hash = trace.Mix(hash, uint64(e.Grid[i])<<32|uint64(e.Block[i]))
	}
	return uint32(hash)
}

// times says whether an operation is timed: about as often as the launch hook does.
func (x *explicitEngine) times(e *trace.Event) bool {
	if x.launched == nil {
		return false
	}
	kind := trace.Mix(uint64(e.Copy)<<32|uint64(e.Function), uint64(shape(e)))
	n := x.launched[kind]
	x.launched[kind]++
	return n > 0 && (n < 4 || trace.Mix(kind, uint64(n))>>8%uint64(min(n/2, 512)) == 0)
}

// launch reports an operation and launches it, at once or when what it names can be used.
func (x *explicitEngine) launch(e *trace.Event, finished func(time.Duration)) {
	o, err := x.operation(e, finished)
	if err != nil {
		x.app.err = err
		return
	}
	if done := o.kernel.Done; x.times(e) {
		o.kernel.Done = func(at time.Duration) {
			x.runtime.Timed(o.Seq, duration(e))
			done(at)
		}
	}
	for _, slot := range x.slots {
		x.lastSeq[slot] = o.Seq
	}
	o.Shape, o.ToHost = shape(e), e.Kind == trace.KindCopy && e.Copy == trace.CopyDeviceToHost
	launched := func() {}
	if s := x.issuing; s != nil {
		launched = s.operation(x, x.app.next-1, e, &o.Op)
		o.kernel.Duration, s.owed = o.kernel.Duration+s.owed, 0
	}
	x.runtime.Op(o.Op)
	slots := append([]uint32(nil), x.slots...)
	x.held, x.heldSeq = func() {
		var ticket uint32
		for _, slot := range slots {
			if x.states[slot] == explicit.Arriving && x.tickets[slot] > ticket {
				ticket = x.tickets[slot]
			}
		}
		if ticket > 0 {
			x.gpu.WaitGate(o.stream, x.arrived, uint64(ticket))
		}
		x.gpu.Launch(o.stream, o.kernel)
		launched()
	}, o.Seq
	if !x.release() {
		x.app.blocked = true
	}
	x.wake()
}

// release launches the operation that waits, if it may go.
func (x *explicitEngine) release() bool {
	if x.held == nil || !x.runtime.Ready(x.heldSeq) {
		return false
	}
	launch := x.held
	x.held = nil
	launch()
	return true
}

// wake lets the operation that waits go, if it may, and wakes the workers.
func (x *explicitEngine) wake() {
	if x.release() {
		x.app.unblock()
	}
	x.loop.wake()
}

// begin carries the first part of a move out; the worker goes on to the next when it has queued the copy.
func (x *explicitEngine) begin(w *directionWorker, m *explicit.Move) {
	if m.Kind == explicit.MoveVerify {
		w.busy = false
		x.verify(m)
		x.wake()
		return
	}
	issues := len(m.Launches) > 0
	m.Checksum = false // there are no contents
	ticket, err := w.mover.Begin(m)
	if err != nil {
		x.fail(err)
		return
	}
	x.paging++
	x.gpu.At(w.thread.Now(), func() {
		x.paging--
		w.busy = false
		switch {
		case issues && m.Direction() == um.In:
			x.runtime.Submitted(m, 0)
			x.makeAgain(w, m)
		case m.Kind == explicit.MoveEvict:
			x.runtime.Submitted(m, 0)
			x.sum(m)
			if !m.Copied() {
				x.drop(w, m)
				break
			}
			x.lane.moves = append(x.lane.moves, m)
			if len(x.lane.moves) == 1 {
				x.copyOut()
			}
		case ticket == 0:
			x.runtime.Done(m)
		default:
			x.runtime.Submitted(m, ticket)
			x.gpu.Callback(w.mover.Stream(), func(at time.Duration) { x.finish(w, m, ticket) })
		}
		x.wake()
	})
}

// copyOut queues the next piece of the first move out.
func (x *explicitEngine) copyOut() {
	l := &x.lane
	m := l.moves[0]
	piece, err := l.copier.Next(m, explicit.PieceBytes)
	if err != nil {
		x.fail(err)
		return
	}
	x.gpu.Callback(l.copier.Stream(), func(time.Duration) {
		if piece.Last {
			l.moves = l.moves[1:]
			x.finish(x.directions[um.Out], m, 0)
		}
		if len(l.moves) == 0 {
			return
		}
		at := x.gpu.Now()
		if x.paging > 0 {
			at += laneGap
		}
		x.gpu.At(at, x.copyOut)
	})
}

// finish ends a move whose copy is done.
func (x *explicitEngine) finish(w *directionWorker, m *explicit.Move, ticket uint32) {
	if w.direction == um.In && ticket != 0 {
		x.arrived.Open(uint64(ticket))
	}
	if err := w.mover.Finish(m); err != nil {
		x.fail(err)
		return
	}
	x.paging++
	x.gpu.At(w.thread.Now(), func() {
		x.paging--
		x.runtime.Done(m)
		x.wake()
	})
}

func (x *explicitEngine) sample(s *Sample) {
	s.ResidentBytes = x.runtime.Stats().DeviceBytes
}

func (x *explicitEngine) predictions() (ops, predicted int64) {
	h := x.runtime.Stats().History
	return h.Ops, h.Predicted
}

// The engine's view of the process: the launch hook's part.

func (x *explicitEngine) Publish(uint32, cuda.Range) {}

func (x *explicitEngine) Withdraw(uint32, cuda.Range) {}

func (x *explicitEngine) SetState(slot uint32, s explicit.State, ticket uint32) {
	for len(x.states) <= int(slot) {
		x.states, x.tickets, x.lastSeq = append(x.states, 0), append(x.tickets, 0), append(x.lastSeq, 0)
	}
	x.states[slot], x.tickets[slot] = s, ticket
}

func (x *explicitEngine) LastSeq(slot uint32) uint64 { return x.lastSeq[slot] }

func (x *explicitEngine) TakeHost(bytes int64) ([]cuda.Range, bool) {
	extents, ready, err := x.host.TryTake(bytes)
	return extents, ready && err == nil
}

// Offer, Recall, SetApart and Reserve: nothing is held in the simulation, where the engine's lock costs nothing.

func (x *explicitEngine) Offer(cuda.Range, int) bool { return false }

func (x *explicitEngine) Recall(cuda.Ptr) bool { return true }

func (x *explicitEngine) SetApart(cuda.Ptr, int64, int) bool { return true }

func (x *explicitEngine) Reserve(cuda.Range, int64, int, int) bool { return false }

func (x *explicitEngine) GiveHost(r []cuda.Range) {
	if err := x.host.Give(r); err != nil {
		x.fail(err)
	}
}

// GiveClones: a log says nothing of small memory.
func (x *explicitEngine) GiveClones([]cuda.Range) {}

// EndReplay gives the budget what was kept for verifying.
func (x *explicitEngine) EndReplay() { x.runtime.SetBudget(x.runtime.Budget() + x.issuing.kept) }
