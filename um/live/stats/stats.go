package stats

// Unavailable stands for a number that cannot be had here; it is never printed as zero.
const Unavailable = -1

// Stats is a snapshot of the engine. Its JSON keys are those of penstock_stats (cabi/penstock.h).
type Stats struct {
	AllocatedBytes     int64   `json:"allocated_bytes"`
	AllocatedPeakBytes int64   `json:"allocated_peak_bytes"`
	ReservedBytes      int64   `json:"reserved_bytes"`
	ReservedPeakBytes  int64   `json:"reserved_peak_bytes"`
	ResidentBytes      int64   `json:"resident_bytes"`
	ResidentPeakBytes  int64   `json:"resident_peak_bytes"`
	BudgetBytes        int64   `json:"budget_bytes"`
	HostBudgetBytes    int64   `json:"host_budget_bytes"`
	DeviceTotalBytes   int64   `json:"device_total_bytes"`
	DeviceFreeBytes    int64   `json:"device_free_bytes"`
	Allocations        int64   `json:"allocations"`
	AllocationsLive    int64   `json:"allocations_live"`
	Frees              int64   `json:"frees"`
	Retries            int64   `json:"retries"`
	OOMs               int64   `json:"ooms"`
	H2DBytes           int64   `json:"h2d_bytes"`
	D2HBytes           int64   `json:"d2h_bytes"`
	Faults             int64   `json:"faults"`
	DroppedEvents      int64   `json:"dropped_events"`
	StallSeconds       float64 `json:"stall_seconds"`
	Launches           int64   `json:"launches"`
	PredictionHitRate  float64 `json:"prediction_hit_rate"`
	Process            string  `json:"process,omitempty"` // of the job, as in the names of its files: rank1
	Engine             string  `json:"engine"`
	EngineWhy          string  `json:"engine_why,omitempty"` // it was chosen, where the choice was open
	Policy             string  `json:"policy"`

	FetchedBytes      int64     `json:"fetched_bytes"`
	EvictedBytes      int64     `json:"evicted_bytes"`
	DiscardedBytes    int64     `json:"discarded_bytes"`
	PopulatedBytes    int64     `json:"populated_bytes"`
	Fetches           int64     `json:"fetches"`
	Evictions         int64     `json:"evictions"`
	Discards          int64     `json:"discards"`
	Populates         int64     `json:"populates"`
	InSeconds         float64   `json:"in_seconds"`  // the worker that brings in was busy
	OutSeconds        float64   `json:"out_seconds"` // the worker that takes out was busy
	SpaceStallSeconds float64   `json:"space_stall_seconds"`
	PlanState         string    `json:"plan_state"`            // of memory that stays on the device
	PlanWhy           string    `json:"plan_why,omitempty"`    // it is not followed
	PlanBytes         int64     `json:"plan_bytes"`            // planned addresses
	PlannedAllocs     int64     `json:"planned_allocations"`   // served by the plan
	ScriptedAllocs    int64     `json:"scripted_allocations"`  // of these, without a call into the engine
	UnplannedAllocs   int64     `json:"unplanned_allocations"` // not served by it while it was followed
	Stitches          int64     `json:"stitches"`              // ranges made of scattered memory
	StitchedHandles   int64     `json:"stitched_handles"`      // in them
	StitchReuses      int64     `json:"stitch_reuses"`         // allocations served by ranges made before
	PlainTensors      int64     `json:"plain_tensors"`         // served from plain memory because the arena had no range in one piece
	LockWaitSeconds   float64   `json:"lock_wait_seconds"`     // the job's threads waited for the engine's lock
	GatedLaunches     int64     `json:"gated_launches"`
	LateLaunches      int64     `json:"late_launches"`
	OpaqueLaunches    int64     `json:"opaque_launches"`
	DroppedRecords    int64     `json:"dropped_records"`
	UnhookedSymbols   int64     `json:"unhooked_symbols"`
	UnhookedNames     []string  `json:"unhooked_names,omitempty"`
	MissedRoutes      []string  `json:"missed_routes,omitempty"` // ways to the driver that the hook does not stand on, from the self-test at start
	OversizeLaunches  int64     `json:"oversize_launches"`
	OversizeName      string    `json:"oversize_name,omitempty"`
	OversizeBytes     int64     `json:"oversize_bytes,omitempty"`
	Explicit          *Explicit `json:"explicit,omitempty"`
	FaultBatches      int64     `json:"fault_batches"`
	FaultedBytes      int64     `json:"faulted_bytes"`
	IterationLaunches int64     `json:"iteration_launches"`        // operations in the learned iteration; 0 when none is known
	IterationSeconds  float64   `json:"iteration_seconds"`         // one takes at present; 0 while that is not known
	InMemoryShare     float64   `json:"in_memory_share_estimated"` // of the speed in memory, at present; -1 where that is not known
	Moving            bool      `json:"moving"`                    // a move is under way: the residency is about to change
	Hooked            bool      `json:"hooked"`
	Failure           string    `json:"failure,omitempty"`
	Part              Part      `json:"-"` // of the verdict: that of the engine the snapshot is of, nil where there is none
}
