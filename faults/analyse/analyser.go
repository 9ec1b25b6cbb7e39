package analyse

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// Analyser takes events and keeps what a Report is made of.
type Analyser struct {
	header trace.Header
	order  order
	ops    ops
	allocs allocs
	blocks blocks
	effort effort
	phases phases
	queue  []pending
	hint   hint

	now       time.Duration // of the last event taken in order
	first     time.Duration
	started   bool
	events    int64
	sum       sums
	how       [byNothing + 1]int64
	phaseRows [Phases]phaseRow
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
	faults, gpuFaults, cpuFaults, copyFaults int64
	causes                                   CauseCounts
	in, out                                  [trace.CauseAccessCounters + 1]int64 // bytes by the driver's cause
	moves                                    [2]int64                             // migrations to the host, to a device
	distinct                                 int64                                // bytes of pages that were ever on a GPU
	resident, residentPeak                   int64                                // bytes
	refetches, distance                      int64
	refetchedBytes                           int64
	prefetched, wasted                       int64 // bytes
	lost                                     int64
	lostOf                                   map[string]int64
	remote, thrashes                         int64
	nonsense                                 int64 // migrations of impossible ranges
	stalled                                  time.Duration
	counters                                 *Counters
}

// Counters are the driver's own sums, kept beside its event queue.
type Counters struct {
	H2DBytes  int64 `json:"h2d_bytes"`
	D2HBytes  int64 `json:"d2h_bytes"`
	CPUFaults int64 `json:"cpu_faults"`
	GPUFaults int64 `json:"gpu_faults"`
}

// pending is a fault whose kernel is not known yet, or bytes that came for one.
type pending struct {
	time       time.Duration
	ended      time.Duration // of bytes
	bytes      int64         // 0 for a fault
	address    uint64
	block      *block
	alloc      *alloc
	cause      Cause
	copyEngine bool
	prefetched bool
}

// hint remembers the last answer of ops.running, which is the same for all
// faults on one allocation between two signs of progress.
type hint struct {
	valid bool
	alloc uint64
	op    op
	how   how
}

// New starts an analysis of a recording with this header.
func New(h trace.Header) *Analyser {
	return &Analyser{
		header: h, ops: newOps(), allocs: newAllocs(), blocks: blocks{byNumber: map[uint64]*block{}}, effort: effort{credit: creditAtFirst},
		processes: map[uint32]*processRow{}, pairs: map[pairKey]*pair{}, freed: h.Source == SourceObserved, sum: sums{lostOf: map[string]int64{}},
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
		a.allocs.add(e)
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
			if len(a.sum.lostOf) < 64 {
				a.sum.lostOf[clip(e.Name)] += e.Bytes
			}
		}
	}
}

func (a *Analyser) since(t time.Duration) time.Duration { return max(0, t-a.first) }

func (a *Analyser) launch(e *trace.Event) {
	told := PhaseUnknown
	if e.Kind == trace.KindLaunch {
		if k := a.ops.functions[e.Function]; k != nil {
			told = k.phase
		}
		before := a.phases.iteration
		a.phases.launch(told)
		if a.phases.marks == 0 && a.phases.iteration != before {
			a.endIteration("", e.Time)
		}
	}
	x := a.ops.launch(e, a.phases.now)
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

// fault decides a fault's cause and lets it wait for its kernel.
func (a *Analyser) fault(e *trace.Event) {
	a.sum.faults++
	if e.CopyEngine {
		a.sum.copyFaults++
	}
	at := a.timeline.at(a.since(e.Time))
	at.faults++
	a.heat.add(e.Address, a.since(e.Time))
	a.batches.add(e)
	a.iteration.faults++
	a.process(e.Process).faults++
	b := a.blocks.at(e.Address)
	p := pending{time: e.Time, address: e.Address, block: b, alloc: a.allocs.at(e.Address), copyEngine: e.CopyEngine}
	if b != nil {
		p.cause = a.causeOf(b, uint(e.Address%blockBytes/pageBytes), e.Time)
	}
	a.queue = append(a.queue, p)
}

func (a *Analyser) causeOf(b *block, page uint, t time.Duration) Cause {
	switch {
	case t < b.thrash:
		return Thrash
	case b.resident.has(page):
		if t < b.arrives {
			return PrefetchedLate
		}
		if b.last.alive && t-b.last.time < sameFault {
			return b.last.cause
		}
		return AlreadyThere
	case !b.touched.has(page):
		return FirstTouch
	case b.cpu.has(page):
		return CPUTouched
	}
	if a.sum.inBytes()-b.leftIn < a.sum.residentPeak {
		return EvictedEarly
	}
	return NeverPredicted
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

// resolve finds the kernels of the waiting faults and counts them.
func (a *Analyser) resolve() {
	for i := range a.queue {
		if p := &a.queue[i]; p.bytes == 0 {
			a.count(p)
		} else {
			a.credit(p)
		}
	}
	a.queue = a.queue[:0]
}

func (a *Analyser) count(p *pending) {
	var id uint64
	if p.alloc != nil {
		id = p.alloc.id
	}
	h := &a.hint
	if !h.valid || h.alloc != id || p.copyEngine {
		x, how := a.ops.running(id, p.copyEngine)
		*h = hint{valid: !p.copyEngine, alloc: id, op: x, how: how}
	}
	a.how[h.how]++
	where := cell{kernel: h.op.kernel, alloc: a.allocs.unknown, phase: h.op.phase}
	if where.kernel == nil {
		where.kernel = a.ops.copies
	}
	// A freed allocation's address may have its next owner while the kernel that used it still runs.
	if a.ops.effort -= 2 * len(h.op.accesses); a.ops.effort >= 0 && (p.alloc == nil || !h.op.names(id)) {
		if old := a.allocs.named(&h.op, p.address); old != nil {
			p.alloc = old
		}
	}
	if p.alloc != nil {
		where.alloc = p.alloc.row
	}
	a.tally(where, p.cause, 1)
	b := p.block
	if b == nil {
		return
	}
	if p.cause == EvictedEarly || p.cause == NeverPredicted {
		d := max(0, a.ops.launches-b.leftLaunch)
		a.sum.refetches++
		a.sum.distance += d
		where.alloc.refetches++
		where.alloc.distance += d
	}
	l := &b.last
	if !l.alive || l.where != where || l.cause != p.cause || p.time-l.time > lateWindow {
		*l = lastFault{time: p.time, cause: p.cause, where: where, alive: true}
	}
	l.n++
}

// tally counts n faults in every table; n may be negative.
func (a *Analyser) tally(where cell, c Cause, n int64) {
	a.sum.causes[c] += n
	where.kernel.faults[c] += n
	where.alloc.faults[c] += n
	a.phaseRows[where.phase].faults[c] += n
	a.pair(where, c).faults += n
}

// pair is the row of a kernel, an allocation, a phase and a cause together.
func (a *Analyser) pair(where cell, c Cause) *pair {
	k := pairKey{where, c}
	if a.lastPair != nil && a.lastKey == k {
		return a.lastPair
	}
	p := a.pairs[k]
	if p == nil {
		if len(a.pairs) >= maxPairs {
			return &a.otherPairs
		}
		p = &pair{}
		a.pairs[k] = p
	}
	a.lastKey, a.lastPair = k, p
	return p
}

// maxPairs bounds the combinations of kernel, allocation, phase and cause.
const maxPairs = 1 << 17

type pairKey struct {
	cell
	cause Cause
}

type pair struct {
	faults, bytes int64
	stalled       time.Duration
}

// migration moves pages and bytes.
func (a *Analyser) migration(e *trace.Event) {
	if e.Bytes <= 0 || e.Bytes > maxMoveBytes || e.Address+uint64(e.Bytes) < e.Address {
		a.sum.nonsense++
		return
	}
	cause := min(e.Cause, trace.CauseAccessCounters)
	row := a.process(e.Process)
	at := a.timeline.at(a.since(e.Time))
	if e.To == trace.SideDevice {
		a.sum.moves[1]++
		a.sum.in[cause] += e.Bytes
		row.in += e.Bytes
		a.iteration.in += e.Bytes
		at.in += e.Bytes
		if cause == trace.CauseUser {
			a.sum.prefetched += e.Bytes
			at.prefetched += e.Bytes
		}
	} else {
		a.sum.moves[0]++
		a.sum.out[cause] += e.Bytes
		row.out += e.Bytes
		a.iteration.out += e.Bytes
		at.out += e.Bytes
		if cause == trace.CauseEviction {
			at.evicted += e.Bytes
		}
	}
	if !a.effort.afford(e.Bytes) {
		return
	}
	ended := e.Time + max(0, e.Duration)
	address, left := e.Address, e.Bytes
	pieces(e.Address, e.Bytes, func(piece uint64, p pages) {
		n := min(left, int64(blockBytes-address%blockBytes))
		if e.To == trace.SideDevice {
			a.arrive(piece, n, p, cause, e.Time, ended)
		} else {
			a.leave(piece, n, p, cause, e.Time)
		}
		address += uint64(n)
		left -= n
	})
	at.resident = max(at.resident, a.sum.resident)
}

// arrive notes pages that come to a GPU.
func (a *Analyser) arrive(address uint64, bytes int64, p pages, cause trace.Cause, began, ended time.Duration) {
	al := a.allocs.at(address)
	if al != nil {
		al.row.in += bytes
	}
	b := a.blocks.at(address)
	if b == nil {
		return
	}
	fresh := p
	fresh.remove(&b.touched)
	a.sum.distinct += fresh.count() * pageBytes
	back := b.touched.and(&p)
	back.remove(&b.resident)
	a.sum.refetchedBytes += back.count() * pageBytes
	come := p
	come.remove(&b.resident)
	a.sum.resident += come.count() * pageBytes
	a.sum.residentPeak = max(a.sum.residentPeak, a.sum.resident)
	b.touched.add(&p)
	b.resident.add(&p)
	b.evicted.remove(&p)
	b.cpu.remove(&p)
	if cause == trace.CauseUser {
		b.prefetched.add(&p)
		b.arrives = max(b.arrives, ended)
		b.fetchedAt = a.ops.launches
	} else if cause == trace.CauseCoherence {
		b.flip(true, began)
	}
	// Whose bytes these are is known when their fault is counted.
	a.queue = append(a.queue, pending{time: began, ended: ended, bytes: bytes, block: b, prefetched: cause == trace.CauseUser})
}

// credit gives bytes that came to the fault that they came for, if there is one.
func (a *Analyser) credit(p *pending) {
	l := &p.block.last
	if !l.alive {
		return
	}
	if p.prefetched {
		if p.time-l.time <= lateWindow && l.cause != PrefetchedLate {
			a.tally(l.where, l.cause, -l.n)
			a.tally(l.where, PrefetchedLate, l.n)
			l.cause = PrefetchedLate
		}
		return
	}
	both := a.pair(l.where, l.cause)
	both.bytes += p.bytes
	l.where.kernel.bytes += p.bytes
	row := &a.phaseRows[l.where.phase]
	row.in += p.bytes
	if more := p.ended - max(min(l.time, p.time), a.busyUntil); more > 0 {
		l.where.kernel.stalled += more
		both.stalled += more
		row.stalled += more
		a.sum.stalled += more
		a.busyUntil = p.ended
	}
}

// leave notes pages that go to the host.
func (a *Analyser) leave(address uint64, bytes int64, p pages, cause trace.Cause, began time.Duration) {
	al := a.allocs.at(address)
	if al != nil {
		al.row.out += bytes
	}
	b := a.blocks.at(address)
	if b == nil {
		return
	}
	gone := b.resident.and(&p)
	a.sum.resident -= gone.count() * pageBytes
	b.resident.remove(&p)
	fresh := p // populated on the GPU by a first touch, which is a fault without a migration
	fresh.remove(&b.touched)
	a.sum.distinct += fresh.count() * pageBytes
	b.touched.add(&p) // what is on a GPU has been touched, seen or not
	b.leftLaunch, b.leftIn = a.ops.launches, a.sum.inBytes()
	if unused := b.prefetched.and(&p); unused != (pages{}) {
		if a.ops.launches > 0 && al != nil && al.named <= b.fetchedAt {
			n := unused.count() * pageBytes
			a.sum.wasted += n
			al.row.wasted += n
		}
		b.prefetched.remove(&p)
	}
	switch cause {
	case trace.CauseEviction, trace.CauseUser:
		b.evicted.add(&p)
		b.cpu.remove(&p)
		if cause == trace.CauseEviction && len(a.ops.order) > 0 {
			x, _ := a.ops.running(0, false)
			if x.kernel != nil {
				x.kernel.evicted += bytes
			}
		}
	default:
		b.cpu.add(&p)
		b.evicted.remove(&p)
		if cause == trace.CauseCoherence {
			b.flip(false, began)
		}
	}
}

// flip notes that a demand fault moved memory one way; three times to and fro in short order is thrashing.
func (b *block) flip(in bool, t time.Duration) {
	if in == b.flipIn {
		return
	}
	if t-b.flipped > thrashGap {
		b.flips = 0
	}
	b.flipIn, b.flipped = in, t
	if b.flips++; b.flips >= thrashFlips {
		b.thrash = t + thrashGap
		b.flips = thrashFlips
	}
}

// vanish takes a freed allocation's whole pages off the GPU.
func (a *Analyser) vanish(x *alloc) {
	if !a.effort.afford(x.bytes) {
		return
	}
	pieces(x.address, x.bytes, func(address uint64, p pages) {
		if b := a.blocks.peek(address); b != nil {
			gone := b.resident.and(&p)
			a.sum.resident -= gone.count() * pageBytes
			for _, set := range []*pages{&b.resident, &b.touched, &b.evicted, &b.cpu, &b.prefetched} {
				set.remove(&p)
			}
		}
	})
}

// mark handles the marks that mean something.
func (a *Analyser) mark(e *trace.Event) {
	switch {
	case strings.HasPrefix(e.Name, "iter") && isNumber(e.Name[4:]), e.Name == trace.MarkEnd:
		if a.phases.marks > 0 {
			a.endIteration("", e.Time)
		} else {
			a.iteration, a.rows = iterationRow{begin: e.Time}, nil
		}
		a.phases.mark()
	case strings.HasPrefix(e.Name, MarkLacks):
		if what := clip(e.Name[len(MarkLacks):]); len(a.lacks) < maxLacks && !slices.Contains(a.lacks, what) {
			a.lacks = append(a.lacks, what)
		}
	case strings.HasPrefix(e.Name, markCounters):
		if c, ok := ParseCounters(e.Name); ok {
			a.sum.counters = &c
		}
	}
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

func (a *Analyser) endIteration(_ string, at time.Duration) {
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

// MarkLacks begins a mark that says what a recorder could not see.
const MarkLacks = "lacks "

const maxLacks = 32

const markCounters = "driver "

// Mark is the name of the mark that keeps the sums in a recording.
func (c Counters) Mark() string {
	return markCounters + "h2d=" + strconv.FormatInt(c.H2DBytes, 10) + " d2h=" + strconv.FormatInt(c.D2HBytes, 10) +
		" cpu_faults=" + strconv.FormatInt(c.CPUFaults, 10) + " gpu_faults=" + strconv.FormatInt(c.GPUFaults, 10)
}

// ParseCounters reads what Mark wrote.
func ParseCounters(mark string) (c Counters, ok bool) {
	rest, ok := strings.CutPrefix(mark, markCounters)
	if !ok {
		return c, false
	}
	for _, word := range strings.Fields(rest) {
		name, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return Counters{}, false
		}
		switch name {
		case "h2d":
			c.H2DBytes = n
		case "d2h":
			c.D2HBytes = n
		case "cpu_faults":
			c.CPUFaults = n
		case "gpu_faults":
			c.GPUFaults = n
		}
	}
	return c, true
}

func log2(n int64) int { return max(0, bits.Len64(uint64(max(n, 1)))-1) }

// Advance says that no event before a time will come any more, but for those that are always late.
func (a *Analyser) Advance(now time.Duration) {
	if a.started || len(a.order.events) > 0 {
		a.order.newest = max(a.order.newest, now)
	}
}
