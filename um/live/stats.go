package live

// Stats reports the engine's state.
func (l *Live) Stats() Stats {
	plain := l.plain.Stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.engine.catchUp()
	s := Stats{
		AllocatedBytes: l.liveBytes(), AllocatedPeakBytes: max(l.counts.livePeak.Load(), plain.FrontPeakBytes),
		ReservedBytes: l.reservedBytes(), ReservedPeakBytes: l.counts.reservedPeak.Load(),
		ResidentBytes: l.plainBytes.Load(), ResidentPeakBytes: plain.ReservedPeakBytes,
		BudgetBytes: l.budget, HostBudgetBytes: l.hostBudget(), DeviceTotalBytes: l.driver.Info().TotalBytes,
		Allocations: l.counts.allocs.Load() + plain.FrontAllocs, Frees: l.counts.frees.Load() + plain.FrontFrees,
		Retries: l.counts.retries.Load() + plain.Retries, OOMs: l.counts.ooms.Load(),
		Faults: unavailable, DroppedEvents: unavailable, H2DBytes: 0, PredictionHitRate: unavailable,
		Process: l.config.Label, Engine: "plain", Policy: l.config.Policy.Name, EngineWhy: l.why, Hooked: l.hook != nil, MissedRoutes: l.config.MissedRoutes,
		PlanState: plain.PlanState, PlanWhy: plain.PlanWhy, PlanBytes: plain.PlanBytes, PlannedAllocs: plain.Planned, ScriptedAllocs: plain.Scripted, UnplannedAllocs: plain.Unplanned,
		Stitches: plain.Stitches, StitchedHandles: plain.StitchedHandles, StitchReuses: plain.StitchReuses,
	}
	s.IterationSeconds, s.InMemoryShare = l.speed.iteration(), l.speed.share()
	s.AllocationsLive = s.Allocations - s.Frees
	s.DeviceFreeBytes = max(0, l.budget-s.AllocatedBytes)
	if l.failed != nil {
		s.Failure = l.failed.Error()
	}
	if l.hook != nil {
		c := l.hook.Counters()
		s.Launches = int64(c.Launches)
		s.OpaqueLaunches, s.DroppedRecords, s.UnhookedSymbols = int64(c.Opaque), int64(c.Dropped), int64(c.Unhooked)
	}
	l.engine.report(&s)
	return s
}

// Judge adds to the statistics of a job that has ended how near it came to an oracle, where the engine can say so. The
// command that it is given simulates that; without one, the evidence is left in the statistics. It takes two seconds at
// most, and is called after Close.
func (l *Live) Judge(s *Stats, command string) { l.engine.assess(s, command) }

// ResetPeaks makes the present the peak.
func (l *Live) ResetPeaks() {
	l.mu.Lock()
	l.engine.catchUp() // with what the fronts have served
	l.mu.Unlock()
	l.plain.ResetPeaks()
	l.counts.livePeak.Store(l.liveBytes())
	l.counts.reservedPeak.Store(l.reservedBytes())
}
