package swapped

import (
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/um/live/bound"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

func TestExplicitVerdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*stats.Stats, *stats.Explicit)
		want   string
	}{
		{"nothing moved", func(s *stats.Stats, x *stats.Explicit) { s.H2DBytes, s.D2HBytes = 0, 0 }, "everything fitted on the device"},
		{"hidden", func(s *stats.Stats, x *stats.Explicit) {}, "every move was hidden"},
		{"rates", func(s *stats.Stats, x *stats.Explicit) { x.InGBPerSecond, x.OutGBPerSecond = 47, 46 }, "3 GiB to the device (47.0 GB/s while copying) and 4 GiB to the host (46.0 GB/s)"},
		{"oversize", func(s *stats.Stats, x *stats.Explicit) {
			s.OversizeLaunches, s.OversizeName, s.OversizeBytes = 1, "gemm", 3<<30
		}, "gemm touches 3 GiB"},
		{"space", func(s *stats.Stats, x *stats.Explicit) { x.SpaceStallSeconds, x.FetchStallSeconds = 2, 1 }, "limited by eviction to the host"},
		{"fetch", func(s *stats.Stats, x *stats.Explicit) { x.SpaceStallSeconds, x.FetchStallSeconds = 1, 2 }, "limited by fetching"},
		{"map", func(s *stats.Stats, x *stats.Explicit) { x.MapStallSeconds = 1 }, "limited by mapping"},
		{"grants", func(s *stats.Stats, x *stats.Explicit) { x.MapStallSeconds, x.GrantStallSeconds = 1, 2 }, "limited by launches that do not say"},
		{"pinning", func(s *stats.Stats, x *stats.Explicit) { x.SpaceStallSeconds, x.HostWaitSeconds = 2, 2 }, "limited by pinning"},
		{"failure", func(s *stats.Stats, x *stats.Explicit) { s.Failure = "no luck" }, "failure of the engine: no luck"},
		{"made again", func(s *stats.Stats, x *stats.Explicit) {
			x.Makes, x.LevelSeconds = "all", map[string]float64{"nothing": 0.449, "plain": 0.3266, "all": 0.253}
		}, "tried out (nothing 0.449 s, plain 0.327 s, all 0.253 s an iteration): all that can be is\n"},
		{"oracle", func(s *stats.Stats, x *stats.Explicit) {
			x.Bound = bound.Bound{IterationSeconds: 0.12, Seconds: 0.0996, Share: 0.83, Bus: "of h200"}
		}, "an iteration took 0.120 s: 83 % of the speed of an oracle"},
		{"oracle with CPU", func(s *stats.Stats, x *stats.Explicit) {
			x.FetchStallSeconds = 1
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.06, Share: 0.6, LaunchCostSeconds: 20e-6, CPUSeconds: 0.08, WithCPUSeconds: 0.085, WithCPUShare: 0.85}
		}, "the job's own CPU takes 20.0 us from launch to launch, 0.080 s an iteration: 85 % of the speed of an oracle that waits for it (0.085 s)\n"},
		{"limited by the CPU", func(s *stats.Stats, x *stats.Explicit) {
			x.FetchStallSeconds = 1
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.06, Share: 0.6, LaunchCostSeconds: 20e-6, CPUSeconds: 0.08, WithCPUSeconds: 0.085, WithCPUShare: 0.85}
		}, "\npenstock: limited by the job's own CPU"},
		{"in memory", func(s *stats.Stats, x *stats.Explicit) {
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.06, Share: 0.6, TimedLaunches: 900, TimedShare: 0.99, TimedError: 0.004, GPUSeconds: 0.05, CPUSeconds: 0.08, InMemorySeconds: 0.08, InMemoryShare: 0.8}
		}, "estimated from 900 launches that were timed without their waits (their kinds have 99 % of the GPU's time, give or take 0.4 %): 80 % of the speed in memory, where an iteration takes the GPU 0.050 s and the CPU 0.080 s"},
		{"a defect", func(s *stats.Stats, x *stats.Explicit) {
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.11, Share: 1.1, Defects: 1}
		}, "110 % of the speed of an oracle"},
		{"CPU beside the bus", func(s *stats.Stats, x *stats.Explicit) {
			x.FetchStallSeconds = 1
			x.Bound = bound.Bound{IterationSeconds: 0.1, Seconds: 0.085, Share: 0.85, LaunchCostSeconds: 20e-6, CPUSeconds: 0.08, WithCPUSeconds: 0.09, WithCPUShare: 0.9}
		}, "limited by fetching"},
		{"no oracle", func(s *stats.Stats, x *stats.Explicit) { x.Why = "too much" }, "not compared with an oracle: too much"},
		{"chosen", func(s *stats.Stats, x *stats.Explicit) { s.EngineWhy = "it can" }, "explicit engine chosen: it can"},
		{"in place", func(s *stats.Stats, x *stats.Explicit) { x.InPlaceBytes = 1 << 30 }, "launches used 1 GiB in host memory"},
		{"unresolved", func(s *stats.Stats, x *stats.Explicit) { x.Unresolved = 200 }, "warning: 10.0 % of the launches have parameters that cannot be read"},
		{"chasing", func(s *stats.Stats, x *stats.Explicit) { x.Chasers = 100 }, "warning: 5.0 % of the launches find tensors through addresses"},
		{"foreach", func(s *stats.Stats, x *stats.Explicit) { x.WaitedLaunches, x.WaitedForeach = 4000, 1200 }, "warning: 30 % of the launches that waited work on many tensors"},
	} {
		x := &stats.Explicit{}
		s := stats.Stats{Part: verdict{}, Engine: "explicit", Hooked: true, Faults: stats.Unavailable, PredictionHitRate: stats.Unavailable, H2DBytes: 3 << 30, D2HBytes: 4 << 30, Launches: 2000, Explicit: x}
		c.change(&s, x)
		if text := s.Verdict(); !strings.Contains(text, c.want) || strings.Count(text, "\n") > 10 {
			t.Errorf("%s: %q is not in\n%s", c.name, c.want, text)
		}
	}
	few := stats.Stats{Part: verdict{}, Engine: "explicit", Hooked: true, Launches: 2000, Explicit: &stats.Explicit{Unresolved: 20, Chasers: 20, WaitedLaunches: 8000, WaitedForeach: 1900}}
	if text := few.Verdict(); strings.Contains(text, "warning") {
		t.Errorf("one launch of a hundred is no reason to warn:\n%s", text)
	}
}
