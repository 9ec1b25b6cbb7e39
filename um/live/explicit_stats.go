package live

import (
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/bound"
)

// ExplicitStats are what only the explicit engine has.
type ExplicitStats struct {
	InGBPerSecond     float64  `json:"in_gb_per_second"`  // while anything was copied that way
	OutGBPerSecond    float64  `json:"out_gb_per_second"` // likewise
	FetchStallSeconds float64  `json:"fetch_stall_seconds"`
	SpaceStallSeconds float64  `json:"space_stall_seconds"`
	MapStallSeconds   float64  `json:"map_stall_seconds"`
	GrantStallSeconds float64  `json:"grant_stall_seconds"` // the queue was drained, and memory searched for addresses
	CleanBytes        int64    `json:"clean_bytes"`         // left without a copy
	Dropped           int64    `json:"dropped"`             // chunks that were found able to be made again when they left
	DroppedBytes      int64    `json:"dropped_bytes"`
	DropsWrong        int64    `json:"drops_wrong"`              // that were found not to be, and stayed or were copied
	GuardWaits        int64    `json:"guard_waits"`              // launches and copies that waited for what had to be made before they might write
	Made              int64    `json:"made"`                     // moves in that made what had left again
	MadeBytes         int64    `json:"made_bytes"`               // which is not in h2d_bytes
	Unmade            int64    `json:"unmade"`                   // makings that did not give what had left, which was fetched
	Verified          int64    `json:"verified"`                 // recipes that were tried before something was to leave
	RecordedFunctions int      `json:"recorded_functions"`       // whose launches were tried
	TrustedFunctions  int      `json:"trusted_functions"`        // what these make leaves without a copy
	BannedFunctions   int      `json:"banned_functions"`         // that are not used any more
	BannedKernels     []string `json:"banned_kernels,omitempty"` // their names, and how often they were right
	// Makes is how much is made again ([explicit.Level]); LevelSeconds is how long an iteration took at each level when it was last tried.
	Makes        string             `json:"makes_again,omitempty"`
	LevelSeconds map[string]float64 `json:"level_seconds,omitempty"`
	// CopiedBytes is what was copied out instead of being dropped, by why ([explicit.Cause]).
	CopiedBytes        map[string]int64 `json:"copied_bytes_because,omitempty"`
	InPlaceBytes       int64            `json:"in_place_bytes"`  // used in host memory
	WaitedLaunches     int64            `json:"waited_launches"` // and copies
	WaitedForMap       int64            `json:"waited_for_map"`
	WaitedForFetch     int64            `json:"waited_for_fetch"`
	WaitedForLeaving   int64            `json:"waited_for_leaving"`
	WaitedForeach      int64            `json:"waited_foreach_launches"`
	HostBytes          int64            `json:"host_bytes"`      // pinned memory in use
	HostKeptBytes      int64            `json:"host_kept_bytes"` // of these: copies of what is on the device, given back when they are wanted
	HostPeakBytes      int64            `json:"host_peak_bytes"`
	HostNeedBytes      int64            `json:"host_need_bytes"` // at most, without what was kept
	HostPinnedBytes    int64            `json:"host_pinned_bytes"`
	HostWaitSeconds    float64          `json:"host_wait_seconds"` // for memory to be pinned
	PlainBytes         int64            `json:"plain_bytes"`       // of the budget, memory that does not leave the device
	Maps               int64            `json:"maps"`
	Reclaims           int64            `json:"reclaims"`
	HandlesCreated     int64            `json:"handles_created"`
	HandlesReleased    int64            `json:"handles_released"`
	ReusedRanges       int64            `json:"reused_ranges"`
	FreshRanges        int64            `json:"fresh_ranges"`
	LooksAgain         int64            `json:"looks_again,omitempty"` // nothing had moved for long while a launch waited, and everything was looked at again
	BorrowedRanges     int64            `json:"borrowed_ranges"`       // allocations in ranges of a larger size
	FrontAllocs        int64            `json:"front_allocs"`          // allocations that did not wait for the engine
	Packs              int64            `json:"packs"`                 // ranges that allocations shared
	PackedAllocs       int64            `json:"packed_allocs"`
	EvictionsTakenBack int64            `json:"evictions_taken_back"`
	Inspected          int64            `json:"inspected_launches"`
	Chasers            int64            `json:"pointer_chasing_launches"`
	Followed           int64            `json:"followed_launches"` // that were not searched, as they reach what the launch before them names
	Unresolved         int64            `json:"unresolved_launches"`
	CPUWaitSeconds     float64          `json:"cpu_wait_seconds"`
	Plans              int64            `json:"plans"`
	// WorkerSeconds is what the time of the threads that bring in (in_), take out (out_) and copy
	// what leaves (lane_) went to, and which calls of the driver that to begin and to finish
	// moves was spent in.
	WorkerSeconds   map[string]float64 `json:"worker_seconds"`
	bound.Judgement                    // at the end of the job only
}

// report fills in the engine's part of a snapshot. The caller holds the lock.
func (e *swap) report(s *Stats) {
	r := e.runtime.Stats()
	s.Engine = Explicit.String()
	s.ResidentBytes = r.DeviceBytes
	s.ResidentPeakBytes = r.DevicePeakBytes
	s.HostBudgetBytes = e.host.Stats().BudgetBytes
	s.FetchedBytes, s.EvictedBytes = r.FetchedBytes, r.EvictedBytes
	s.H2DBytes, s.D2HBytes = r.FetchedBytes, r.EvictedBytes
	s.Fetches, s.Evictions = r.Fetches, r.Evictions
	s.LockWaitSeconds = time.Duration(e.l.counts.lockWait.Load()).Seconds()
	s.InSeconds, s.OutSeconds = e.moveTime[um.In].Seconds(), e.moveTime[um.Out].Seconds()
	stall := r.Stall
	s.StallSeconds = (r.Stalled() + e.grantTime).Seconds()
	s.SpaceStallSeconds = stall[um.ForSpace].Seconds()
	s.OversizeLaunches, s.OversizeName, s.OversizeBytes = r.OversizeOps, r.OversizeName, r.OversizeBytes
	s.IterationLaunches, s.Moving = r.History.Period, e.runtime.Moving()
	var served int64
	if e.front != nil {
		served = e.front.Served()
	}
	if r.History.Ops > 0 {
		s.PredictionHitRate = float64(r.History.Predicted) / float64(r.History.Ops)
	}
	c, h := e.hook.Counters(), e.host.Stats()
	s.GatedLaunches = int64(c.CPUWaits)
	s.Explicit = &ExplicitStats{
		InGBPerSecond: rate(r.FetchedBytes, s.InSeconds), OutGBPerSecond: rate(r.EvictedBytes, s.OutSeconds),
		FetchStallSeconds: stall[um.ForFetch].Seconds(), SpaceStallSeconds: stall[um.ForSpace].Seconds(), MapStallSeconds: stall[um.ForMap].Seconds(),
		GrantStallSeconds: e.grantTime.Seconds(), CleanBytes: r.CleanBytes, Dropped: r.Dropped, DroppedBytes: r.DroppedBytes, DropsWrong: r.Wrong, GuardWaits: r.GuardWaits, Made: r.Made, MadeBytes: r.MadeBytes, Unmade: r.Unmade,
		Verified: r.Verified, RecordedFunctions: r.Recorded, TrustedFunctions: r.Trusted, BannedFunctions: r.Banned, BannedKernels: r.BannedKernels, CopiedBytes: copiedBytes(&r),
		InPlaceBytes:   r.InPlaceBytes,
		WaitedLaunches: r.WaitedOps, WaitedForMap: r.WaitedForMap, WaitedForFetch: r.WaitedForFetch, WaitedForLeaving: r.WaitedForLeaving, WaitedForeach: r.WaitedForeach,
		HostBytes: h.InUseBytes, HostKeptBytes: r.KeptBytes, HostNeedBytes: r.HostPeakBytes, HostPeakBytes: h.PeakBytes, HostPinnedBytes: h.GrownBytes, HostWaitSeconds: h.Waited.Seconds(),
		PlainBytes: r.PlainBytes, Maps: r.Maps, Reclaims: r.Reclaims, HandlesCreated: r.Created, HandlesReleased: r.Released,
		ReusedRanges: r.ReusedRanges, FreshRanges: r.FreshRanges, LooksAgain: r.LooksAgain, BorrowedRanges: r.BorrowedRanges, FrontAllocs: served, Packs: r.Packs, PackedAllocs: r.PackedAllocs,
		EvictionsTakenBack: r.TakenBack,
		Inspected:          e.inspected, Chasers: e.chasers, Followed: int64(c.Followed), Unresolved: e.unresolved,
		CPUWaitSeconds: time.Duration(c.CPUWaitNS).Seconds(), Plans: r.Plans, WorkerSeconds: e.workerSeconds(),
	}
	s.Explicit.Makes, s.Explicit.LevelSeconds = e.levels(&r)
}

// levels are how much is made again, and how long an iteration took at each level; nothing where --replay is off.
func (e *swap) levels(r *explicit.Stats) (at string, seconds map[string]float64) {
	if e.l.config.Replay == um.ReplayOff {
		return "", nil
	}
	seconds = map[string]float64{}
	for l, took := range r.Took {
		if took > 0 {
			seconds[explicit.Level(l).String()] = took.Seconds()
		}
	}
	if at = r.Level.String(); r.Trying {
		at = explicit.LevelTried.String()
	}
	return at, seconds
}

// copiedBytes is what was copied out, by why, where anything is made again.
func copiedBytes(r *explicit.Stats) map[string]int64 {
	by := map[string]int64{}
	for c := explicit.NotRecorded; c < explicit.Causes; c++ {
		if n := r.CopiedBytes[c]; n > 0 {
			by[c.String()] = n
		}
	}
	return by
}

// workerSeconds is what the workers' time went to, by direction and part, and by call.
func (e *swap) workerSeconds() map[string]float64 {
	seconds := map[string]float64{}
	for d, direction := range []string{"in", "out"} {
		for part, name := range partNames {
			seconds[direction+"_"+name] = e.spent[d][part].Seconds()
		}
		for call, spent := range e.driverTime[d] {
			seconds[fmt.Sprint(direction, "_", explicit.Call(call))] = spent.Seconds()
		}
	}
	if e.lane != nil {
		for part, name := range laneNames {
			seconds["lane_"+name] = time.Duration(e.lane.spent[part].Load()).Seconds()
		}
	}
	return seconds
}
