package trace

import (
	"math"
	"slices"
	"time"
)

// OpKind tells operations apart by what they do. Those that are exactly of a kind do the same work; where none of these was timed,
// those that are roughly of it have to do: allocations that share ranges, say, share others the next time.
type OpKind struct{ Exact, Rough uint64 }

// Timings are how long operations of a kind took on the device, of those that were timed: a few of many.
type Timings map[uint64][]time.Duration

// Of are those that stand for a kind.
func (t Timings) Of(k OpKind) []time.Duration {
	if timed := t[k.Exact]; len(timed) > 0 {
		return timed
	}
	return t[k.Rough]
}

const (
	mostTimings = 32      // of a kind, the newest
	mostKinds   = 1 << 15 // that are remembered; what a job launches is not that various
)

// typical is the mean of what was timed without the slowest and the fastest quarter: beside some ran something else, and the first
// of a job are slow. off is how far it may be wrong: its standard error.
func typical(timed []time.Duration) (mean, off float64) {
	timed = slices.Sorted(slices.Values(timed))
	slowest := min((len(timed)+3)/4, len(timed)-1)
	timed = timed[len(timed)/4 : len(timed)-slowest]
	n := float64(len(timed))
	var sum, squares float64
	for _, d := range timed {
		sum += d.Seconds()
		squares += d.Seconds() * d.Seconds()
	}
	mean = sum / n
	return mean, math.Sqrt(max(0, squares/n-mean*mean) / n)
}

// UseTimings gives the launches and copies of a trace with estimated durations those that their kinds were timed to have: kinds
// has one for each of them, in order. What is of a kind that was never timed gets the median of what was estimated for that.
// The trace's Estimate says for how much timings stand.
func (t *Trace) UseTimings(kinds []OpKind, timings Timings) {
	if t.Estimate == nil || len(timings) == 0 {
		return
	}
	type kind struct {
		seconds, off float64
		events       []int
		timed        bool
	}
	all, rough := map[OpKind]*kind{}, map[uint64]bool{}
	operation := 0
	for i := range t.Events {
		if !t.Events[i].isOperation() {
			continue
		}
		key := kinds[operation]
		operation++
		k := all[key]
		if k == nil {
			k = &kind{}
			if timed := timings.Of(key); len(timed) > 0 {
				k.timed = true
				if len(timings[key.Exact]) > 0 {
					t.Estimate.Timed += len(timed)
				} else if !rough[key.Rough] {
					rough[key.Rough] = true
					t.Estimate.Timed += len(timed)
				}
				k.seconds, k.off = typical(timed)
			}
			all[key] = k
		}
		k.events = append(k.events, i)
	}
	var sum, timed, variance float64
	for _, k := range all {
		if !k.timed {
			estimated := make([]time.Duration, 0, len(k.events))
			for _, i := range k.events {
				if d := t.Events[i].Duration; d >= 0 {
					estimated = append(estimated, d)
				}
			}
			if len(estimated) == 0 {
				continue
			}
			slices.Sort(estimated)
			k.seconds = estimated[(len(estimated)-1)/2].Seconds()
		}
		n := float64(len(k.events))
		sum += n * k.seconds
		if k.timed {
			timed += n * k.seconds
			variance += n * k.off * n * k.off
		}
		for _, i := range k.events {
			t.Events[i].Duration = time.Duration(k.seconds * 1e9)
		}
	}
	t.Estimate.Unknown = 0
	for i := range t.Events {
		if e := &t.Events[i]; e.isOperation() && e.Duration < 0 {
			t.Estimate.Unknown++
		}
	}
	if sum > 0 {
		t.Estimate.TimedShare = timed / sum
	}
	if timed > 0 {
		t.Estimate.TimedError = math.Sqrt(variance) / timed
	}
}

// Add adds what one operation took.
func (t Timings) Add(k OpKind, took time.Duration) {
	for _, kind := range []uint64{k.Exact, k.Rough} {
		timed := t[kind]
		if timed == nil && len(t) >= mostKinds {
			continue
		}
		if len(timed) == mostTimings {
			timed = slices.Delete(timed, 0, 1)
		}
		t[kind] = append(timed, took)
	}
}

// Mix adds to what tells kinds of operations apart.
func Mix(kind, more uint64) uint64 {
	kind = (kind ^ more) * 0x9e3779b97f4a7c15
	return kind ^ kind>>29
}
