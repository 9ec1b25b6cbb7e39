package paged

import (
	"time"

	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// Report fills in the engine's part of a snapshot. The caller holds the lock.
func (e *Engine) Report(s *stats.Stats) {
	if e.runtime == nil {
		return
	}
	proc := e.proc
	r := e.runtime.Stats()
	s.Engine, s.Part = e.String(), verdict{}
	s.InSeconds, s.OutSeconds = e.moveTime[um.In].Seconds(), e.moveTime[um.Out].Seconds()
	s.ResidentBytes += r.ResidentBytes
	s.ResidentPeakBytes = max(s.ResidentPeakBytes, r.DevicePeakBytes)
	s.H2DBytes, s.D2HBytes = r.FetchedBytes, r.EvictedBytes
	s.FetchedBytes, s.EvictedBytes, s.DiscardedBytes, s.PopulatedBytes = r.FetchedBytes, r.EvictedBytes, r.DiscardedBytes, r.PopulatedBytes
	s.Fetches, s.Evictions, s.Discards, s.Populates = r.Fetches, r.Evictions, r.Discards, r.Populates
	s.PlainTensors = proc.Counts.Beside.Load()
	s.LockWaitSeconds = time.Duration(proc.Counts.LockWait.Load()).Seconds()
	s.StallSeconds, s.SpaceStallSeconds = r.Stalled().Seconds(), r.Stall[um.ForSpace].Seconds()
	s.GatedLaunches, s.LateLaunches = r.GatedOps, r.LateOps
	s.OversizeLaunches, s.OversizeName, s.OversizeBytes = r.OversizeOps, r.OversizeName, r.OversizeBytes
	s.IterationLaunches, s.Moving = r.History.Period, e.runtime.Moving()
	if r.History.Ops > 0 {
		s.PredictionHitRate = float64(r.History.Predicted) / float64(r.History.Ops)
	}
	if f := &e.faults; f.source != nil {
		s.Faults, s.FaultBatches, s.FaultedBytes = f.faults, f.batches, f.faultedBytes
		s.H2DBytes, s.D2HBytes = f.h2dBytes, f.d2hBytes
		s.DroppedEvents = int64(f.source.Dropped())
	}
}
