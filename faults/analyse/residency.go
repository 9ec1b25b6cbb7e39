package analyse

import (
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

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
	a.seen(b, &p)
	back := b.touched.and(&p)
	back.remove(&b.resident)
	a.sum.refetchedBytes += back.count() * pageBytes
	a.reside(b, &p)
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
	a.seen(b, &p) // what leaves a GPU was there, seen or not
	b.touched.add(&p)
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

// seen notes that pages have been on a GPU.
func (a *Analyser) seen(b *block, p *pages) {
	fresh := *p
	fresh.remove(&b.ever)
	a.sum.distinct += fresh.count() * pageBytes
	b.ever.add(p)
}

// reside notes that pages are on a GPU now.
func (a *Analyser) reside(b *block, p *pages) {
	come := *p
	come.remove(&b.resident)
	a.sum.resident += come.count() * pageBytes
	a.sum.residentPeak = max(a.sum.residentPeak, a.sum.resident)
	b.touched.add(p)
	b.resident.add(p)
}

// renew gives the pages of a new allocation a new life: what the owner before it
// left there is of no use, and the first fault on them is a first touch. Where
// they were discarded, which no event tells, the driver populates them in place,
// and no bytes cross the bus.
func (a *Analyser) renew(x *alloc) {
	if !a.effort.afford(x.bytes) {
		return
	}
	pieces(x.address, x.bytes, func(address uint64, p pages) {
		b := a.blocks.peek(address)
		if b == nil {
			return
		}
		b.touched.remove(&p)
		b.evicted.remove(&p)
		b.cpu.remove(&p)
	})
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
			for _, set := range []*pages{&b.resident, &b.ever, &b.touched, &b.evicted, &b.cpu, &b.prefetched} {
				set.remove(&p)
			}
		}
	})
}
