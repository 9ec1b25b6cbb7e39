package live

import (
	"strings"

	"github.com/penstock-gpu/penstock/um/live/stats"
)

// Stats reports the engine's state.
func (l *Live) Stats() stats.Stats {
	plain := l.plain.Stats()
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.Engine.CatchUp()
	s := stats.Stats{
		AllocatedBytes: l.LiveBytes(), AllocatedPeakBytes: max(l.Counts.LivePeak.Load(), plain.FrontPeakBytes),
		ReservedBytes: l.ReservedBytes(), ReservedPeakBytes: l.Counts.ReservedPeak.Load(),
		ResidentBytes: l.PlainBytes.Load(), ResidentPeakBytes: plain.ReservedPeakBytes,
		BudgetBytes: l.Budget, HostBudgetBytes: l.HostBudget(), DeviceTotalBytes: l.Driver.Info().TotalBytes,
		Allocations: l.Counts.Allocs.Load() + plain.FrontAllocs, Frees: l.Counts.Frees.Load() + plain.FrontFrees,
		Retries: l.Counts.Retries.Load() + plain.Retries, OOMs: l.Counts.OOMs.Load(),
		Faults: stats.Unavailable, DroppedEvents: stats.Unavailable, H2DBytes: 0, PredictionHitRate: stats.Unavailable,
		Process: l.config.Label, Engine: "plain", Policy: l.config.Policy.Name, EngineWhy: l.why, Hooked: l.Hook != nil, MissedRoutes: l.config.MissedRoutes,
		PlanState: plain.PlanState, PlanWhy: plain.PlanWhy, PlanBytes: plain.PlanBytes, PlannedAllocs: plain.Planned, ScriptedAllocs: plain.Scripted, UnplannedAllocs: plain.Unplanned,
		Stitches: plain.Stitches, StitchedHandles: plain.StitchedHandles, StitchReuses: plain.StitchReuses,
	}
	s.IterationSeconds, s.InMemoryShare = l.speed.iteration(), l.speed.share()
	s.AllocationsLive = s.Allocations - s.Frees
	s.DeviceFreeBytes = max(0, l.Budget-s.AllocatedBytes)
	if l.Failed != nil {
		s.Failure = l.Failed.Error()
	}
	if l.Hook != nil {
		c := l.Hook.Counters()
		s.Launches = int64(c.Launches)
		s.OpaqueLaunches, s.DroppedRecords, s.UnhookedSymbols = int64(c.Opaque), int64(c.Dropped), int64(c.Unhooked)
		s.UnhookedNames = strings.Fields(c.UnhookedNames)
	}
	l.Engine.Report(&s)
	return s
}

// Judge adds to the statistics of a job that has ended how near it came to an oracle, where the engine can say so. The
// command that it is given simulates that; without one, the evidence is left in the statistics. It takes two seconds at
// most, and is called after Close.
func (l *Live) Judge(s *stats.Stats, command string) { l.Engine.Assess(s, command) }

// ResetPeaks makes the present the peak.
func (l *Live) ResetPeaks() {
	l.Mu.Lock()
	l.Engine.CatchUp() // with what the fronts have served
	l.Mu.Unlock()
	l.plain.ResetPeaks()
	l.Counts.LivePeak.Store(l.LiveBytes())
	l.Counts.ReservedPeak.Store(l.ReservedBytes())
}
