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
	// Exact says that victims leave only under what comes for their room. Else they
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
}

// Look walks the future. needs are sorted by position; steps likewise.
// freeBytes is what is free now or will be without further decisions.
func Look(start int64, freeBytes int64, needs []Need, steps []Step, limits Limits, victims Victims) Plan {
	plan := Plan{BlockedAt: -1, EndsAt: start}
	account, lowest := freeBytes, freeBytes
	var over int64 // of account, what victims leave over
	fetching := true
	var ahead int64
	evictFor := func(position int64) bool {
		for account < 0 {
			v, ok := victims(position)
			if !ok {
				plan.BlockedAt = position
				return false
			}
			if !v.Later {
				plan.Evict++
				lowest += v.Bytes // it leaves now, so the room is there from now on
				if used := min(v.Bytes, -account); !limits.Exact {
					lowest -= v.Bytes - used
					over += v.Bytes - used
				}
			}
			account += v.Bytes
		}
		return true
	}
	i, j := 0, 0
	for i < len(needs) || j < len(steps) {
		if j < len(steps) && (i >= len(needs) || steps[j].Position <= needs[i].Position) {
			s := steps[j]
			j++
			if limits.Degree > 0 && s.Position > start+limits.Degree {
				break
			}
			plan.EndsAt = s.Position
			plan.FreshBytes += s.FreshBytes
			account += s.FreedBytes - s.FreshBytes
			if !evictFor(s.Position) {
				break
			}
			lowest = min(lowest, account-over)
			continue
		}
		n := needs[i]
		i++
		if limits.Degree > 0 && n.Position > start+limits.Degree {
			break
		}
		plan.EndsAt = n.Position
		account -= n.Bytes
		if !evictFor(n.Position) {
			break
		}
		if fetching && lowest >= n.Bytes && (limits.Bytes == 0 || ahead+n.Bytes <= limits.Bytes || plan.Fetch == 0) {
			plan.Fetch++
			ahead += n.Bytes
			lowest -= n.Bytes
		} else {
			fetching = false
		}
		lowest = min(lowest, account-over)
	}
	return plan
}
