package live

// progressed is how far the job is, once the arena is open.
func (e *paged) progressed() (m speedMark, settled, replays bool) {
	if e.runtime == nil {
		return m, true, false
	}
	return speedMark{ops: e.runtime.History.Now(), period: e.runtime.History.Period()}, true, false
}

// inMemory is not known: faults are among what launches take here.
func (e *paged) inMemory(int64) (seconds float64) { return 0 }
