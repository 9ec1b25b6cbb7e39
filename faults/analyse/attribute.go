package analyse

import (
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

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
	if f := (entry{e.Time, e.Address, e.Batch, e.GPU}); f != a.entry {
		a.sum.serviced++
		a.entry, a.entryCause = f, FirstTouch
		if b != nil {
			a.entryCause = a.causeOf(b, e.Address, e.Time)
			b.faulted, b.faultedAt, b.faultedCause = true, e.Time, a.entryCause
		}
	}
	p.cause = a.entryCause
	a.queue = append(a.queue, p)
}

// entry identifies what the driver services in one go. It merges faults of several
// threads on one page in a batch, tells of each, all with the same time, and
// counts one (record_gpu_fault_instance in uvm_tools.c of the open driver).
type entry struct {
	time    time.Duration
	address uint64
	batch   uint32
	gpu     uint8
}

func (a *Analyser) causeOf(b *block, address uint64, t time.Duration) Cause {
	page := uint(address % blockBytes / pageBytes)
	switch {
	case t < b.thrash:
		return Thrash
	case !b.touched.has(page):
		// Populated in place: no migration will tell that it is there.
		p := span(page, page)
		a.seen(b, &p)
		a.reside(b, &p)
		return FirstTouch
	case b.resident.has(page):
		if t < b.arrives {
			return PrefetchedLate
		}
		if b.faulted && t-b.faultedAt < sameFault {
			return b.faultedCause
		}
		return AlreadyThere
	case b.cpu.has(page):
		return CPUTouched
	}
	if a.sum.inBytes()-b.leftIn < a.sum.residentPeak {
		return EvictedEarly
	}
	return NeverPredicted
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
