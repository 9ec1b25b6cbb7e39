package paged

import (
	"fmt"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// verdict is the managed engine's part of a verdict.
type verdict struct{}

func (verdict) Lines(s *stats.Stats, line func(format string, args ...any)) {
	line("moved %s to the device and %s to the host; populated %s, discarded %s of dead memory without moving it",
		size.Text(s.H2DBytes), size.Text(s.D2HBytes), size.Text(s.PopulatedBytes), size.Text(s.DiscardedBytes))
	faults := "unavailable (no driver event queue here)"
	if s.Faults != stats.Unavailable {
		faults = fmt.Sprintf("%d in %d batches", s.Faults, s.FaultBatches)
		if s.DroppedEvents > 0 {
			faults += fmt.Sprintf(" (%d events were lost: the count is low)", s.DroppedEvents)
		}
	}
	line("faults: %s; predicted exactly: %s; stalled %.2f s (%.2f s of it for space)", faults, s.Predicted(), s.StallSeconds, s.SpaceStallSeconds)
}

func (verdict) Limit(s *stats.Stats) string {
	switch {
	case s.D2HBytes == 0:
		return "everything fitted in the budget: nothing had to leave"
	case s.OversizeLaunches > 0:
		return s.Oversize()
	case s.OutSeconds > s.InSeconds && s.StallSeconds > 0:
		return fmt.Sprintf("limited by eviction to the host (%.2f s busy, %.1f GB/s): a larger --budget helps most", s.OutSeconds, stats.Rate(s.EvictedBytes, s.OutSeconds))
	case s.StallSeconds > 0:
		return fmt.Sprintf("limited by prefetch to the device (%.2f s busy, %.1f GB/s)", s.InSeconds, stats.Rate(s.FetchedBytes, s.InSeconds))
	}
	return "not limited by memory: every move was hidden behind work"
}

func (verdict) Warnings(s *stats.Stats) (w []string) {
	if !s.Hooked {
		w = append(w, "no launch hook was loaded, so nothing could be foreseen: start the job with `penstock run`")
	}
	if s.Hooked && s.Faults == stats.Unavailable && s.GatedLaunches == 0 {
		w = append(w, "what kernels brought in by faulting cannot be seen here: bytes moved and residency are those of the engine's own moves")
	}
	if s.LateLaunches > 0 {
		w = append(w, fmt.Sprintf("%d launches went out with memory missing and faulted for it", s.LateLaunches))
	}
	if over := s.ResidentPeakBytes - s.BudgetBytes; over > 0 {
		w = append(w, fmt.Sprintf("the device held up to %s more than the budget for a while: launches that went out late, or memory for which nothing could leave in time", size.Text(over)))
	}
	if s.PlainTensors > 0 {
		w = append(w, fmt.Sprintf("%d allocations found no range of addresses in one piece and stay on the device: raise PENSTOCK_MANAGED_LIMIT or --host-budget", s.PlainTensors))
	}
	if s.OpaqueLaunches > 0 {
		w = append(w, fmt.Sprintf("%d launches had parameters that could not be read", s.OpaqueLaunches))
	}
	if s.Hooked && s.Launches == 0 && s.Allocations > 0 {
		w = append(w, "the hook saw no launch at all: nothing could be foreseen; `penstock doctor` says more")
	}
	return w
}
