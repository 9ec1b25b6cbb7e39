package live

import (
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// Engine is a way of moving memory.
type Engine int

// Engines.
const (
	Managed  Engine = iota // unified memory, by prefetches
	Explicit               // physical chunks, by copy engines
	Auto                   // explicit where it can run, else managed
)

var engineNames = [...]string{Managed: "managed", Explicit: "explicit", Auto: "auto"}

func (e Engine) String() string { return engineNames[e] }

// EngineFor is the engine of a name in the options.
func EngineFor(name string) Engine {
	switch name {
	case Explicit.String():
		return Explicit
	case Auto.String():
		return Auto
	}
	return Managed
}

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
	Sink        Sink // receives what happens; may be nil
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
	addressSlack     = 2         // address space over memory, so that fragmentation of addresses does not matter
	reserveBytes     = 512 << 20 // left to the CUDA context, libraries and kernels' local memory
	progressEvery    = 16
	idleWait         = 10 * time.Millisecond
	busyWait         = 50 * time.Microsecond
	checkPatience    = 100 * time.Millisecond // for a copy to end, before it is asked whether it has failed
	headPatience     = 100 * time.Millisecond // for a launch that no move helps; then it may fault
	roomPatience     = time.Second            // for tensors to leave before plain memory grows
	watchdogPatience = 20 * time.Second       // for a move, while nothing runs after which one may be possible; then the engine is given up
	defaultStreams   = 2                      // handles up to this are default streams, the calling thread's own or the shared one
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

const minBudgetBytes = 64 << 20
