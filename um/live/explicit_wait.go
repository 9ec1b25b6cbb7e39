package live

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/um/explicit/hostpool"
)

// unfinished says whether something is under way after which what waits may go on, however long it takes: a move,
// pinned memory that is being made, or an operation of the job's. The caller holds the lock.
func (e *swap) unfinished() bool {
	asking := uint64(0)
	if e.asking != nil {
		asking = e.asking.seq
	}
	return e.runtime.Moving() || e.growing || e.runtime.Running(asking) > longRun
}

// watch ends the engine when a launch waits in vain, says when one waits for long, and answers for how
// long nothing has moved. The caller holds the lock.
func (e *swap) watch(held bool) (idle time.Duration) {
	proc, now := e.proc, time.Now()
	proc.idle.Look(now)
	proc.vain.Look(now)
	switch {
	case !held || e.runtime.Moving():
		proc.moved()
	case e.unfinished():
		proc.vain.End()
	}
	if held && !e.runtime.Moving() && proc.idle.Duration > lookAgainPatience && now.Sub(e.lookedAgain) > lookAgainPatience {
		e.lookedAgain = now
		e.runtime.LookAgain()
		proc.log.Debug("a launch waits and nothing moves: everything is looked at again", zap.Duration("for", proc.idle.Round(time.Millisecond)), zap.String("state", e.runtime.Explain()))
	}
	if proc.nagger.Due(proc.idle.Duration) {
		proc.log.Warn("a launch waits for memory that is in use", zap.Duration("for", proc.idle.Round(time.Second)), zap.String("state", e.runtime.Explain()),
			zap.Bool("asks", e.asking != nil), zap.Uint64("reported", e.runtime.Reported()), zap.Uint64("head", e.hook.Head()))
	}
	if held && !e.runtime.Moving() && proc.failed == nil {
		err := e.runtime.Hopeless()
		if err == nil {
			err = e.deadlock()
		}
		if err != nil {
			proc.fail(err)
		}
	}
	return proc.idle.Duration
}

// deadlock is why the launch that waits will do so for ever: nothing has moved for so long, and nothing that runs can
// change that. The caller holds the lock.
func (e *swap) deadlock() error {
	switch {
	case e.proc.vain.Duration < e.patience(watchdogPatience):
		return nil
	case e.hostErr != nil:
		return e.hostErr
	}
	return fmt.Errorf("a launch has waited for %s without any move being possible: %s", watchdogPatience, e.runtime.Explain())
}

// patience is for how long something waits in vain that otherwise does so for as long as usual: what the machine refuses
// to the pinned pool may come, and where the host budget is spent only the job can free some. The caller holds the lock.
func (e *swap) patience(usual time.Duration) time.Duration {
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
func (e *swap) check() {
	_, err := e.proc.driver.StreamQuery(e.lane.copier.Stream())
	if err == nil {
		return
	}
	e.proc.mu.Lock()
	defer e.proc.mu.Unlock()
	e.proc.fail(fmt.Errorf("while something waited for memory: %w", err))
}
