package top

import (
	"time"

	"github.com/penstock-gpu/penstock/internal/jobs"
)

// Sample is what the jobs answered at one look.
type Sample struct {
	Jobs     []jobs.Job
	Problems []jobs.Problem
	At       time.Time
	Err      error // of a look at one job
}

// Rates are what happened a second between two answers of a job.
type Rates struct {
	Seconds   float64 `json:"seconds"` // between them
	In        float64 `json:"to_device_bytes_per_second"`
	Out       float64 `json:"to_host_bytes_per_second"`
	Dropped   float64 `json:"dropped_bytes_per_second"`
	Made      float64 `json:"made_bytes_per_second"`
	Launches  float64 `json:"launches_per_second"`
	Guards    float64 `json:"guard_waits_per_second"`
	Stalled   float64 `json:"stalled_share"` // of the time
	ForData   float64 `json:"stalled_for_data_share"`
	ForSpace  float64 `json:"stalled_for_space_share"`
	ForMap    float64 `json:"stalled_for_mapping_share"`
	ForGrants float64 `json:"stalled_for_search_share"`
	Lock      float64 `json:"lock_wait_share"`
}

// ratesOf compares two answers of a job; nil when they tell nothing.
func ratesOf(a, b jobs.Job) *Rates {
	seconds := b.TakenAt - a.TakenAt
	x, y := a.Shown, b.Shown
	if !(seconds > 0) || a.PID != b.PID || y.Launches < x.Launches { // or a number is another process's by now
		return nil
	}
	per := func(p, q float64) float64 { return max(0, (q-p)/seconds) }
	share := func(p, q float64) float64 { return min(1, per(p, q)) }
	return &Rates{
		Seconds: seconds,
		In:      per(x.H2DBytes, y.H2DBytes), Out: per(x.D2HBytes, y.D2HBytes),
		Dropped: per(x.Explicit.DroppedBytes, y.Explicit.DroppedBytes), Made: per(x.Explicit.MadeBytes, y.Explicit.MadeBytes),
		Launches: per(x.Launches, y.Launches), Guards: per(x.Explicit.GuardWaits, y.Explicit.GuardWaits),
		Stalled: share(x.StallSeconds, y.StallSeconds), ForSpace: share(x.SpaceStallSeconds, y.SpaceStallSeconds),
		ForData: share(x.Explicit.FetchStallSeconds, y.Explicit.FetchStallSeconds), ForMap: share(x.Explicit.MapStallSeconds, y.Explicit.MapStallSeconds),
		ForGrants: share(x.Explicit.GrantStallSeconds, y.Explicit.GrantStallSeconds),
		Lock:      share(x.LockWaitSeconds, y.LockWaitSeconds),
	}
}

// seen is a job with its rates.
type seen struct {
	jobs.Job
	rates *Rates
}

// follower remembers each job's last answer.
type follower struct{ last map[int]jobs.Job }

// follow gives the jobs of a sample with their rates. Of an answer that is no newer than the last there are none.
func (f *follower) follow(s Sample) []seen {
	all := make([]seen, 0, len(s.Jobs))
	next := map[int]jobs.Job{}
	for _, j := range s.Jobs {
		x := seen{Job: j}
		if before, ok := f.last[j.PID]; ok {
			x.rates = ratesOf(before, j)
		}
		all = append(all, x)
		next[j.PID] = j
	}
	f.last = next
	return all
}
