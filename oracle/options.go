package oracle

import (
	"fmt"
	"time"
)

// Defaults of the optional fields of [Options].
const (
	DefaultPieceBytes = 16 << 20
	DefaultSmallBytes = 1 << 20
)

// Options say what the bound is computed for.
type Options struct {
	BudgetBytes       int64   // device memory for everything the trace allocates
	H2DBytesPerSecond float64 // rate of copies to the device while nothing moves the other way
	D2HBytesPerSecond float64 // the same to the host; math.Inf(1) makes eviction free
	// DuplexBytesPerSecond is what both directions carry together while both are
	// busy: each gets half of it, or its own rate where that is less. 0 means that
	// only one direction works at a time; math.Inf(1) that neither slows the other.
	DuplexBytesPerSecond float64
	BlockBytes           int64 // granularity of residency: sizes round up to it in the budget; 0 or 1 is exact
	PieceBytes           int64 // a tensor moves in pieces of at most this; 0 is DefaultPieceBytes
	SmallBytes           int64 // allocations below this never move; 0 is DefaultSmallBytes
	NoRepeat             bool  // let the trace's end be known: nothing is needed after it
	Timeline             bool  // fill Result.Timeline
	// LaunchCost is the CPU time of the job from one launch to the next: none starts before the job has come to it,
	// and after a copy to the host the job waits for that. 0: the job is as far ahead as it is needed.
	LaunchCost time.Duration
	// Quick tries one plan: enough to rank traces by, no bound.
	Quick bool
	// Patience is after how long no further plan is tried once there is one; 0: all are. With it
	// the result depends on the machine.
	Patience time.Duration
}

func (o Options) withDefaults() (Options, error) {
	switch {
	case o.BudgetBytes <= 0:
		return o, fmt.Errorf("oracle: budget of %d bytes: it must be positive", o.BudgetBytes)
	case !(o.H2DBytesPerSecond > 0):
		return o, fmt.Errorf("oracle: %g bytes a second to the device: the rate must be positive", o.H2DBytesPerSecond)
	case !(o.D2HBytesPerSecond > 0):
		return o, fmt.Errorf("oracle: %g bytes a second to the host: the rate must be positive", o.D2HBytesPerSecond)
	case !(o.DuplexBytesPerSecond >= 0):
		return o, fmt.Errorf("oracle: %g bytes a second both ways: the rate cannot be negative", o.DuplexBytesPerSecond)
	case o.LaunchCost < 0:
		return o, fmt.Errorf("oracle: %v from one launch to the next: it cannot be negative", o.LaunchCost)
	case o.BlockBytes < 0 || o.PieceBytes < 0 || o.SmallBytes < 0:
		return o, fmt.Errorf("oracle: block of %d, piece of %d, small limit of %d bytes: none may be negative", o.BlockBytes, o.PieceBytes, o.SmallBytes)
	}
	if o.BlockBytes == 0 {
		o.BlockBytes = 1
	}
	if o.PieceBytes == 0 {
		o.PieceBytes = DefaultPieceBytes
	}
	// Whole blocks move, so a piece is a whole number of them.
	o.PieceBytes = roundUp(o.PieceBytes, o.BlockBytes)
	if o.SmallBytes == 0 {
		o.SmallBytes = DefaultSmallBytes
	}
	return o, nil
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Result is the last full iteration of the best schedule found, or the mean of several (trace.Judged).
type Result struct {
	IterationSeconds float64
	ComputeSeconds   float64 // the launches' own durations
	StallSeconds     float64 // the rest: waiting for copies
	H2DBytes         int64   // moved to the device within the iteration
	D2HBytes         int64   // moved to the host within the iteration
	PeakLiveBytes    int64   // most bytes allocated at once, over the whole trace
	Plan             string  // which plan won
	Repeats          bool    // the iteration was followed by a repetition of itself
	Timeline         []Sample
}

// Sample is the state at one moment of the iteration; traffic and stalls are
// cumulative since it began.
type Sample struct {
	Seconds       float64
	ResidentBytes int64
	LiveBytes     int64
	H2DBytes      int64
	D2HBytes      int64
	StallSeconds  float64
}

// BudgetError says that one launch alone does not fit the budget.
type BudgetError struct {
	Kernel      string // the function's name, or the kind of copy
	NeedBytes   int64  // its access set, with everything that never moves
	BudgetBytes int64
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("oracle: %s touches %d bytes at once, the budget is %d: raise the budget to at least %d",
		e.Kernel, e.NeedBytes, e.BudgetBytes, e.NeedBytes)
}
