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

// LaunchCost is the CPU time of the job from one launch to the next, copies beside it included, once iterations are marked:
// the median of the iterations, each cut into stretches of which those count in which nothing waited for memory and
// few launches were unfinished. It is 0 when they are a small part of most iterations, as in a job whose CPU is far
// ahead of the device and does not keep it back.
func (x Recent) LaunchCost() time.Duration {
	var costs []time.Duration
	for _, i := range x.iterations() {
		costs = append(costs, i.cost())
	}
	if len(costs) == 0 {
		return 0
	}
	slices.Sort(costs)
	return costs[len(costs)/2]
}

// stretches are those of an iteration.
type stretches struct {
	all int
	cpu []time.Duration // how long those took that the CPU alone took
}

// cost is the time from one launch to the next, 0 when it is not known.
func (s stretches) cost() time.Duration {
	slices.Sort(s.cpu)
	var sum time.Duration
	n := 0
	for _, took := range s.cpu {
		if took <= costOutlier*s.cpu[len(s.cpu)/2] {
			sum += took
			n++
		}
	}
	if n == 0 || float64(n) < costShare*float64(s.all) {
		return 0
	}
	return sum / time.Duration(n*costOps)
}

func (x Recent) iterations() (all []stretches) {
	behind := make([]int, 0, len(x.Reports)) // by launch: how many were unfinished
	before := make([]int, 0, len(x.Trace.Events)+1)
	finished := -costQueued - 1 // not known
	for _, e := range x.Trace.Events {
		before = append(before, len(behind))
		switch e.Kind {
		case trace.KindLaunch, trace.KindCopy:
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
		var s stretches
		for first := before[i.First]; first+costOps < before[i.End]; first += costOps {
			s.all++
			last := first + costOps
			waited := slices.ContainsFunc(x.Reports[first:last], func(r Report) bool { return r.Waited })
			if !waited && behind[last] <= costQueued {
				s.cpu = append(s.cpu, x.Reports[last].At-x.Reports[first].At)
			}
		}
		all = append(all, s)
	}
	return all
}
