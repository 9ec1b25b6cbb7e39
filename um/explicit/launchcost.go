package explicit

import (
	"slices"
	"time"
)

const (
	// costOps operations in a row are looked at together: they are reported a few at a time.
	costOps = 32
	// costQueued is how many operations may be unfinished for the job to be held back by its CPU alone:
	// of some thousand, the driver lets it wait for the device.
	costQueued = 256
	// costOutlier times the median is what the program waited for something else in, the device for instance.
	costOutlier = 4
	// costShare is the least share of the time for which all this must hold.
	costShare = 0.25
)

// LaunchCost is the CPU time of the job from one operation to the next, from those that are remembered
// ([Runtime.Remember]): of stretches in which nothing waited for memory and few operations were unfinished. It is 0
// when these are a small part of all, as in a job whose CPU is far ahead of the device, which it then does not keep back.
func (r *Runtime) LaunchCost() time.Duration {
	x := &r.recent
	if len(x.launched) == 0 {
		return 0
	}
	marks, finished := x.marks(), int64(-1)
	var costs []time.Duration // of stretches
	stretches := 0
	first := max(0, x.newest+1-int64(len(x.launched)))
	for begin := first; begin+costOps <= x.newest; begin += costOps {
		stretches++
		began, ended := x.at(begin).at, x.at(begin+costOps).at
		for ; len(marks) > 0 && marks[0].at <= ended; marks = marks[1:] {
			finished = max(finished, marks[0].position)
		}
		if begin+costOps-finished <= costQueued && !x.waitedIn(begin, begin+costOps) {
			costs = append(costs, ended-began)
		}
	}
	slices.Sort(costs)
	var sum, n time.Duration
	for _, c := range costs {
		if c <= costOutlier*costs[len(costs)/2] {
			sum += c
			n += costOps
		}
	}
	if float64(n) < costShare*costOps*float64(stretches) || n == 0 {
		return 0
	}
	return sum / n
}

// waitedIn says whether any operation from first to last waited for memory.
func (x *recent) waitedIn(first, last int64) bool {
	for p := first; p <= last; p++ {
		if x.at(p).waited {
			return true
		}
	}
	return false
}
