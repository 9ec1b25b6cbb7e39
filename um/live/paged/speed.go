package paged

import "github.com/penstock-gpu/penstock/um/live/process"

// Progressed is how far the job is, once the arena is open.
func (e *Engine) Progressed() (m process.SpeedMark, settled, replays bool) {
	if e.runtime == nil {
		return m, true, false
	}
	return process.SpeedMark{Ops: e.runtime.History.Now(), Period: e.runtime.History.Period()}, true, false
}

// InMemory is not known: faults are among what launches take here.
func (e *Engine) InMemory(int64) (seconds float64) { return 0 }
