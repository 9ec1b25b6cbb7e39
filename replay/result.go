package replay

import (
	"github.com/penstock-gpu/penstock/um/explicit"
	"time"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/trace"
)

// Policies that a trace can be replayed under.
const (
	PolicyNaive    = "naive"    // the stock driver on demand paging under PyTorch's caching allocator
	PolicyLRU      = "lru"      // prefetch of each launch's access set when it is seen; least recently used out; dead blocks known
	PolicyDeepUM   = "deepum"   // correlation tables, pre-eviction of the least recently migrated unpredicted block, dead blocks invalidated
	PolicyPenstock = "penstock" // access sets from parameters, next-use eviction, look-ahead
	PolicyOracle   = "oracle"   // knows the future; no software cost: the bound
)

// PolicyOracleReplay is what a result of the oracle with Options.Replay is called.
const PolicyOracleReplay = PolicyOracle + withReplay

const withReplay = " with replay"

// Engines: how bytes move.
const (
	EngineManaged  = "managed"
	EngineExplicit = "explicit"
)

// DefaultLaunchCost is the CPU time of a launch itself (measured on an H200, driver 580.159).
const DefaultLaunchCost = 3800 * time.Nanosecond

// Options say what to replay and on what.
type Options struct {
	Policy      string
	Engine      string
	Ratio       float64 // oversubscription: peak live bytes over budget; used when BudgetBytes is 0
	BudgetBytes int64
	Profile     sim.Profile
	NoPacks     bool          // in the explicit engine: see um/explicit
	LaunchCost  time.Duration // CPU time of the job from one launch to the next; 0 = DefaultLaunchCost, and none for the oracle
	Bus         Bus           // that the oracle of the explicit engine has; the zero value is the profile's
	// SoftwareCap gives the card room for everything: the runtime itself keeps
	// residency under the budget, evicting to the host beside what it brings in,
	// as on a card that is larger than the budget.
	SoftwareCap bool
	level       explicit.Level        // of what the explicit engine makes again: see runExplicit
	Replay      bool                  // launches are made again instead of what they made being moved; see Replays
	Timeline    bool                  // fill Result.Timeline
	Each        bool                  // fill Result.Each
	Progress    func(done, total int) // called now and then with events replayed; may be nil
}

// Bus is what copies may move, in bytes a second: each way, and both together.
type Bus struct{ In, Out, Both float64 }

// Result is what one replay measured on the simulated GPU over the last full
// iteration of the trace, or the mean of as many as it says (trace.Judged). Every number in it is simulated.
type Result struct {
	Trace             string               `json:"trace"`
	Policy            string               `json:"policy"`
	Engine            string               `json:"engine"`
	GPU               string               `json:"gpu"`
	BudgetBytes       int64                `json:"budget_bytes"`
	PeakLiveBytes     int64                `json:"peak_live_bytes"`
	Iterations        int                  `json:"iterations,omitempty"` // of which this is the mean, where they are several
	ComputeSeconds    float64              `json:"compute_seconds"`
	IterationSeconds  float64              `json:"iteration_seconds"`
	StallSeconds      float64              `json:"stall_seconds"`
	H2DBytes          int64                `json:"h2d_bytes"`
	D2HBytes          int64                `json:"d2h_bytes"`
	Faults            int64                `json:"faults"`
	PredictionHitRate float64              `json:"prediction_hit_rate"` // launches predicted correctly over launches; 0 for policies that do not predict
	LaunchCostSeconds float64              `json:"launch_cost_seconds"` // CPU time of the job from one launch to the next that was assumed; 0 for the oracle
	Durations         trace.DurationSource `json:"durations"`           // of kernels and copies
	Simulated         bool                 `json:"simulated"`           // always true
	Replay            *Again               `json:"replay,omitempty"`    // with Options.Replay

	Timeline []Sample `json:"timeline,omitempty"`
	Each     []Turn   `json:"each,omitempty"`
}

// Turn is one iteration of the trace, whatever is reported.
type Turn struct {
	Seconds    float64 `json:"seconds"`
	H2DBytes   int64   `json:"h2d_bytes"`
	Operations int64   `json:"operations"`
	Predicted  int64   `json:"predicted"` // operations that came as predicted
}

// Sample is the state at one moment of what is reported. Bytes and
// stalls are cumulative since that began.
type Sample struct {
	Seconds       float64 `json:"seconds"`
	ResidentBytes int64   `json:"resident_bytes"`
	LiveBytes     int64   `json:"live_bytes"`
	H2DBytes      int64   `json:"h2d_bytes"`
	D2HBytes      int64   `json:"d2h_bytes"`
	StallSeconds  float64 `json:"stall_seconds"`
}
