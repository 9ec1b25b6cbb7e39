package swapped

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/um/explicit/hostpool"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// unfinished says whether something is under way after which what waits may go on, however long it takes: a move,
// pinned memory that is being made, or an operation of the job's. The caller holds the lock.
func (e *Engine) unfinished() bool {
	asking := uint64(0)
	if e.asking != nil {
		asking = e.asking.seq
	}
	return e.runtime.Moving() || e.growing || e.runtime.Running(asking) > longRun
}

// watch ends the engine when a launch waits in vain, says when one waits for long, and answers for how
// long nothing has moved. The caller holds the lock.
func (e *Engine) watch(held bool) (idle time.Duration) {
	proc, now := e.proc, time.Now()
	proc.Idle.Look(now)
	proc.Vain.Look(now)
	switch {
	case !held || e.runtime.Moving():
		proc.Moved()
	case e.unfinished():
		proc.Vain.End()
	}
	if held && !e.runtime.Moving() && proc.Idle.Duration > lookAgainPatience && now.Sub(e.lookedAgain) > lookAgainPatience {
		e.lookedAgain = now
		e.runtime.LookAgain()
		proc.Log.Debug("a launch waits and nothing moves: everything is looked at again", zap.Duration("for", proc.Idle.Round(time.Millisecond)), zap.String("state", e.runtime.Explain()))
	}
	if proc.Nagger.Due(proc.Idle.Duration) {
		proc.Log.Warn("a launch waits for memory that is in use", zap.Duration("for", proc.Idle.Round(time.Second)), zap.String("state", e.runtime.Explain()),
			zap.Bool("asks", e.asking != nil), zap.Uint64("reported", e.runtime.Reported()), zap.Uint64("head", e.hook.Head()))
	}
	if held && !e.runtime.Moving() && proc.Failed == nil {
		err := e.runtime.Hopeless()
		if err == nil {
			err = e.deadlock()
		}
		if err != nil {
			proc.Fail(err)
		}
	}
	return proc.Idle.Duration
}

// deadlock is why the launch that waits will do so for ever: nothing has moved for so long, and nothing that runs can
// change that. The caller holds the lock.
func (e *Engine) deadlock() error {
	switch {
	case e.proc.Vain.Duration < e.patience(process.WatchdogPatience):
		return nil
	case e.hostErr != nil:
		return e.hostErr
	}
	return fmt.Errorf("a launch has waited for %s without any move being possible: %s", process.WatchdogPatience, e.runtime.Explain())
}

// patience is for how long something waits in vain that otherwise does so for as long as usual: what the machine refuses
// to the pinned pool may come, and where the host budget is spent only the job can free some. The caller holds the lock.
func (e *Engine) patience(usual time.Duration) time.Duration {
	var growth *hostpool.GrowthError
	switch {
	case errors.As(e.hostErr, &growth):
		return growthPatience
	case e.hostErr != nil:
		return hostPatience
	}
	return usual
}

// check finds out whether the context has ended. The lock is not held: the driver may be busy for long.
func (e *Engine) check() {
	_, err := e.proc.Driver.StreamQuery(e.lane.copier.Stream())
	if err == nil {
		return
	}
	e.proc.Mu.Lock()
	defer e.proc.Mu.Unlock()
	e.proc.Fail(fmt.Errorf("while something waited for memory: %w", err))
}
