package live

import "github.com/penstock-gpu/penstock/internal/hostmem"

// unavailable stands for a number that cannot be had here; it is never printed as zero.
const unavailable = -1

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

	FetchedBytes      int64          `json:"fetched_bytes"`
	EvictedBytes      int64          `json:"evicted_bytes"`
	DiscardedBytes    int64          `json:"discarded_bytes"`
	PopulatedBytes    int64          `json:"populated_bytes"`
	Fetches           int64          `json:"fetches"`
	Evictions         int64          `json:"evictions"`
	Discards          int64          `json:"discards"`
	Populates         int64          `json:"populates"`
	InSeconds         float64        `json:"in_seconds"`  // the worker that brings in was busy
	OutSeconds        float64        `json:"out_seconds"` // the worker that takes out was busy
	SpaceStallSeconds float64        `json:"space_stall_seconds"`
	PlanState         string         `json:"plan_state"`            // of memory that stays on the device
	PlanWhy           string         `json:"plan_why,omitempty"`    // it is not followed
	PlanBytes         int64          `json:"plan_bytes"`            // planned addresses
	PlannedAllocs     int64          `json:"planned_allocations"`   // served by the plan
	ScriptedAllocs    int64          `json:"scripted_allocations"`  // of these, without a call into the engine
	UnplannedAllocs   int64          `json:"unplanned_allocations"` // not served by it while it was followed
	Stitches          int64          `json:"stitches"`              // ranges made of scattered memory
	StitchedHandles   int64          `json:"stitched_handles"`      // in them
	StitchReuses      int64          `json:"stitch_reuses"`         // allocations served by ranges made before
	PlainTensors      int64          `json:"plain_tensors"`         // served from plain memory because the arena had no range in one piece
	LockWaitSeconds   float64        `json:"lock_wait_seconds"`     // the job's threads waited for the engine's lock
	GatedLaunches     int64          `json:"gated_launches"`
	LateLaunches      int64          `json:"late_launches"`
	OpaqueLaunches    int64          `json:"opaque_launches"`
	DroppedRecords    int64          `json:"dropped_records"`
	UnhookedSymbols   int64          `json:"unhooked_symbols"`
	MissedRoutes      []string       `json:"missed_routes,omitempty"` // ways to the driver that the hook does not stand on, from the self-test at start
	OversizeLaunches  int64          `json:"oversize_launches"`
	OversizeName      string         `json:"oversize_name,omitempty"`
	OversizeBytes     int64          `json:"oversize_bytes,omitempty"`
	Explicit          *ExplicitStats `json:"explicit,omitempty"`
	FaultBatches      int64          `json:"fault_batches"`
	FaultedBytes      int64          `json:"faulted_bytes"`
	IterationLaunches int64          `json:"iteration_launches"`        // operations in the learned iteration; 0 when none is known
	IterationSeconds  float64        `json:"iteration_seconds"`         // one takes at present; 0 while that is not known
	InMemoryShare     float64        `json:"in_memory_share_estimated"` // of the speed in memory, at present; -1 where that is not known
	Moving            bool           `json:"moving"`                    // a move is under way: the residency is about to change
	Hooked            bool           `json:"hooked"`
	Failure           string         `json:"failure,omitempty"`
}

// Stats reports the engine's state.
func (l *Live) Stats() Stats {
	plain := l.plain.Stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.engine.catchUp()
	s := Stats{
		AllocatedBytes: l.liveBytes(), AllocatedPeakBytes: max(l.counts.livePeak.Load(), plain.FrontPeakBytes),
		ReservedBytes: l.reservedBytes(), ReservedPeakBytes: l.counts.reservedPeak.Load(),
		ResidentBytes: l.plainBytes.Load(), ResidentPeakBytes: plain.ReservedPeakBytes,
		BudgetBytes: l.budget, HostBudgetBytes: l.hostBudget(), DeviceTotalBytes: l.driver.Info().TotalBytes,
		Allocations: l.counts.allocs.Load() + plain.FrontAllocs, Frees: l.counts.frees.Load() + plain.FrontFrees,
		Retries: l.counts.retries.Load() + plain.Retries, OOMs: l.counts.ooms.Load(),
		Faults: unavailable, DroppedEvents: unavailable, H2DBytes: 0, PredictionHitRate: unavailable,
		Process: l.config.Label, Engine: "plain", Policy: l.config.Policy.Name, EngineWhy: l.why, Hooked: l.hook != nil, MissedRoutes: l.config.MissedRoutes,
		PlanState: plain.PlanState, PlanWhy: plain.PlanWhy, PlanBytes: plain.PlanBytes, PlannedAllocs: plain.Planned, ScriptedAllocs: plain.Scripted, UnplannedAllocs: plain.Unplanned,
		Stitches: plain.Stitches, StitchedHandles: plain.StitchedHandles, StitchReuses: plain.StitchReuses,
	}
	s.IterationSeconds, s.InMemoryShare = l.speed.iteration(), l.speed.share()
	s.AllocationsLive = s.Allocations - s.Frees
	s.DeviceFreeBytes = max(0, l.budget-s.AllocatedBytes)
	if l.failed != nil {
		s.Failure = l.failed.Error()
	}
	if l.hook != nil {
		c := l.hook.Counters()
		s.Launches = int64(c.Launches)
		s.OpaqueLaunches, s.DroppedRecords, s.UnhookedSymbols = int64(c.Opaque), int64(c.Dropped), int64(c.Unhooked)
	}
	l.engine.report(&s)
	return s
}

// Judge adds to the statistics of a job that has ended how near it came to an oracle, where the engine can say so. The
// command that it is given simulates that; without one, the evidence is left in the statistics. It takes two seconds at
// most, and is called after Close.
func (l *Live) Judge(s *Stats, command string) { l.engine.assess(s, command) }

// ResetPeaks makes the present the peak.
func (l *Live) ResetPeaks() {
	l.mu.Lock()
	l.engine.catchUp() // with what the fronts have served
	l.mu.Unlock()
	l.plain.ResetPeaks()
	l.counts.livePeak.Store(l.liveBytes())
	l.counts.reservedPeak.Store(l.reservedBytes())
}

// liveBytes are the bytes of live allocations, as asked for.
func (l *Live) liveBytes() int64 {
	return l.plain.LiveBytes() + l.privateLive.Load() + l.tensorLive.Load()
}

// reservedBytes are the bytes that live allocations and caches occupy.
func (l *Live) reservedBytes() int64 { return l.plainBytes.Load() + l.tensorReserved.Load() }

// hostTenths is how much of the available host memory is the default budget of the
// job's processes on this host together.
const hostTenths = 8

func (c Config) defaultHostBudget(availableBytes int64) int64 {
	return availableBytes / 10 * hostTenths / int64(max(1, c.LocalProcesses))
}

// availableHostBytes is what this process may still take without swapping or
// passing its control group's limit; 0 when the system does not say.
func availableHostBytes() int64 {
	m, err := hostmem.Available()
	if err != nil {
		return 0
	}
	return m.AvailableBytes
}
