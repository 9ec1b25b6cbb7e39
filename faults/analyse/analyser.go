package analyse

import (
	"time"

	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/trace/phase"
)

// Analyser takes events and keeps what a Report is made of.
type Analyser struct {
	header trace.Header
	order  order
	ops    ops
	allocs allocs
	blocks blocks
	effort effort
	phases phase.Tracker
	marked bool // iterations are, which wins
	queue  []pending
	hint   hint

	entry      entry // of the last fault
	entryCause Cause

	now       time.Duration // of the last event taken in order
	first     time.Duration
	started   bool
	events    int64
	sum       sums
	how       [byNothing + 1]int64
	phaseRows [phase.Count]phaseRow
	pairs     map[pairKey]*pair
	lastKey   pairKey
	lastPair  *pair
	// otherPairs counts what has no room in pairs.
	otherPairs pair
	iteration  iterationRow
	rows       []iterationRow
	timeline   timeline
	heat       heat
	batches    batches
	processes  map[uint32]*processRow
	busyUntil  time.Duration // of the stall of faults
	lacks      []string      // what the recorder could not see
	freed      bool          // a free gives the pages back
}

// sums are the totals.
type sums struct {
	faults, cpuFaults, copyFaults int64
	serviced                      int64 // faults as the driver counts them: those of one entry once
	causes                        CauseCounts
	in, out                       [trace.CauseAccessCounters + 1]int64 // bytes by the driver's cause
	moves                         [2]int64                             // migrations to the host, to a device
	distinct                      int64                                // bytes of pages that were ever on a GPU
	resident, residentPeak        int64                                // bytes
	refetches, distance           int64
	refetchedBytes                int64
	prefetched, wasted            int64 // bytes
	lost                          int64
	remote, thrashes              int64
	nonsense                      int64 // migrations of impossible ranges
	stalled                       time.Duration
	counters                      *Counters
}

// New starts an analysis of a recording with this header.
func New(h trace.Header) *Analyser {
	return &Analyser{
		header: h, ops: newOps(), allocs: newAllocs(), blocks: blocks{byNumber: map[uint64]*block{}}, effort: effort{credit: creditAtFirst},
		processes: map[uint32]*processRow{}, pairs: map[pairKey]*pair{}, freed: h.Source == SourceObserved,
	}
}

// SourceObserved is the Header.Source of recordings in which a free gives memory back to the driver.
const SourceObserved = "penstock faults record"

// Add takes one event. It keeps nothing of e but its name and accesses.
func (a *Analyser) Add(e *trace.Event) {
	a.events++
	a.order.add(e, a.take)
}

// catchUp takes what is held back, but for the last moments, which may not be complete.
func (a *Analyser) catchUp() { a.order.release(a.order.newest-horizon, a.take) }

// finish takes everything.
func (a *Analyser) finish() {
	a.order.flush(a.take)
	a.endRound()
	a.resolve()
	a.batches.finish()
}

// take is Add in order of time.
func (a *Analyser) take(e *trace.Event) {
	if !a.started {
		a.started, a.first = true, e.Time
	}
	a.now = max(a.now, e.Time)
	a.ops.effort = min(max(a.ops.effort, 0)+effortEach, effortAtMost)
	a.effort.credit = min(a.effort.credit+creditForEvent, creditAtFirst)
	if a.ops.roundOpen && e.Time > a.ops.roundTime {
		a.endRound()
	}
	if len(a.queue) > 0 && (len(a.queue) >= maxPending || e.Time-a.queue[0].time > patience || !a.ops.progress) {
		a.resolve()
	}
	switch e.Kind {
	case trace.KindFault:
		a.fault(e)
	case trace.KindMigration:
		a.migration(e)
	case trace.KindLaunch, trace.KindCopy:
		a.launch(e)
	case trace.KindProgress:
		a.progress(e)
	case trace.KindAlloc:
		if x := a.allocs.add(e); x != nil {
			a.renew(x)
		}
	case trace.KindFree:
		if x := a.allocs.free(e.Alloc); x != nil && a.freed {
			a.vanish(x)
		}
	case trace.KindFunction:
		a.ops.function(e)
	case trace.KindMark:
		a.mark(e)
	case trace.KindCPUFault:
		a.sum.cpuFaults++
		a.timeline.at(a.since(e.Time)).cpuFaults++
	case trace.KindThrash:
		a.sum.thrashes++
		if !a.effort.afford(e.Bytes) {
			return
		}
		pieces(e.Address, e.Bytes, func(address uint64, _ pages) {
			if b := a.blocks.at(address); b != nil {
				b.thrash = e.Time + thrashHold
			}
		})
	case trace.KindRemote:
		a.sum.remote++
	case trace.KindLost:
		if e.Bytes > 0 {
			a.sum.lost += e.Bytes
		}
	}
}

func (a *Analyser) since(t time.Duration) time.Duration { return max(0, t-a.first) }

func (a *Analyser) launch(e *trace.Event) {
	told := phase.Unknown
	if e.Kind == trace.KindLaunch {
		if k := a.ops.functions[e.Function]; k != nil {
			told = k.phase
		}
		before := a.phases.Iteration
		a.phases.Launch(told)
		if !a.marked && a.phases.Iteration != before {
			a.endIteration(e.Time)
		}
	}
	x := a.ops.launch(e, a.phases.Now)
	a.phaseRows[x.phase].launches++
	a.iteration.launches++
	a.hint.valid = false
	for _, id := range x.accesses {
		if al := a.allocs.byID[id]; al != nil {
			al.named = a.ops.launches
		}
	}
}

// progress gathers what streams had finished at one moment.
func (a *Analyser) progress(e *trace.Event) {
	a.ops.progress = true
	a.ops.roundOpen, a.ops.roundTime = true, e.Time
	s := a.ops.streamOf(e.Stream)
	s.next = max(s.next, e.Alloc)
}

// endRound applies it: faults before that moment find their kernels first.
func (a *Analyser) endRound() {
	if !a.ops.roundOpen {
		return
	}
	a.hint.valid = false
	a.resolve()
	for _, s := range a.ops.order {
		if s.next != 0 {
			a.ops.finish(s, s.next)
			s.next = 0
		}
	}
	a.ops.roundOpen = false
	a.hint.valid = false
}

func (a *Analyser) endIteration(at time.Duration) {
	a.iteration.end = at
	if len(a.rows) < maxIterations {
		a.rows = append(a.rows, a.iteration)
	}
	a.iteration = iterationRow{number: a.iteration.number + 1, begin: at}
}

func (a *Analyser) process(pid uint32) *processRow {
	r := a.processes[pid]
	if r == nil {
		if len(a.processes) >= maxProcesses {
			pid = ^uint32(0) // the others
			if r = a.processes[pid]; r != nil {
				return r
			}
		}
		r = &processRow{}
		a.processes[pid] = r
	}
	return r
}

const (
	maxIterations = 1 << 12
	maxProcesses  = 1 << 12
)

type phaseRow struct {
	launches int64
	faults   CauseCounts
	in       int64
	stalled  time.Duration
}

type iterationRow struct {
	number           int
	begin, end       time.Duration
	launches, faults int64
	in, out          int64
}

type processRow struct{ faults, in, out int64 }

// Advance says that no event before a time will come any more, but for those that are always late.
func (a *Analyser) Advance(now time.Duration) {
	if a.started || a.order.size > 0 {
		a.order.newest = max(a.order.newest, now)
	}
}

func (s *sums) inBytes() (n int64) {
	for _, v := range s.in {
		n += v
	}
	return n
}

func (s *sums) outBytes() (n int64) {
	for _, v := range s.out {
		n += v
	}
	return n
}
