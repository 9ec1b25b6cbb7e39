package paged

import (
	"fmt"
	"runtime"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/managed"
)

// keepGates has the gates of streams on which nothing is held back follow the operations at a
// distance. A gate's word compares cyclically: one that was opened so long ago that 2^31
// operations have come since would hold nothing back. The caller holds the lock.
func (e *Engine) keepGates() {
	proc := e.proc
	const distance = 1 << 29
	read := proc.Hook.Read()
	if e.gateWords == 0 || read-e.gatesKept < distance {
		return
	}
	e.gatesKept = read
	for i := range hook.MaxStreams {
		if number, _ := proc.Streams.At(i); number < 0 || !e.runtime.HeldOn(number) {
			proc.Hook.OpenGate(i, read)
		}
	}
}

// loop feeds the runtime.
func (e *Engine) loop() {
	proc := e.proc
	defer proc.Threads.Done()
	runtime.LockOSThread()
	if !proc.BindThread() {
		return
	}
	for {
		proc.Mu.Lock()
		if proc.Closing {
			proc.Mu.Unlock()
			return
		}
		proc.Follow()
		e.feedFaults()
		if proc.Failed != nil {
			e.letRun() // also streams that are new, and before far ahead is reached
		} else {
			e.keepGates()
		}
		held := e.runtime.Held()
		if e.wakeDue(e.runtime.Epoch(), held) {
			e.work[um.In].Signal()
			e.work[um.Out].Signal()
		}
		busy := e.runtime.Queued() > 0
		now := time.Now()
		proc.Vain.Look(now)
		idle := proc.Idle.Look(now)
		if idle > headPatience && e.runtime.AwaitsWork() { // for whose end the driver may keep a move waiting
			proc.Vain.End()
		}
		if proc.Nagger.Due(idle) {
			proc.Log.Warn("a launch is held back, and no move is made", zap.Duration("for", idle.Round(time.Second)), zap.Bool("moving", e.runtime.Moving()))
		}
		switch {
		case !held:
			e.moved()
		case proc.Vain.Duration > process.WatchdogPatience:
			proc.Fail(fmt.Errorf("a launch has been held back for %s without any move being made", process.WatchdogPatience))
		case idle > headPatience && !e.runtime.Moving():
			e.letHeadGo()
		}
		proc.Mu.Unlock()
		if busy {
			time.Sleep(process.BusyWait) // no doorbell: a launch need not pay for waking this thread
		} else {
			proc.Hook.Wait(process.IdleWait)
		}
	}
}

// letHeadGo ends the wait of the launch that has been held back longest, once the
// workers of both directions have been asked again and know nothing to do for it: on a
// busy machine they may not have had their turn in all that time. The caller holds the lock.
func (e *Engine) letHeadGo() {
	if e.askedAt == 0 {
		e.askedAt = e.runtime.Epoch()
	}
	for d := range e.work {
		if e.lookedAt[d] < e.askedAt {
			e.work[d].Signal()
			return
		}
	}
	e.runtime.LetHeadGo()
	e.moved()
}

// moved notes that something went on. The caller holds the lock.
func (e *Engine) moved() {
	e.proc.Moved()
	e.askedAt, e.lookedAt = 0, [2]uint64{}
}

// wakeDue says whether the workers are to look again: after some events, after any
// while an operation is held back, or some time after the last of a few, for
// events are also fed in by the job's own threads and may be the last for long.
func (e *Engine) wakeDue(epoch uint64, held bool) bool {
	const wakeEvery, wakeAfter = 16, time.Millisecond
	now := time.Now()
	due := epoch-e.broadcastAt >= wakeEvery || held && epoch != e.broadcastAt
	if !due && (epoch == e.broadcastAt && !held || now.Sub(e.broadcastTime) < wakeAfter) {
		return false
	}
	e.broadcastAt, e.broadcastTime = epoch, now
	return true
}

// prepare makes host pages for address space that is not used yet, while there is
// nothing else to do for the bus.
func (e *Engine) prepare() {
	proc := e.proc
	defer proc.Threads.Done()
	const blocks = 32
	mover := managed.NewDirect(e.space)
	proc.Mu.Lock()
	defer proc.Mu.Unlock()
	for !proc.Closing && proc.Failed == nil && e.preparedBytes < proc.HostBudget() {
		m, ok := e.runtime.Prepare(blocks)
		if !ok {
			return
		}
		proc.Mu.Unlock()
		err := mover.Do(m)
		proc.Mu.Lock()
		if err != nil {
			proc.Fail(err)
			return
		}
		e.preparedBytes += blocks * managed.BlockBytes
		e.runtime.Done(m)
	}
}

// worker carries out the moves of one direction.
func (e *Engine) worker(d um.Direction) {
	proc := e.proc
	defer proc.Threads.Done()
	runtime.LockOSThread()
	proc.Mu.Lock()
	defer proc.Mu.Unlock()
	if err := proc.Driver.BindThread(); err != nil {
		proc.Fail(err)
		return
	}
	var mover managed.Mover
	if e.space != nil {
		mover = managed.NewDirect(e.space)
	} else {
		s, err := managed.NewStreamed(proc.Driver)
		if err != nil {
			proc.Fail(err)
			return
		}
		mover = s
	}
	defer func() {
		if err := mover.Close(); err != nil {
			proc.Log.Debug("closing a mover", zap.Error(err))
		}
	}()
	for !proc.Closing && proc.Failed == nil {
		proc.Drain() // what is already queued decides better than what was known before
		m, ok := e.runtime.Next(d)
		if !ok {
			e.lookedAt[d] = e.runtime.Epoch()
			e.work[d].Wait()
			continue
		}
		e.work[d].Signal() // one at a time: the next looks while this one moves
		proc.Mu.Unlock()
		began := proc.Driver.Now()
		err := mover.Do(m)
		ended := proc.Driver.Now()
		proc.Mu.Lock()
		e.moved()
		if err != nil {
			proc.Fail(err)
			return
		}
		proc.Progress()
		e.runtime.Done(m)
		e.moveTime[d] += ended - began
		if proc.Sink != nil && !proc.Paused && (m.Kind == managed.MoveFetch || m.Kind == managed.MoveEvict) {
			proc.Sink.Move(m.Ranges, d, began, ended)
		}
		e.work[um.In+um.Out-d].Signal() // what came or went may be what the other side waits for
	}
}
