package live

import (
	"fmt"

	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// Config says how the engine runs in a process.
type Config struct {
	Engine            Engine
	Verify            bool      // the explicit engine checks every move by checksum
	Replay            um.Replay // what the explicit engine makes again instead of moving it
	Packs             bool      // the explicit engine gives allocations that live together one range
	Policy            um.Policy
	BudgetBytes       int64 // device memory; 0 = what the card has free, less a reserve
	HostBudgetBytes   int64 // host memory; 0 = this process's share of most of what is available
	ManagedLimitBytes int64 // most managed address space; 0 = no limit
	LookaheadBytes    int64 // most that is fetched ahead of need at a time; 0 = as much as fits
	// Timeline keeps what the explicit engine does when; nil: nothing does.
	Timeline  *timeline.Timeline
	PlainOnly bool        // no managed memory at all: nothing leaves the device
	Pool      pool.Config // how plain memory is laid out
	// TensorFront gives out what the job has just freed, under the explicit engine; nil: nothing does.
	TensorFront *front.Front
	Sink        process.Sink // receives what happens; may be nil
	// AllocsToldElsewhere: the sink hears of allocations from whoever calls, not from here.
	AllocsToldElsewhere bool
	// Label tells this process from the others of its job, in what it says and reports; "" when it is alone.
	Label string
	// LocalProcesses are how many the job has on this host, which share its memory; 0 is 1.
	LocalProcesses int
	// Say is told lines for people while the job runs: about how fast it is; nil: nobody is.
	Say func(line string)
	// MissedRoutes are ways to the driver whose launches the hook does not see, in words.
	MissedRoutes []string
}

const (
	reserveBytes   = 512 << 20 // left to the CUDA context, libraries and kernels' local memory
	minBudgetBytes = 64 << 20
)

func (c Config) validate(totalBytes int64) error {
	switch {
	case c.BudgetBytes < 0 || c.HostBudgetBytes < 0 || c.ManagedLimitBytes < 0:
		return fmt.Errorf("a budget cannot be negative")
	case c.BudgetBytes > totalBytes:
		return fmt.Errorf("the budget of %d bytes is above the card's %d: leave --budget out to use the whole card", c.BudgetBytes, totalBytes)
	case c.BudgetBytes > 0 && c.BudgetBytes < minBudgetBytes:
		return fmt.Errorf("a budget of %d bytes is too small for anything: give at least %d", c.BudgetBytes, int64(minBudgetBytes))
	}
	return nil
}
