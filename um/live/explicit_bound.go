package live

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/oracle"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um/explicit"
)

// This file says at the end of a job how near it came to an oracle, which knows the future
// and whose software costs nothing: the last iterations are simulated under one, from what the
// runtime remembers of them. Where the job's CPU may keep it back, they are simulated once more
// under one that waits for that: no engine makes it faster.
//
// It is a bound only if launches are not said to take longer than they do. While they wait for memory, the time between
// two of them says little of that, so some are timed on the device (timing.c of the hook), without their waits, and stand
// for others of their kind. Where too little is timed nothing is said, and a share of more than all is said to be a defect.

const (
	rememberedOps  = 1 << 16
	simulated      = 3 // iterations, of which the last counts: the first two fill the memory
	rounding       = 0.001
	leastTimed     = 0.8 // of the device's time, for a bound to be told
	judgePatience  = 2 * time.Second
	oraclePatience = 700 * time.Millisecond
)

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

// Judge adds to the statistics of a job that has ended how near it came to an oracle. It
// takes two seconds at most, and is called after Close.
func (l *Live) Judge(s *Stats) {
	if l.swap == nil || s.Explicit == nil {
		return
	}
	x := s.Explicit
	switch {
	case s.H2DBytes == 0 && s.D2HBytes == 0:
		x.Bound = Bound{Why: "nothing was moved"}
		return
	case s.Failure != "":
		x.Bound = Bound{Why: "the engine failed"}
		return
	}
	bus := l.swap.bus(x)
	bus.options.BudgetBytes = s.BudgetBytes - l.plainBytes.Load()
	found := make(chan Bound, 3)
	go func() {
		defer close(found)
		defer func() {
			if p := recover(); p != nil {
				found <- Bound{Why: fmt.Sprintf("it failed: %v", p)}
			}
		}()
		judge(l.recent(), bus.options, func(b Bound) {
			if b.Seconds > 0 {
				b.Bus, b.BusInGB, b.BusOutGB = bus.name, bus.options.H2DBytesPerSecond/1e9, bus.options.D2HBytesPerSecond/1e9
				if both := bus.options.DuplexBytesPerSecond; !math.IsInf(both, 1) {
					b.BusBothGB = both / 1e9
				}
			}
			found <- b
		})
	}()
	x.Bound = Bound{Why: fmt.Sprintf("it would have taken more than %s", judgePatience)}
	lost := uint64(0)
	if l.hook != nil {
		lost = l.hook.TimingsLost()
	}
	for enough := time.After(judgePatience); ; {
		select {
		case b, more := <-found:
			if !more {
				return
			}
			x.Bound, x.LostTimings = b, lost
		case <-enough:
			return
		}
	}
}

// recent is what the runtime remembers.
func (l *Live) recent() explicit.Recent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.swap.runtime.Recent()
}

// judge compares the last iterations that are remembered with an oracle's, and then with one's that waits for the
// job's CPU, where that is known to keep it back. What is found is told each time.
func judge(recent explicit.Recent, o oracle.Options, found func(Bound)) {
	t := recent.Trace
	if !recent.EstimateDurations() {
		found(Bound{Why: "no launch was seen to end"})
		return
	}
	t.MarkIterations()
	all := t.Iterations()
	if len(all) < simulated {
		found(Bound{Why: fmt.Sprintf("the last %d launches and copies hold no %d like iterations", t.Estimate.Operations, simulated)})
		return
	}
	timed := t.Estimate
	if timed.TimedShare < leastTimed {
		found(Bound{Why: fmt.Sprintf("%d launches were timed, of kinds that have %.0f %% of the device's time: too few to say how long an iteration takes", timed.Timed, 100*timed.TimedShare)})
		return
	}
	took := make([]float64, len(all))
	for i, r := range all {
		took[i] = (t.Events[r.End].Time - t.Events[r.First-1].Time).Seconds() // from mark to mark
	}
	slices.Sort(took)
	cost, last := recent.LaunchCost(), all[len(all)-1]
	b := Bound{IterationSeconds: took[len(took)/2], LaunchCostSeconds: cost.Seconds()}
	b.CPUSeconds = b.LaunchCostSeconds * float64(operations(t.Events[last.First:last.End]))
	b.TimedLaunches, b.TimedShare, b.TimedError = timed.Timed, timed.TimedShare, timed.TimedError
	b.GPUSeconds = gpuTime(t.Events[last.First:last.End])
	b.InMemorySeconds = max(b.GPUSeconds, b.CPUSeconds)
	b.InMemoryShare = b.InMemorySeconds / b.IterationSeconds
	iterations := from(t, all[len(all)-simulated].First-1, last.End)
	best, err := oracle.Run(iterations, o)
	if err != nil {
		found(Bound{Why: why(err)})
		return
	}
	b.Seconds = best.IterationSeconds
	b.Share = b.share(best.IterationSeconds)
	found(b)
	if cost == 0 {
		return
	}
	o.LaunchCost = cost
	if best, err = oracle.Run(iterations, o); err == nil {
		b.WithCPUSeconds = best.IterationSeconds
		b.WithCPUShare = b.share(best.IterationSeconds)
		found(b)
	}
}

// share is that of an oracle's speed. One that is slower than the job was no bound.
func (b *Bound) share(seconds float64) float64 {
	if seconds > b.IterationSeconds*(1+rounding) {
		b.Defects++
	}
	return seconds / b.IterationSeconds
}

func gpuTime(events []trace.Event) (seconds float64) {
	for i := range events {
		if k := events[i].Kind; k == trace.KindLaunch || k == trace.KindCopy {
			seconds += max(0, events[i].Duration).Seconds()
		}
	}
	return seconds
}

// why there is no bound.
func why(err error) string {
	var large *oracle.BudgetError
	if errors.As(err, &large) {
		return fmt.Sprintf("one launch touches %s, and the budget has room for %s", size.Text(large.NeedBytes), size.Text(large.BudgetBytes))
	}
	return err.Error()
}

func operations(events []trace.Event) (n int) {
	for i := range events {
		if events[i].Kind == trace.KindLaunch || events[i].Kind == trace.KindCopy {
			n++
		}
	}
	return n
}

// from is a trace from one mark to another, after the allocations that were alive before. What
// nothing touches in it is left out: it can lie anywhere.
func from(t *trace.Trace, first, last int) *trace.Trace {
	touched := map[uint64]bool{}
	for _, e := range t.Events[first:last] {
		for _, a := range e.Accesses {
			touched[a.Alloc] = true
		}
	}
	out := &trace.Trace{Name: t.Name}
	for i, e := range t.Events[:last+1] {
		switch e.Kind {
		case trace.KindAlloc, trace.KindFree:
			if touched[e.Alloc] {
				out.Events = append(out.Events, e)
			}
		default:
			if i >= first {
				out.Events = append(out.Events, e)
			}
		}
	}
	return out
}

// bus is what an oracle may move bytes over.
type bus struct {
	name    string
	options oracle.Options
}

// bus is what copies of this job had, at its fastest over a while or over all, or the card's, which was measured: what is more.
func (e *swap) bus(x *ExplicitStats) bus {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	return busOf(e.l.driver.Info().Name, max(x.InGBPerSecond*1e9, e.pace[explicit.In].fastest), max(x.OutGBPerSecond*1e9, e.pace[explicit.Out].fastest))
}

// busOf is the bus of a card that was measured, where the job's copies were not faster, or else what they reached, in bytes a second.
func busOf(device string, in, out float64) bus {
	for _, p := range sim.Profiles() {
		if p.DeviceName == device {
			both := max(p.DuplexBytesPerSecond, in, out)
			return newBus("of "+p.Name, max(in, p.CopyBytesPerSecond), max(out, p.CopyBytesPerSecond), both)
		}
	}
	// One of them may not have been used.
	return newBus("as this job had it at its fastest", max(in, out/2), max(out, in/2), math.Inf(1))
}

func newBus(name string, in, out, both float64) bus {
	return bus{
		name:    fmt.Sprintf("%s: %.1f GB/s in, %.1f GB/s out", name, in/1e9, out/1e9),
		options: oracle.Options{H2DBytesPerSecond: in, D2HBytesPerSecond: out, DuplexBytesPerSecond: both, SmallBytes: explicit.SmallBytes, Patience: oraclePatience},
	}
}
