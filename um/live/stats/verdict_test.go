package stats

import (
	"encoding/json"
	"strings"
	"testing"
)

// part is an engine's that has something to say.
type part struct{}

func (part) Lines(s *Stats, line func(format string, args ...any)) { line("moved %d", s.H2DBytes) }
func (part) Limit(s *Stats) string {
	if s.OversizeLaunches > 0 {
		return s.Oversize()
	}
	return "limited by " + s.Predicted()
}
func (part) Warnings(*Stats) []string { return []string{"of the engine"} }

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Stats)
		want   string
	}{
		{"nothing can leave", func(s *Stats) { s.Part = nil }, "nothing was moved"},
		{"no plan", func(s *Stats) { s.Part, s.PlanWhy = nil, "too few iterations" }, "no plan is followed: too few iterations"},
		{"the engine's lines", func(s *Stats) { s.H2DBytes = 5 }, "penstock: moved 5\n"},
		{"the engine's limit", func(s *Stats) { s.PredictionHitRate = Unavailable }, "limited by nothing to predict"},
		{"what was foreseen", func(s *Stats) { s.PredictionHitRate = 0.5 }, "limited by 50.0 % of operations"},
		{"oversize", func(s *Stats) { s.OversizeLaunches, s.OversizeName, s.OversizeBytes = 1, "gemm", 3<<30 }, "gemm touches 3 GiB"},
		{"oversize without a name", func(s *Stats) { s.OversizeLaunches, s.OversizeBytes = 1, 3<<30 }, "an unnamed kernel touches 3 GiB"},
		{"a long name", func(s *Stats) { s.OversizeLaunches, s.OversizeName = 1, strings.Repeat("x", 200) }, strings.Repeat("x", 80) + "… touches"},
		{"failure", func(s *Stats) { s.Failure = "no luck" }, "failure of the engine: no luck"},
		{"chosen", func(s *Stats) { s.Engine, s.EngineWhy = "explicit", "it can" }, "explicit engine chosen: it can"},
		{"planned", func(s *Stats) { s.PlannedAllocs, s.UnplannedAllocs = 7, 3 }, "7 allocations planned and 3 beside the plan"},
		{"the engine's warnings", func(s *Stats) {}, "warning: of the engine"},
		{"ring full", func(s *Stats) { s.DroppedRecords = 4 }, "warning: 4 launch records were lost"},
		{"missed", func(s *Stats) { s.MissedRoutes = []string{"dlsym"} }, "warning: launches by way of dlsym passed the hook by"},
		{"unhooked", func(s *Stats) { s.UnhookedSymbols, s.UnhookedNames = 2, []string{"cuOne", "cuTwo"} }, "warning: 2 driver entry points are in use that the hook does not know: cuOne, cuTwo;"},
	} {
		s := Stats{Part: part{}}
		c.change(&s)
		if text := s.Verdict(); !strings.Contains(text, c.want) {
			t.Errorf("%s: %q is not in\n%s", c.name, c.want, text)
		}
		for label, speaker := range map[string]string{"": "penstock: ", "rank1": "penstock[rank1]: "} {
			s.Process = label
			for line := range strings.Lines(s.Verdict()) {
				if !strings.HasPrefix(line, speaker) {
					t.Errorf("%s: a line without its source: %q, want %q", c.name, line, speaker)
				}
			}
		}
	}
}

// TestPartStaysHere: how an engine words its verdict is no part of what machines read, what it alone counts is.
func TestPartStaysHere(t *testing.T) {
	text, err := json.Marshal(Stats{Part: part{}, Explicit: &Explicit{Maps: 3}})
	if err != nil || strings.Contains(string(text), "Part") || !strings.Contains(string(text), `"maps":3`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestRate(t *testing.T) {
	if a, b := Rate(3e9, 2), Rate(3e9, 0); a != 1.5 || b != 0 {
		t.Errorf("%v, and in no time %v", a, b)
	}
}
