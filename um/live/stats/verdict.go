package stats

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

// Part is an engine's part of a verdict.
type Part interface {
	Lines(s *Stats, line func(format string, args ...any))
	// Limit is what limited the job.
	Limit(s *Stats) string
	Warnings(s *Stats) []string
}

// plainPart is that where nothing can leave the device.
type plainPart struct{}

func (plainPart) Lines(s *Stats, line func(format string, args ...any)) {
	if s.PlanWhy != "" {
		line("no plan is followed: %s", s.PlanWhy)
	}
}

func (plainPart) Limit(*Stats) string { return "everything fitted on the device: nothing was moved" }

func (plainPart) Warnings(*Stats) []string { return nil }

// Verdict says in a few lines what happened and what limited the job.
func (s Stats) Verdict() string {
	part := s.Part
	if part == nil {
		part = plainPart{}
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, Speaker(s.Process)+": "+format+"\n", args...) }
	line("peak %s allocated, %s on the device of a budget of %s (%s engine, %s policy)",
		size.Text(s.AllocatedPeakBytes), size.Text(s.ResidentPeakBytes), size.Text(s.BudgetBytes), s.Engine, s.Policy)
	if s.EngineWhy != "" {
		line("%s engine chosen: %s", s.Engine, s.EngineWhy)
	}
	part.Lines(&s, line)
	if s.PlannedAllocs+s.Stitches > 0 {
		line("reserved %s at most for %s; %d allocations planned and %d beside the plan; %d ranges stitched of %d handles",
			size.Text(s.ReservedPeakBytes), size.Text(s.AllocatedPeakBytes), s.PlannedAllocs, s.UnplannedAllocs, s.Stitches, s.StitchedHandles)
	}
	if s.Failure != "" {
		line("limited by a failure of the engine: %s", s.Failure)
	} else {
		line("%s", part.Limit(&s))
	}
	for _, w := range append(part.Warnings(&s), s.warnings()...) {
		line("warning: %s", w)
	}
	return b.String()
}

// Predicted is how often the next operation was foreseen.
func (s Stats) Predicted() string {
	if s.PredictionHitRate == Unavailable {
		return "nothing to predict"
	}
	return fmt.Sprintf("%.1f %% of operations", 100*s.PredictionHitRate)
}

func (s Stats) Oversize() string {
	return fmt.Sprintf("limited by single launches larger than the budget: %s touches %s; raise --budget to at least that", shortName(s.OversizeName), size.Text(s.OversizeBytes))
}

// warnings are those that are no matter of the engine.
func (s Stats) warnings() (w []string) {
	if s.DroppedRecords > 0 {
		w = append(w, fmt.Sprintf("%d launch records were lost because the ring was full", s.DroppedRecords))
	}
	for _, r := range s.MissedRoutes {
		w = append(w, fmt.Sprintf("launches by way of %s passed the hook by: what they needed was not foreseen; `penstock doctor` says more", r))
	}
	if s.UnhookedSymbols > 0 {
		w = append(w, fmt.Sprintf("%d driver entry points are in use that the hook does not know: %s; what they use is not foreseen, please report them", s.UnhookedSymbols, strings.Join(s.UnhookedNames, ", ")))
	}
	return w
}

func Rate(bytes int64, seconds float64) float64 {
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
