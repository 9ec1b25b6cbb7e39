package stats

import "github.com/penstock-gpu/penstock/um/live/bound"

// Explicit are what only the explicit engine has.
type Explicit struct {
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
	// Makes is how much is made again (explicit.Level); LevelSeconds is how long an iteration took at each level when it was last tried.
	Makes        string             `json:"makes_again,omitempty"`
	LevelSeconds map[string]float64 `json:"level_seconds,omitempty"`
	// CopiedBytes is what was copied out instead of being dropped, by why (explicit.Cause).
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
	Bursts             int64            `json:"bursts"`                // dead ranges that allocations with short lives shared
	AliasedRanges      int64            `json:"aliased_ranges"`        // memory that became free at addresses that were still mapped to it
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
