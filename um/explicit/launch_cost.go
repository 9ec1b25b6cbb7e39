package explicit

import (
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

const (
	// costOps launches in a row are looked at together: they are reported a few at a time.
	costOps = 32
	// costQueued is how many launches may be unfinished for the job to be held back by its CPU alone:
	// of some thousand, the driver lets it wait for the device.
	costQueued = 256
	// costOutlier times the median is a stretch in which the program waited for something else, the device for instance.
	costOutlier = 4
	// costShare is the least part of an iteration that must be known.
	costShare = 0.25
)

// LaunchCost is the CPU time of the job from one launch to the next, copies beside it included, once iterations are marked.
// An iteration is cut into stretches, of which those count in which nothing waited for memory and few launches were
// unfinished: the median of all iterations each. It is 0 when they are a small part of an iteration, as in a job
// whose CPU is far ahead of the device and does not keep it back.
func (x Recent) LaunchCost() time.Duration {
	stretches := x.stretches()
	var medians []time.Duration
	for _, s := range stretches {
		if len(s) > 0 {
			slices.Sort(s)
			medians = append(medians, s[len(s)/2])
		}
	}
	slices.Sort(medians)
	var sum time.Duration
	n := 0
	for _, m := range medians {
		if m <= costOutlier*medians[len(medians)/2] {
			sum += m
			n++
		}
	}
	if n == 0 || float64(n) < costShare*float64(len(stretches)) {
		return 0
	}
	return sum / time.Duration(n*costOps)
}

// stretches are how long the parts of an iteration took of which that is told, for each the iterations' times.
func (x Recent) stretches() (all [][]time.Duration) {
	behind := make([]int, 0, len(x.Reports)) // by launch: how many were unfinished
	before := make([]int, 0, len(x.Trace.Events)+1)
	finished := -costQueued - 1 // not known
	for _, e := range x.Trace.Events {
		before = append(before, len(behind))
		switch e.Kind {
		case trace.KindLaunch:
			behind = append(behind, len(behind)-finished)
		case trace.KindProgress:
			finished = max(finished, int(e.Alloc))
		}
	}
	before = append(before, len(behind))
	if len(x.Reports) < len(behind) {
		return nil
	}
	for _, i := range x.Trace.Iterations() {
		for k, first := 0, before[i.First]; first+costOps < before[i.End]; k, first = k+1, first+costOps {
			if k == len(all) {
				all = append(all, nil)
			}
			last := first + costOps
			waited := slices.ContainsFunc(x.Reports[first:last], func(r Report) bool { return r.Waited })
			if !waited && behind[last] <= costQueued {
				all[k] = append(all[k], x.Reports[last].At-x.Reports[first].At)
			}
		}
	}
	return all
}
