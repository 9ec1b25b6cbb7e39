package live

import (
	"fmt"
	"strings"

	"github.com/penstock-gpu/penstock/internal/size"
)

// Speaker is what lines for people begin with, for the process of a label.
func Speaker(label string) string {
	if label == "" {
		return "penstock"
	}
	return "penstock[" + label + "]"
}

// Verdict says in a few lines what happened and what limited the job.
func (s Stats) Verdict() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, Speaker(s.Process)+": "+format+"\n", args...) }
	line("peak %s allocated, %s on the device of a budget of %s (%s engine, %s policy)",
		size.Text(s.AllocatedPeakBytes), size.Text(s.ResidentPeakBytes), size.Text(s.BudgetBytes), s.Engine, s.Policy)
	if s.EngineWhy != "" {
		line("%s engine chosen: %s", s.Engine, s.EngineWhy)
	}
	switch {
	case s.Explicit != nil:
		s.explicitLines(line)
	case s.Engine == "managed":
		s.managedLines(line)
	}
	if s.PlannedAllocs+s.Stitches > 0 {
		line("reserved %s at most for %s; %d allocations planned and %d beside the plan; %d ranges stitched of %d handles",
			size.Text(s.ReservedPeakBytes), size.Text(s.AllocatedPeakBytes), s.PlannedAllocs, s.UnplannedAllocs, s.Stitches, s.StitchedHandles)
	}
	if s.Engine == "plain" && s.PlanWhy != "" {
		line("no plan is followed: %s", s.PlanWhy)
	}
	line("%s", s.limit())
	for _, w := range s.warnings() {
		line("warning: %s", w)
	}
	return b.String()
}

func (s Stats) managedLines(line func(format string, args ...any)) {
	line("moved %s to the device and %s to the host; populated %s, discarded %s of dead memory without moving it",
		size.Text(s.H2DBytes), size.Text(s.D2HBytes), size.Text(s.PopulatedBytes), size.Text(s.DiscardedBytes))
	faults := "unavailable (no driver event queue here)"
	if s.Faults != unavailable {
		faults = fmt.Sprintf("%d in %d batches", s.Faults, s.FaultBatches)
		if s.DroppedEvents > 0 {
			faults += fmt.Sprintf(" (%d events were lost: the count is low)", s.DroppedEvents)
		}
	}
	line("faults: %s; predicted exactly: %s; stalled %.2f s (%.2f s of it for space)", faults, s.predicted(), s.StallSeconds, s.SpaceStallSeconds)
}

// predicted is how often the next operation was foreseen.
func (s Stats) predicted() string {
	if s.PredictionHitRate == unavailable {
		return "nothing to predict"
	}
	return fmt.Sprintf("%.1f %% of operations", 100*s.PredictionHitRate)
}

// limit says what limited the job.
func (s Stats) limit() string {
	switch {
	case s.Failure != "":
		return "limited by a failure of the engine: " + s.Failure
	case s.Explicit != nil:
		return s.explicitLimit()
	case s.Engine != "managed":
		return "everything fitted on the device: nothing was moved"
	case s.D2HBytes == 0:
		return "everything fitted in the budget: nothing had to leave"
	case s.OversizeLaunches > 0:
		return s.oversize()
	case s.OutSeconds > s.InSeconds && s.StallSeconds > 0:
		return fmt.Sprintf("limited by eviction to the host (%.2f s busy, %.1f GB/s): a larger --budget helps most", s.OutSeconds, rate(s.EvictedBytes, s.OutSeconds))
	case s.StallSeconds > 0:
		return fmt.Sprintf("limited by prefetch to the device (%.2f s busy, %.1f GB/s)", s.InSeconds, rate(s.FetchedBytes, s.InSeconds))
	}
	return "not limited by memory: every move was hidden behind work"
}

func (s Stats) oversize() string {
	return fmt.Sprintf("limited by single launches larger than the budget: %s touches %s; raise --budget to at least that", shortName(s.OversizeName), size.Text(s.OversizeBytes))
}

func (s Stats) warnings() (w []string) {
	if s.Engine == "managed" && !s.Hooked {
		w = append(w, "no launch hook was loaded, so nothing could be foreseen: start the job with `penstock run`")
	}
	if s.Engine == "managed" && s.Hooked && s.Faults == unavailable && s.GatedLaunches == 0 {
		w = append(w, "what kernels brought in by faulting cannot be seen here: bytes moved and residency are those of the engine's own moves")
	}
	w = append(w, s.explicitWarnings()...)
	if s.LateLaunches > 0 {
		w = append(w, fmt.Sprintf("%d launches went out with memory missing and faulted for it", s.LateLaunches))
	}
	if over := s.ResidentPeakBytes - s.BudgetBytes; s.Engine == "managed" && over > 0 {
		w = append(w, fmt.Sprintf("the device held up to %s more than the budget for a while: launches that went out late, or memory for which nothing could leave in time", size.Text(over)))
	}
	if s.PlainTensors > 0 {
		w = append(w, fmt.Sprintf("%d allocations found no range of addresses in one piece and stay on the device: raise PENSTOCK_MANAGED_LIMIT or --host-budget", s.PlainTensors))
	}
	if s.DroppedRecords > 0 {
		w = append(w, fmt.Sprintf("%d launch records were lost because the ring was full", s.DroppedRecords))
	}
	if s.OpaqueLaunches > 0 && s.Explicit == nil { // there they are in the verdict
		w = append(w, fmt.Sprintf("%d launches had parameters that could not be read", s.OpaqueLaunches))
	}
	for _, r := range s.MissedRoutes {
		w = append(w, "launches by way of "+r+" passed the hook by: what they needed was not foreseen; `penstock doctor` says more")
	}
	if s.Engine == "managed" && s.Hooked && s.Launches == 0 && s.Allocations > 0 {
		w = append(w, "the hook saw no launch at all: nothing could be foreseen; `penstock doctor` says more")
	}
	if s.UnhookedSymbols > 0 {
		w = append(w, fmt.Sprintf("%d driver entry points are in use that the hook does not know", s.UnhookedSymbols))
	}
	return w
}

func rate(bytes int64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(bytes) / seconds / 1e9
}

func shortName(name string) string {
	const longest = 80
	if len(name) > longest {
		return name[:longest] + "…"
	}
	if name == "" {
		return "a copy or an unnamed kernel"
	}
	return name
}
