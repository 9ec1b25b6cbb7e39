package swapped

import (
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
)

const (
	// mostTimedError is how far what launches take may be wrong, of itself, for an estimate of the speed in memory.
	mostTimedError = 0.1
	// estimatedOver is how many iterations an estimate is made from, at most: what comes again more often is taken for
	// a loop within an iteration (trace.FindSteady).
	estimatedOver = 40
)

// Progressed is how far the job is, once anything has left the device: before, there is nothing to say of its speed.
func (e *Engine) Progressed() (m process.SpeedMark, settled, replays bool) {
	if !e.timing {
		return m, true, false
	}
	m = process.SpeedMark{Ops: e.runtime.History.Now(), Period: e.runtime.History.Period(), Memory: e.grantTime + e.moveTime[um.In]}
	for _, spent := range e.runtime.Stalls.Spent {
		m.Memory += spent
	}
	replays = e.config.Replay != um.ReplayOff
	settled = !replays || !e.runtime.Stats().Trying
	return m, settled, replays
}

// InMemory is as the job is judged by at its end: what the launches of an iteration were timed to take, without their waits.
// What the log takes for an iteration has to be what the history does: a part of one would be the layers of a model.
func (e *Engine) InMemory(period int64) (seconds float64) {
	b, iterations := measure(e.recent(estimatedOver))
	if iterations == nil || b.TimedError > mostTimedError || operations(iterations.Events) != int(simulated*period) {
		return 0
	}
	return b.InMemorySeconds / float64(period)
}
