package bound

import "fmt"

// Bound is how near the last iterations came to the best possible.
type Bound struct {
	IterationSeconds float64 `json:"oracle_iteration_seconds,omitempty"` // measured: the median of the iterations that were looked at
	Seconds          float64 `json:"oracle_seconds,omitempty"`           // an oracle's, simulated
	Share            float64 `json:"oracle_share,omitempty"`             // of its speed: its seconds over those measured
	Bus              string  `json:"oracle_bus,omitempty"`               // what it was given for a bus
	BusInGB          float64 `json:"oracle_bus_in_gb_per_second,omitempty"`
	BusOutGB         float64 `json:"oracle_bus_out_gb_per_second,omitempty"`
	BusBothGB        float64 `json:"oracle_bus_both_gb_per_second,omitempty"` // together; 0: neither slows the other
	Defects          int     `json:"oracle_defects,omitempty"`                // shares of more than all: of so many oracles no bound was found

	// How long launches take: of so many that were timed, whose kinds have that part of the device's time, which is known to that
	// part of itself (standard error).
	TimedLaunches int     `json:"timed_launches,omitempty"`
	LostTimings   uint64  `json:"lost_timings,omitempty"` // of launches that the device came to too early
	TimedShare    float64 `json:"timed_share,omitempty"`
	TimedError    float64 `json:"timed_error,omitempty"`
	GPUSeconds    float64 `json:"gpu_iteration_seconds,omitempty"` // of the launches of an iteration

	InMemorySeconds float64 `json:"in_memory_seconds_estimated,omitempty"` // an iteration with everything in memory: GPUSeconds, or CPUSeconds where that is more
	InMemoryShare   float64 `json:"in_memory_share_estimated,omitempty"`   // of that speed

	LaunchCostSeconds float64 `json:"launch_cost_seconds,omitempty"`   // CPU time of the job from one launch to the next; 0: it is not known to keep the job back
	CPUSeconds        float64 `json:"iteration_cpu_seconds,omitempty"` // that of an iteration
	WithCPUSeconds    float64 `json:"oracle_cpu_seconds,omitempty"`    // an oracle's that waits for it, simulated
	WithCPUShare      float64 `json:"oracle_cpu_share,omitempty"`      // of that one's speed

	Why string `json:"oracle_why,omitempty"` // there is none
}

// Lines are the verdict's lines of a bound, of a job that moved something.
func (b Bound) Lines(line func(format string, args ...any)) {
	switch {
	case b.Share > 0:
		line("an iteration took %.3f s: %.0f %% of the speed of an oracle, simulated from what this job launched (%.3f s; bus %s)", b.IterationSeconds, 100*b.Share, b.Seconds, b.Bus)
		if b.WithCPUShare > 0 {
			line("the job's own CPU takes %.1f us from launch to launch, %.3f s an iteration: %.0f %% of the speed of an oracle that waits for it (%.3f s)",
				1e6*b.LaunchCostSeconds, b.CPUSeconds, 100*b.WithCPUShare, b.WithCPUSeconds)
		}
		line("estimated from %d launches that were timed without their waits (their kinds have %.0f %% of the GPU's time, give or take %.1f %%): %.0f %% of the speed in memory, where an iteration takes the GPU %.3f s%s",
			b.TimedLaunches, 100*b.TimedShare, 100*b.TimedError, 100*b.InMemoryShare, b.GPUSeconds, b.cpuText())
		if b.Defects > 0 {
			line("a share above 100 %% is a defect of the oracle, not a merit of this run: what was simulated is no bound here; please report it")
		}
	case b.Why != "":
		line("not compared with an oracle: %s", b.Why)
	}
}

// cpuText says what a job's CPU takes where it is known.
func (b Bound) cpuText() string {
	if b.CPUSeconds == 0 {
		return ""
	}
	return fmt.Sprintf(" and the CPU %.3f s", b.CPUSeconds)
}
