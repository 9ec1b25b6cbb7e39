package swapped

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// loop feeds the runtime, answers what launches ask, and wakes the workers.
func (e *Engine) loop() {
	proc := e.proc
	defer proc.Threads.Done()
	runtime.LockOSThread()
	process.FinePauses()
	if !proc.BindThread() {
		return
	}
	var reported, checked time.Time
	var quiet process.Idle // nothing at all has happened, as while a kernel runs for long
	for {
		proc.Mu.Lock()
		if proc.Closing {
			proc.Mu.Unlock()
			return
		}
		proc.Follow()
		n := e.runtime.Epoch()
		if quiet.Look(time.Now()); n != e.waked { // not e.epoch, which the workers store as well
			quiet.End()
		}
		e.epoch.Store(n)
		held := e.runtime.Held() || e.asking != nil
		if n != e.waked || held && !e.runtime.Moving() { // what was refused may be possible now, such as host memory
			e.waked = n
			e.wakeAll()
		}
		busy := e.runtime.Queued() > 0 || held
		idle := e.watch(held)
		e.answer()
		// The last operations of streams that nobody is launching on have not been
		// reported, and would keep what they name on the device for ever.
		ask := held && !e.runtime.Moving() && idle > reportPatience && time.Since(reported) > reportPatience
		check := (held || e.runtime.WantsPlain()) && e.lane != nil && proc.Failed == nil && time.Since(checked) > process.CheckPatience
		proc.Mu.Unlock()
		if ask {
			e.hook.ReportAll()
			reported = time.Now()
		}
		if check { // when the context has ended nothing finishes any more
			e.check()
			checked = time.Now()
		}
		if busy {
			process.Pause(process.PauseAfter(max(idle, quiet.Duration)))
		} else {
			proc.Hook.Wait(process.IdleWait)
		}
	}
}

// worker is the thread that carries out the moves of one direction.
type worker struct {
	e         *Engine
	direction um.Direction
	mover     *explicit.Mover
	maker     *explicit.Mover // of moves in, where memory is made again: it issues the launches
	made      hook.Word       // the tickets of these that are done
	arrived   hook.Word       // the tickets of the copies in, or of the checksums of what leaves, that are done
	lane      *lane           // of moves out: copies them
	flights   []flight        // in the order of their tickets
	copying   bool            // any of them is being copied, or waits for its turn
	since     time.Duration   // copying is what it is
	checked   time.Time       // when one of them was last seen to end, or asked for
	pressedAt time.Duration   // it was last looked at how busy it is
	free      time.Duration   // it had nothing to do until then
	spent     *[workerParts]time.Duration
}

// What a worker's time goes to.
const (
	portLock   = iota // waiting for the engine's lock
	portPlan          // finding out what to do
	portDraft         // of that, without the lock
	portBegin         // in the driver, to begin a move
	portFinish        // in the driver, to end one
	portRest          // nothing to begin, and moves are under way
	portIdle          // nothing to do
	workerParts
)

var partNames = [workerParts]string{"lock", "plan", "draft", "begin", "finish", "rest", "idle"}

// timed runs what takes time without the lock.
func (p *worker) timed(part int, f func()) {
	proc := p.e.proc
	p.e.epoch.Store(p.e.runtime.Epoch())
	began := proc.Driver.Now()
	proc.Mu.Unlock()
	f()
	ended := proc.Driver.Now()
	proc.Mu.Lock()
	p.spent[part] += ended - began
	locked := proc.Driver.Now()
	p.spent[portLock] += locked - ended
	p.show(part, began, ended)
	p.show(portLock, ended, locked)
	p.e.driverTime[p.direction] = p.mover.Spent()
}

// planned ends a time that went to finding out what to do, and answers the end.
func (p *worker) planned(began time.Duration) time.Duration {
	now := p.e.proc.Driver.Now()
	p.spent[portPlan] += now - began
	p.show(portPlan, began, now)
	return now
}

// show puts what the thread did into the time line.
func (p *worker) show(part int, from, to time.Duration) {
	track := timeline.WorkIn
	if p.direction == um.Out {
		track = timeline.WorkOut
	}
	p.e.proc.Config.Timeline.Add(timeline.Span{Track: track, Name: partNames[part], From: from, To: to})
}

// showMove puts a move that has ended into the time line.
func (p *worker) showMove(f *flight) {
	track := timeline.In
	if p.direction == um.Out {
		track = timeline.Out
	}
	t := p.e.proc.Config.Timeline
	if t != nil {
		t.Add(timeline.Span{Track: track, Name: f.move.Doing(), From: f.began, To: p.e.proc.Driver.Now(), Bytes: f.move.Bytes, Detail: f.move.By})
	}
}

// flight is a move that is under way.
type flight struct {
	move    *explicit.Move
	ticket  uint32 // of the copy in, or of the checksum; 0 when there is none, or it has been read
	lane    uint32 // the lane's ticket of a move out that is copied
	copied  bool   // it is copied
	making  bool   // it is made again: the ticket is the maker's
	makings int
	began   time.Duration
}

// work is a worker's thread.
func (e *Engine) work(d um.Direction) {
	proc := e.proc
	defer proc.Threads.Done()
	runtime.LockOSThread()
	process.FinePauses()
	proc.Mu.Lock()
	defer proc.Mu.Unlock()
	p, err := newWorker(e, d)
	if err == nil {
		err = p.run()
	}
	if err != nil {
		proc.Fail(err)
	}
	if p == nil {
		return
	}
	if p.lane != nil {
		close(p.lane.moves)
	}
	proc.Log.Debug("a worker ends", zap.Int("direction", int(d)), zap.Durations("lock_plan_draft_begin_finish_rest_idle", p.spent[:]))
}

func newWorker(e *Engine, d um.Direction) (*worker, error) {
	proc := e.proc
	if err := proc.Driver.BindThread(); err != nil {
		return nil, err
	}
	mover, err := explicit.NewMover(proc.Driver, e.words.finished(d))
	if err != nil {
		return nil, err
	}
	if d == um.Out || e.config.Verify {
		if err := mover.Checksums(e.kernels, mostInFlight, e.config.Verify); err != nil {
			return nil, err
		}
	}
	p := &worker{e: e, direction: d, mover: mover, spent: &e.spent[d], arrived: hook.NewWord(e.words.finished(d))}
	if e.verifier != nil && d == um.Out {
		e.plain.verifying.Store(uintptr(mover.Stream()))
	}
	if e.verifier != nil && d == um.In {
		if p.maker, err = explicit.NewMover(proc.Driver, e.words.makings()); err != nil {
			return nil, err
		}
		if err := p.maker.Checksums(e.kernels, mostInFlight, false); err != nil {
			return nil, err
		}
		p.made = hook.NewWord(e.words.makings())
	}
	if d == um.Out {
		if p.lane, err = newLane(proc, e.words.pieces(), &e.gives); err != nil {
			return nil, err
		}
		e.lane = p.lane
		proc.Threads.Add(1)
		go p.lane.run()
	}
	return p, nil
}

// run carries out moves until the engine ends. The caller holds the lock, which is
// released for everything that takes time.
func (p *worker) run() error {
	e, proc := p.e, p.e.proc
	for !proc.Closing && proc.Failed == nil {
		if err := p.land(); err != nil {
			return err
		}
		began := proc.Driver.Now()
		proc.Drain() // what is already queued decides better than what was known before
		proc.Progress()
		if p.direction == um.Out {
			e.hostErr, e.growing = nil, false // it is asked for again
			if e.endVerifier {
				if err := p.closeVerifier(); err != nil {
					return err
				}
			}
		}
		if d := e.runtime.Draft(p.direction); d != nil {
			p.planned(began)
			p.timed(portDraft, d.Decide)
			began = proc.Driver.Now()
			e.runtime.Install(d)
			e.wake[um.In+um.Out-p.direction].Signal()
			if proc.Closing || proc.Failed != nil { // since the lock was released
				return nil
			}
		}
		m, ok := e.runtime.Next(p.direction)
		asked := p.planned(began)
		p.press(asked)
		var err error
		switch {
		case ok:
			err = p.begin(m)
		case len(p.flights) > 0:
			err = p.rest()
		case proc.Closing || proc.Failed != nil: // since the lock was last released: nobody will wake this thread
		default:
			e.wake[p.direction].Wait()
			p.spent[portIdle] += proc.Driver.Now() - asked
			p.show(portIdle, asked, proc.Driver.Now())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copy has the lane copy a flight's move.
func (p *worker) copy(f *flight) { f.lane, f.copied = p.lane.start(f.move), true }

// done says whether all of a flight is done but to unmap it. When the checksum of
// what leaves says that it has to be copied, it is from then on.
func (p *worker) done(f *flight) bool {
	if f.making {
		return false
	}
	if f.ticket != 0 {
		if !p.arrived.Reached(f.ticket) {
			return false
		}
		f.ticket = 0
		if p.lane != nil {
			p.mover.Summed(f.move)
			if f.move.Isolated {
				p.mover.Tried(f.move)
			}
			if f.move.Compare && !f.move.Clean && f.move.Copied() { // what is dropped stays
				p.copy(f)
			}
		}
	}
	return p.lane == nil || f.move.Clean || !f.move.Copied() || p.lane.reached(f.lane)
}

// note measures for how long copies are under way.
func (p *worker) note() {
	copying := slices.ContainsFunc(p.flights, func(f flight) bool { return f.copied })
	if copying == p.copying {
		return
	}
	now := p.e.proc.Driver.Now()
	if p.copying {
		p.e.moveTime[p.direction] += now - p.since
	}
	p.copying, p.since = copying, now
	p.e.pace[p.direction].idle()
}

// land ends the flights that are done. Those that are not copied overtake others.
func (p *worker) land() error {
	e, proc := p.e, p.e.proc
	defer p.note()
	for i := 0; i < len(p.flights); {
		if err := p.settle(&p.flights[i]); err != nil {
			return err
		}
		if !p.done(&p.flights[i]) {
			i++
			continue
		}
		f := p.flights[i]
		if f.copied {
			e.pace[p.direction].ended(f.move.Bytes, proc.Driver.Now())
		}
		p.flights = slices.Delete(p.flights, i, i+1)
		p.checked = time.Now()
		p.showMove(&f)
		switch {
		case f.move.Kind == explicit.MoveVerify:
			if f.move.Isolated && !e.accesses.judge(e, f.move) {
				f.move.Untried = true
				proc.Log.Debug("launches wrote to what was not known to be written to", zap.String("kernel", f.move.By), zap.Int("inputs", len(f.move.Changed)))
				e.runtime.Cancelled(f.move)
			} else {
				e.runtime.Done(f.move)
			}
			continue
		case f.move.Kind == explicit.MoveEvict && !f.move.Copied() && !f.move.Clean:
			proc.Log.Debug("what leaves is not what its recipe makes", zap.String("kernel", f.move.By), zap.Int64("bytes", f.move.Bytes))
			e.runtime.Cancelled(f.move)
			continue
		}
		var err error
		p.timed(portFinish, func() {
			e.gives.paging.Add(1)
			err = p.mover.Finish(f.move)
			e.gives.paging.Add(-1)
		})
		if err != nil {
			return err
		}
		now := proc.Driver.Now()
		if proc.Sink != nil && !proc.Paused && !f.move.Clean && f.move.Copied() && f.move.Kind != explicit.MoveMake {
			proc.Sink.Move([]cuda.Range{{Base: f.move.Chunk.Base, Bytes: f.move.Bytes}}, p.direction, f.began, now)
		}
		e.runtime.Done(f.move)
		e.wake[um.In+um.Out-p.direction].Signal()
	}
	return nil
}

// settle looks at a making whose ticket has been reached: what was made rightly is done, else its copy comes in.
func (p *worker) settle(f *flight) error {
	if !f.making || !p.made.Reached(f.ticket) {
		return nil
	}
	if p.maker.Made(f.move) {
		f.ticket, f.making = 0, false
		return nil
	}
	if !f.move.Copied() {
		return p.remake(f)
	}
	if err := p.fetchInstead(f); err != nil {
		return err
	}
	p.e.runtime.Submitted(f.move, f.ticket)
	return nil
}

// fetchInstead queues the copy of what a flight did not make rightly, or whose launches were refused.
func (p *worker) fetchInstead(f *flight) (err error) {
	p.e.runtime.Unmade(f.move)
	f.making, f.copied = false, true
	p.timed(portBegin, func() { f.ticket, err = p.mover.CopyIn(f.move) })
	return err
}

const (
	// pressedEvery is how often it is looked at whether the worker that maps is busy, and pressedAt the part of the time in which it
	// has nothing to do below which it is.
	pressedEvery = 20 * time.Millisecond
	pressedAt    = 0.2
)

// press says whether mapping memory is what all else waits for, and not the bus: then copies out give way to it.
func (p *worker) press(now time.Duration) {
	if p.direction != um.In || now-p.pressedAt < pressedEvery {
		return
	}
	free := p.spent[portIdle] + p.spent[portRest]
	p.e.gives.pressed.Store(float64(free-p.free) < pressedAt*float64(now-p.pressedAt))
	p.pressedAt, p.free = now, free
}

// rest waits for a flight, or until something has happened after which there may be another move. It looks without the lock, which
// others need the more often the more there is to do.
func (p *worker) rest() (err error) {
	before := p.e.runtime.Epoch()
	p.timed(portRest, func() {
		for rested := time.Now(); ; {
			process.Pause(process.ShortWait)
			if p.lane != nil {
				err = p.lane.err()
			}
			if err == nil && time.Since(p.checked) > process.CheckPatience {
				p.checked, err = time.Now(), p.mover.Check()
				if err == nil && p.maker != nil {
					err = p.maker.Check()
				}
			}
			if err != nil || p.e.epoch.Load() != before || slices.ContainsFunc(p.flights, p.reached) || time.Since(rested) > longestRest {
				return
			}
		}
	})
	return err
}

// reached says whether there is something to do for a flight.
func (p *worker) reached(f flight) bool {
	switch {
	case f.making:
		return p.made.Reached(f.ticket)
	case f.ticket != 0:
		return p.arrived.Reached(f.ticket)
	}
	return p.lane == nil || p.lane.reached(f.lane)
}

var errUnloaded = errors.New("modules have been unloaded since it was recorded")

// begin starts a move.
func (p *worker) begin(m *explicit.Move) error {
	e, proc := p.e, p.e.proc
	if p.direction == um.Out && !e.timing { // the job will be judged
		e.timing = true
		e.hook.SetTiming(true)
	}
	f := flight{move: m, began: proc.Driver.Now()}
	var err, refused, unverified error
	unloads := e.accesses.unloads // when the launches were recorded
	makes, verifies := m.Direction() == um.In && len(m.Launches) > 0, m.Kind == explicit.MoveVerify
	var outside []cuda.Ptr
	var byTrial []bool
	var uses [][]cuda.Ptr // of plain memory by products
	var written []explicit.Overwritten
	if makes || verifies {
		written = e.accesses.overwrites(e, m)
	}
	if makes && len(written) > 0 {
		m.Isolate(written)
	}
	grown := int64(0) // memory for what is made on the way
	if verifies {
		outside, byTrial = m.Outside(), e.accesses.ofTrials(m)
		if slices.ContainsFunc(m.Launches, e.accesses.isProduct) {
			uses = e.accesses.products.namedOutside()
		}
		if m.Isolated = e.accesses.trials(m); len(written) > 0 && !m.Isolated {
			m.Untried = true
			proc.Log.Debug("it is known by now that launches write to what they were to read", zap.String("kernel", m.By))
			e.runtime.Cancelled(m)
			return nil
		}
		if m.Isolated && (m.Proven || !p.mover.MayTry(m, e.verifier.scratch.Bytes)) {
			m.Untried = true
			proc.Log.Debug("there is no room to try launches", zap.String("kernel", m.By), zap.Int64("bytes", m.Bytes), zap.Int("inputs", len(m.Inputs)))
			e.runtime.Cancelled(m)
			return nil
		}
	}
	urgent := m.Direction() == um.In && e.gives.pressed.Load() && e.runtime.Stalling()
	if urgent {
		e.gives.urgent.Add(1)
	}
	p.timed(portBegin, func() {
		if verifies {
			f.ticket, unverified = p.verify(m, outside, byTrial, uses)
			return
		}
		e.gives.paging.Add(1)
		f.ticket, err = p.mover.Begin(m)
		e.gives.paging.Add(-1)
		if urgent {
			e.gives.urgent.Add(-1)
		}
		switch {
		case err != nil:
		case makes && e.hook.Unloads() != unloads:
			refused = errUnloaded
		case makes:
			if grown, refused = e.verifier.grow(e, m.TempsBytes()); refused == nil {
				f.ticket, refused = p.maker.Make(m, e.verifier.temps.Base)
			}
		case m.Kind != explicit.MoveEvict:
			f.copied = f.ticket != 0
		case !m.Compare && m.Copied():
			p.copy(&f)
		}
	})
	proc.Moved()
	if grown > 0 {
		proc.PlainBytes.Add(grown)
		e.PlainChanged()
	}
	if unverified != nil {
		m.Untried = errors.Is(unverified, errPoolBusy)
		proc.Log.Debug("what leaves cannot be made again", zap.String("kernel", m.By), zap.Int64("bytes", m.Bytes), zap.Error(unverified))
		e.runtime.Cancelled(m)
		return nil
	}
	if errors.Is(err, explicit.ErrNoMemory) {
		failure := e.runtime.Failed(m)
		e.lowered(err)
		return failure
	}
	if err != nil {
		return err
	}
	switch {
	case refused != nil && !m.Copied():
		return fmt.Errorf("%s was dropped and cannot be made again: %w", m.What(), refused)
	case refused != nil:
		proc.Log.Warn("a launch cannot be issued again: what it made is fetched", zap.Error(refused))
		if err := p.fetchInstead(&f); err != nil {
			return err
		}
	case makes:
		f.making = true
	}
	if m.Kind != explicit.MoveEvict && f.ticket == 0 {
		p.showMove(&f)
		e.runtime.Done(m)
		return nil
	}
	e.runtime.Submitted(m, f.ticket)
	if len(p.flights) == 0 {
		p.checked = time.Now()
	}
	p.flights = append(p.flights, f)
	p.note()
	return nil
}
