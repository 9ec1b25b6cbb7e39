package explicit

import (
	"slices"
	"time"
)

// This file is for how much is made again: nothing, what plain kernels make, or what products make as well. What that gains depends
// on what holds the job up - the bus, its kernels, its own CPU - and on all that is done besides, so it is tried out: the job runs
// some iterations at each level, and then at the one that was fastest; after ever more iterations it is tried again.

// Level is how much is made again.
type Level int

// Levels.
const (
	LevelTried   Level = iota // what is fastest, by trial
	LevelNothing              // all is moved
	LevelPlain                // what kernels make that take next to no time
	LevelAll                  // what products make (um.Op.Product), too
	levelCount
)

func (l Level) String() string { return [...]string{"tried", "nothing", "plain", "all"}[l] }

const (
	// firstTrial is for how many iterations the highest level is tried at first, which has to learn; levelTrial is that of the others and of
	// later trials. The last levelJudged of them count.
	firstTrial  = 12
	levelTrial  = 4
	levelJudged = 3
	// stays is how many iterations the fastest level stays for at first; twice as many each time, mostStays at most.
	stays     = 256
	mostStays = 1 << 14
	// levelGain is the part of an iteration that a higher level must gain at least: it has more to go wrong.
	levelGain = 0.02
	// periodPart is the part of an iteration by which another one may differ.
	periodPart = 16
)

// levels tries them.
type levels struct {
	at     Level
	left   int // iterations at this level until the next one is tried, or it is tried again
	length int // for how many iterations the fastest stays
	times  []time.Duration
	took   [levelCount]time.Duration // an iteration, when it was last tried
	trying bool
	period int64
	fixed  bool
	ends   int64
	since  time.Duration // the iteration began
	whole  bool          // it was at one level from its beginning
}

func newLevels(fixed Level) levels {
	if fixed != LevelTried {
		return levels{at: fixed, fixed: true}
	}
	return levels{at: LevelAll, left: firstTrial, length: stays, trying: true}
}

// look ends an iteration when its time has come; period is 0 while none is known. It answers whether more is made again from now on.
func (v *levels) look(position, period int64, now time.Duration) (raised bool) {
	before := v.at
	v.step(position, period, now)
	return v.at > before
}

func (v *levels) step(position, period int64, now time.Duration) {
	if v.fixed || period == 0 {
		return
	}
	period *= (spanOps + period - 1) / period                     // as many short ones as take some time
	if d := period - v.period; max(d, -d)*periodPart > v.period { // at first a part of an iteration is taken for one
		v.period, v.ends, v.whole = period, position, false
		v.begin(LevelAll, firstTrial)
		v.trying, v.length = true, stays
	}
	if position < v.ends {
		return
	}
	late := position >= v.ends+period // there was none for a while
	if v.whole && !late {
		v.times = append(v.times, now-v.since)
		v.left--
	}
	v.ends, v.since, v.whole = position+period, now, true
	if v.left > 0 {
		return
	}
	if !v.trying {
		v.begin(LevelAll, levelTrial)
		v.trying = true
		return
	}
	last := slices.Clone(v.times[max(len(v.times)-levelJudged, 0):])
	slices.Sort(last)
	v.took[v.at] = last[len(last)/2]
	if v.at > LevelNothing {
		v.begin(v.at-1, levelTrial)
		return
	}
	best := LevelNothing
	for l := LevelPlain; l < levelCount; l++ {
		if float64(v.took[l]) < (1-levelGain)*float64(v.took[best]) {
			best = l
		}
	}
	v.begin(best, v.length)
	v.trying, v.length = false, min(2*v.length, mostStays)
}

// begin goes on at a level for some iterations.
func (v *levels) begin(l Level, iterations int) {
	v.at, v.left, v.times = l, iterations, v.times[:0]
}
