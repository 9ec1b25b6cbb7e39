package swapped

import (
	"fmt"
	"strings"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// A job that asks for grants more often than this waits for its own kernels all
// the time; one of fewer launches has not shown yet what it is like.
const (
	mostGrants     = 0.03 // of all launches
	enoughLaunches = 1000
	mostForeach    = 0.25 // of the launches that waited, for an optimizer to be spoken of
	mostCPU        = 0.7  // of an iteration, for the job's own CPU to be what limits it
)

// verdict is the explicit engine's part of a verdict.
type verdict struct{}

func (verdict) Lines(s *stats.Stats, line func(format string, args ...any)) {
	x := s.Explicit
	line("moved %s to the device (%.1f GB/s while copying) and %s to the host (%.1f GB/s)",
		size.Text(s.H2DBytes), x.InGBPerSecond, size.Text(s.D2HBytes), x.OutGBPerSecond)
	if x.Made+x.Unmade > 0 {
		line("%s was made again in %d moves instead of being fetched; %d were not the same; %s left as what can be made again; %d launches waited for that", size.Text(x.MadeBytes), x.Made, x.Unmade, size.Text(x.DroppedBytes), x.GuardWaits)
	}
	if len(x.LevelSeconds) > 0 {
		line("how much is made again was tried out (%s an iteration): %s", levelText(x.LevelSeconds), map[string]string{"tried": "it still is", "nothing": "nothing is", "plain": "what plain kernels make is", "all": "all that can be is"}[x.Makes])
	}
	if x.CleanBytes > 0 || x.InPlaceBytes > 0 {
		line("%s left without a copy because the host had them already; launches used %s in host memory", size.Text(x.CleanBytes), size.Text(x.InPlaceBytes))
	}
	line("stalled %.2f s: %.2f s for data on its way, %.2f s for space, %.2f s for mapping, %.2f s until what is queued had been looked through",
		s.StallSeconds, x.FetchStallSeconds, x.SpaceStallSeconds, x.MapStallSeconds, x.GrantStallSeconds)
	line("%d launches and copies waited (%d launches in all); predicted exactly: %s", x.WaitedLaunches, s.Launches, s.Predicted())
	line("%d launches were searched for addresses in memory: %d had some; %d had unreadable parameters and got everything on the device",
		x.Inspected, x.Chasers, x.Unresolved)
	line("host memory: %s needed at most, %s in use, %s pinned of a budget of %s; waited %.2f s for pinning",
		size.Text(x.HostNeedBytes), size.Text(x.HostPeakBytes), size.Text(x.HostPinnedBytes), size.Text(s.HostBudgetBytes), x.HostWaitSeconds)
	if s.H2DBytes+s.D2HBytes > 0 {
		x.Lines(line)
	}
}

// levelText is how long an iteration took, by how much was made again.
func levelText(seconds map[string]float64) string {
	var parts []string
	for _, l := range []explicit.Level{explicit.LevelNothing, explicit.LevelPlain, explicit.LevelAll} {
		if s, ok := seconds[l.String()]; ok {
			parts = append(parts, fmt.Sprintf("%s %.3f s", l, s))
		}
	}
	return strings.Join(parts, ", ")
}

func (verdict) Limit(s *stats.Stats) string {
	x := s.Explicit
	worst := max(x.FetchStallSeconds, x.SpaceStallSeconds, x.MapStallSeconds, x.GrantStallSeconds)
	switch {
	case s.D2HBytes == 0 && s.H2DBytes == 0 && x.CleanBytes == 0:
		return "everything fitted on the device: nothing was moved"
	case s.OversizeLaunches > 0:
		return s.Oversize()
	case x.CPUSeconds > mostCPU*x.IterationSeconds && x.CPUSeconds > x.Seconds:
		return fmt.Sprintf("limited by the job's own CPU, which takes %.3f s of an iteration of %.3f s to launch it: more memory helps little", x.CPUSeconds, x.IterationSeconds)
	case worst == 0:
		return "not limited by memory: every move was hidden behind work"
	case x.GrantStallSeconds == worst:
		return "limited by launches that do not say in their parameters what they touch: the queue is drained for each"
	case x.HostWaitSeconds > worst/2:
		return fmt.Sprintf("limited by pinning host memory (%.2f s of waiting, most of it at the start): a longer run pays less for it", x.HostWaitSeconds)
	case x.SpaceStallSeconds == worst:
		return fmt.Sprintf("limited by eviction to the host (%.2f s busy, %.1f GB/s): a larger --budget helps most", s.OutSeconds, x.OutGBPerSecond)
	case x.FetchStallSeconds == worst:
		return fmt.Sprintf("limited by fetching to the device (%.2f s busy, %.1f GB/s): a larger --budget helps most", s.InSeconds, x.InGBPerSecond)
	}
	return fmt.Sprintf("limited by mapping memory for new tensors (%d maps)", x.Maps)
}

// Warnings are about jobs that the engine serves badly.
func (verdict) Warnings(s *stats.Stats) (w []string) {
	x := s.Explicit
	if s.Launches < enoughLaunches {
		return nil
	}
	often := func(n int64) bool { return float64(n) > mostGrants*float64(s.Launches) }
	percent := func(n int64) float64 { return 100 * float64(n) / float64(s.Launches) }
	if often(x.Unresolved) {
		w = append(w, fmt.Sprintf("%.1f %% of the launches have parameters that cannot be read: the job waits for its own kernels all the time; --engine managed may be faster", percent(x.Unresolved)))
	}
	if often(x.Chasers) {
		w = append(w, fmt.Sprintf("%.1f %% of the launches find tensors through addresses in memory: the job waits for its own kernels all the time; --engine managed may be faster", percent(x.Chasers)))
	}
	if x.WaitedForeach > enoughLaunches && float64(x.WaitedForeach) > mostForeach*float64(x.WaitedLaunches) {
		w = append(w, fmt.Sprintf("%.0f %% of the launches that waited work on many tensors at once, as PyTorch's optimizers do by default (foreach): with fused=True or foreach=False they move less", 100*float64(x.WaitedForeach)/float64(x.WaitedLaunches)))
	}
	return w
}
