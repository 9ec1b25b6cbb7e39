package explicit

import "time"

// trial decides whether checksums are taken. They take some of the device from the
// job's kernels, and what they save is copies, which cost nothing while nobody waits
// for them. So they are taken when launches have waited for space, and after a number
// of iterations it is tried how the job does without: where launches then wait again,
// they are taken for twice as long.
type trial struct {
	on      bool
	left    int // spans for which checksums are taken still
	length  int // how many there will be next time
	waited  int // spans in a row in which launches waited
	quiet   int // spans in a row in which they did not
	ends    int64
	since   time.Duration // the span began
	stalled time.Duration // before it
}

const (
	// spanOps is the least operations that a span has; it is an iteration where one
	// is known, for launches wait in parts of it only.
	spanOps = 512
	// mostWaiting is the share of the time for which launches may wait for space
	// before checksums are taken: measured on an H200 (bench/results/explicit-clean.json),
	// those of some 2.2 GB in 0.43 s cost a job that did not wait 5 %.
	mostWaiting = 0.05
	// waitedSpans in a row make a trial: a job always waits while it begins.
	waitedSpans = 2
	firstLength = 8
	mostLength  = 1024
)

// look ends a span when its time has come. stalled is for how long launches have
// waited for space since the start.
func (x *trial) look(position, period int64, now, stalled time.Duration) {
	if position < x.ends {
		return
	}
	share := 0.0
	if now > x.since {
		share = float64(stalled-x.stalled) / float64(now-x.since)
	}
	first := x.ends == 0
	x.ends, x.since, x.stalled = position+max(period, spanOps), now, stalled
	switch {
	case first:
		x.length = firstLength
	case x.on:
		x.left--
		x.on = x.left > 0
	case share <= mostWaiting:
		x.waited = 0
		if x.quiet++; x.quiet > waitedSpans {
			x.length = firstLength
		}
	default:
		x.quiet = 0
		if x.waited++; x.waited == waitedSpans {
			*x = trial{on: true, left: x.length, length: min(2*x.length, mostLength), ends: x.ends, since: x.since, stalled: x.stalled}
		}
	}
}
