package replay

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/oracle"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/bound"
)

const (
	boundPatience = 700 * time.Millisecond // for a better schedule: a job's end waits for two of them
	boundRounding = 0.001
)

// Bound completes what a job measured by what an oracle would have made of its last iterations in its budget, and then by what
// one that waits for the job's CPU would have, where that is known to keep it back: no engine makes it faster. What is found is
// told each time.
//
// It is a bound only if launches are not said to take longer than they do; a share of more than all is said to be a defect.
func Bound(b bound.Bound, e *bound.Evidence, found func(bound.Bound)) {
	t, err := e.Trace()
	if err != nil {
		found(bound.Bound{Why: err.Error()})
		return
	}
	bus := busOf(e.Device, e.InBytesPerSecond, e.OutBytesPerSecond)
	o := bus.options
	o.BudgetBytes = e.BudgetBytes
	best, err := oracle.Run(t, o)
	if err != nil {
		found(bound.Bound{Why: whyUnbounded(err)})
		return
	}
	b.Why = ""
	b.Bus, b.BusInGB, b.BusOutGB = bus.name, o.H2DBytesPerSecond/1e9, o.D2HBytesPerSecond/1e9
	if !math.IsInf(o.DuplexBytesPerSecond, 1) {
		b.BusBothGB = o.DuplexBytesPerSecond / 1e9
	}
	// An oracle that is slower than the job was no bound.
	share := func(seconds float64) float64 {
		if seconds > b.IterationSeconds*(1+boundRounding) {
			b.Defects++
		}
		return seconds / b.IterationSeconds
	}
	b.Seconds, b.Share = best.IterationSeconds, share(best.IterationSeconds)
	found(b)
	if b.LaunchCostSeconds == 0 {
		return
	}
	o.LaunchCost = time.Duration(math.Round(b.LaunchCostSeconds * float64(time.Second)))
	if best, err = oracle.Run(t, o); err == nil {
		b.WithCPUSeconds, b.WithCPUShare = best.IterationSeconds, share(best.IterationSeconds)
		found(b)
	}
}

// whyUnbounded says why there is no bound.
func whyUnbounded(err error) string {
	var large *oracle.BudgetError
	if errors.As(err, &large) {
		return fmt.Sprintf("one launch touches %s, and the budget has room for %s", size.Text(large.NeedBytes), size.Text(large.BudgetBytes))
	}
	return err.Error()
}

// bus is what an oracle may move bytes over.
type bus struct {
	name    string
	options oracle.Options
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
		options: oracle.Options{H2DBytesPerSecond: in, D2HBytesPerSecond: out, DuplexBytesPerSecond: both, SmallBytes: um.SmallBytes, Patience: boundPatience},
	}
}
