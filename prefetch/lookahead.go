package prefetch

// Need is an allocation that is not wholly on the device and will be used.
type Need struct {
	Position int64 // of the operation that needs it
	ID       uint32
	Bytes    int64 // missing on the device
}

// Step is a coming operation's predicted effect on device memory.
type Step struct {
	Position               int64
	FreshBytes, FreedBytes int64 // allocated and freed just before it
}

// Limits bound the look-ahead.
type Limits struct {
	Degree int64 // operations ahead of Start; 0 = no bound
	Bytes  int64 // bytes fetched ahead; 0 = no bound
	Leave  int64 // bytes that leave now, after which the walk ends once nothing more may be fetched; 0 = no bound
	Spare  int64 // the position at which Plan.SpareBytes is wanted
	// Exact says that up to Spare victims leave only under what comes for their room. Else they
	// leave on their own, and what the last of them leaves over is not spent before
	// it has gone: another plan may take another victim, and would then bring back
	// what this one sent away, and so on for ever.
	Exact bool
}

// Victim is something that leaves to make room.
type Victim struct {
	Bytes int64
	Later bool // it is still to be used, and leaves between that use and the position that it makes room for
}

// Victims answers what could leave to make room at a position: the next victim
// that is not needed at that position, or between its leaving and that position,
// removing it from further answers; ok is false when nothing may leave.
type Victims func(position int64) (v Victim, ok bool)

// Plan is the outcome of a walk.
type Plan struct {
	Fetch      int   // how many of the needs, from the first, may be fetched now
	Evict      int   // how many victims were taken that should leave now, in order
	BlockedAt  int64 // position at which memory runs out although everything that may leave has left; -1 if none
	EndsAt     int64 // last position looked at
	FreshBytes int64 // predicted allocations within the walk
	// SpareBytes is what will be free at Limits.Spare and needed by nothing up to
	// there; all of it becomes free after ShortAt, the last position before at which
	// something has to leave, or 0.
	SpareBytes int64
	ShortAt    int64
}

// Look walks the future. needs are sorted by position; steps likewise.
// freeBytes is what is free now or will be without further decisions.
func Look(start int64, freeBytes int64, needs []Need, steps []Step, limits Limits, victims Victims) Plan {
	plan := Plan{BlockedAt: -1, EndsAt: start, SpareBytes: -1}
	account, lowest := freeBytes, freeBytes
	var over int64 // of account, what victims leave over
	var leaving int64
	fetching := true
	var ahead int64
	evictFor := func(position int64) bool {
		if account < 0 && position <= limits.Spare {
			plan.ShortAt = position
		}
		for account < 0 {
			v, ok := victims(position)
			if !ok {
				plan.BlockedAt = position
				return false
			}
			if !v.Later {
				plan.Evict++
				leaving += v.Bytes
				lowest += v.Bytes // it leaves now, so the room is there from now on
				if used := min(v.Bytes, -account); !limits.Exact || position > limits.Spare {
					lowest -= v.Bytes - used
					over += v.Bytes - used
				}
			}
			account += v.Bytes
		}
		return true
	}
	events := merged{needs, steps}
	if len(needs)+len(steps) == 0 {
		evictFor(start) // too much may be there although nothing is to come
	}
	for {
		e, ok := events.next()
		if !ok || limits.Degree > 0 && e.position > start+limits.Degree {
			break
		}
		if e.position > limits.Spare && plan.SpareBytes < 0 {
			plan.SpareBytes = account
		}
		plan.EndsAt = e.position
		plan.FreshBytes += e.fresh
		account += e.freed - e.fresh - e.missing
		if !evictFor(e.position) {
			break
		}
		if e.need {
			if fetching && lowest >= e.missing && (limits.Bytes == 0 || ahead+e.missing <= limits.Bytes || plan.Fetch == 0) {
				plan.Fetch++
				ahead += e.missing
				lowest -= e.missing
			} else {
				fetching = false
			}
		}
		lowest = min(lowest, account-over)
		if limits.Leave > 0 && leaving >= limits.Leave && !fetching {
			break
		}
	}
	if plan.SpareBytes < 0 { // the walk has ended before
		plan.SpareBytes, plan.ShortAt = events.spare(account, plan.ShortAt, limits.Spare)
	}
	return plan
}

// event is a need or a step.
type event struct {
	position              int64
	need                  bool
	missing, fresh, freed int64
}

// merged is needs and steps in one order, steps first.
type merged struct {
	needs []Need
	steps []Step
}

func (m *merged) next() (e event, ok bool) {
	switch {
	case len(m.steps) > 0 && (len(m.needs) == 0 || m.steps[0].Position <= m.needs[0].Position):
		s := m.steps[0]
		m.steps = m.steps[1:]
		return event{position: s.Position, fresh: s.FreshBytes, freed: s.FreedBytes}, true
	case len(m.needs) > 0:
		n := m.needs[0]
		m.needs = m.needs[1:]
		return event{position: n.Position, need: true, missing: n.Bytes}, true
	}
	return event{}, false
}

// spare goes on to a position where nothing more can leave: what is short is somehow done without.
func (m *merged) spare(account, shortAt, until int64) (int64, int64) {
	account = max(0, account)
	for {
		e, ok := m.next()
		if !ok || e.position > until {
			return account, shortAt
		}
		if account += e.freed - e.fresh - e.missing; account < 0 {
			account, shortAt = 0, e.position
		}
	}
}
