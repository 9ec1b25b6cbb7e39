package paged

import (
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/um/live/stats"
)

func TestVerdict(t *testing.T) {
	managed := stats.Stats{Part: verdict{}, Engine: "managed", Hooked: true, Faults: stats.Unavailable, PredictionHitRate: stats.Unavailable}
	for _, c := range []struct {
		name   string
		change func(*stats.Stats)
		want   string
	}{
		{"fits", func(s *stats.Stats) { s.Engine, s.Part = "plain", nil }, "nothing was moved"},
		{"nothing left", func(s *stats.Stats) {}, "nothing had to leave"},
		{"failure", func(s *stats.Stats) { s.Failure = "no luck" }, "failure of the engine: no luck"},
		{"oversize", func(s *stats.Stats) {
			s.D2HBytes, s.OversizeLaunches, s.OversizeName, s.OversizeBytes = 1, 1, "gemm", 3<<30
		}, "gemm touches 3 GiB"},
		{"out", func(s *stats.Stats) { s.D2HBytes, s.StallSeconds, s.OutSeconds = 1, 1, 2 }, "limited by eviction"},
		{"in", func(s *stats.Stats) { s.D2HBytes, s.StallSeconds, s.InSeconds = 1, 1, 2 }, "limited by prefetch"},
		{"no hook", func(s *stats.Stats) { s.Hooked = false }, "no launch hook"},
		{"faults unseen", func(s *stats.Stats) {}, "faults: unavailable"},
		{"events lost", func(s *stats.Stats) { s.Faults, s.DroppedEvents = 5, 2 }, "2 events were lost"},
		{"late", func(s *stats.Stats) { s.LateLaunches = 4 }, "4 launches went out with memory missing"},
		{"over the budget", func(s *stats.Stats) { s.BudgetBytes, s.ResidentPeakBytes = 3<<30, 3<<30+8<<20 }, "8 MiB more than the budget"},
		{"ring full", func(s *stats.Stats) { s.DroppedRecords = 4 }, "4 launch records were lost"},
		{"opaque", func(s *stats.Stats) { s.OpaqueLaunches = 4 }, "4 launches had parameters"},
		{"unhooked", func(s *stats.Stats) { s.UnhookedSymbols = 4 }, "4 driver entry points"},
	} {
		s := managed
		c.change(&s)
		text := s.Verdict()
		if !strings.Contains(text, c.want) {
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
