package swapped

import (
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// Report fills in the engine's part of a snapshot. The caller holds the lock.
func (e *Engine) Report(s *stats.Stats) {
	r := e.runtime.Stats()
	s.Engine, s.Part = e.String(), verdict{}
	s.ResidentBytes = r.DeviceBytes
	s.ResidentPeakBytes = r.DevicePeakBytes
	s.HostBudgetBytes = e.host.Stats().BudgetBytes
	s.FetchedBytes, s.EvictedBytes = r.FetchedBytes, r.EvictedBytes
	s.H2DBytes, s.D2HBytes = r.FetchedBytes, r.EvictedBytes
	s.Fetches, s.Evictions = r.Fetches, r.Evictions
	s.LockWaitSeconds = time.Duration(e.proc.Counts.LockWait.Load()).Seconds()
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
	s.Explicit = &stats.Explicit{
		InGBPerSecond: stats.Rate(r.FetchedBytes, s.InSeconds), OutGBPerSecond: stats.Rate(r.EvictedBytes, s.OutSeconds),
		FetchStallSeconds: stall[um.ForFetch].Seconds(), SpaceStallSeconds: stall[um.ForSpace].Seconds(), MapStallSeconds: stall[um.ForMap].Seconds(),
		GrantStallSeconds: e.grantTime.Seconds(), CleanBytes: r.CleanBytes, Dropped: r.Dropped, DroppedBytes: r.DroppedBytes, DropsWrong: r.Wrong, GuardWaits: r.GuardWaits, Made: r.Made, MadeBytes: r.MadeBytes, Unmade: r.Unmade,
		Verified: r.Verified, RecordedFunctions: r.Recorded, TrustedFunctions: r.Trusted, BannedFunctions: r.Banned, BannedKernels: r.BannedKernels, CopiedBytes: copiedBytes(&r),
		InPlaceBytes:   r.InPlaceBytes,
		WaitedLaunches: r.WaitedOps, WaitedForMap: r.WaitedForMap, WaitedForFetch: r.WaitedForFetch, WaitedForLeaving: r.WaitedForLeaving, WaitedForeach: r.WaitedForeach,
		HostBytes: h.InUseBytes, HostKeptBytes: r.KeptBytes, HostNeedBytes: r.HostPeakBytes, HostPeakBytes: h.PeakBytes, HostPinnedBytes: h.GrownBytes, HostWaitSeconds: h.Waited.Seconds(),
		PlainBytes: r.PlainBytes, Maps: r.Maps, Reclaims: r.Reclaims, HandlesCreated: r.Created, HandlesReleased: r.Released,
		ReusedRanges: r.ReusedRanges, FreshRanges: r.FreshRanges, LooksAgain: r.LooksAgain, BorrowedRanges: r.BorrowedRanges, Bursts: r.Bursts, AliasedRanges: r.AliasedRanges, FrontAllocs: served, Packs: r.Packs, PackedAllocs: r.PackedAllocs,
		EvictionsTakenBack: r.TakenBack,
		Inspected:          e.inspected, Chasers: e.chasers, Followed: int64(c.Followed), Unresolved: e.unresolved,
		CPUWaitSeconds: time.Duration(c.CPUWaitNS).Seconds(), Plans: r.Plans, WorkerSeconds: e.workerSeconds(),
	}
	s.Explicit.Makes, s.Explicit.LevelSeconds = e.levels(&r)
}

// levels are how much is made again, and how long an iteration took at each level; nothing where --replay is off.
func (e *Engine) levels(r *explicit.Stats) (at string, seconds map[string]float64) {
	if e.config.Replay == um.ReplayOff {
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
func (e *Engine) workerSeconds() map[string]float64 {
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
