package sim

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// copyEngine does one copy of its direction at a time.
type copyEngine struct {
	server
	queued      int           // copies submitted and not done, in their streams or here
	queuedBytes int64         // of these
	ends        time.Duration // when the copy that runs is done, as it looked when it began
}

// waitToMap is how long setting access to mapped memory waits at a time: page
// tables are written by the engine that copies to the host, which turns to them
// between two copies when nothing else is queued yet, and after a time slice when
// there always is.
func (g *GPU) waitToMap(at time.Duration) time.Duration {
	e := &g.engines[cuda.Host]
	switch {
	case e.queued == 0 || g.profile.MapTimeSlice == 0:
		return 0
	case e.queued == 1 && e.ends > at:
		return min(e.ends-at, g.profile.MapTimeSlice)
	}
	return min(perByte(e.queuedBytes, g.profile.CopyBytesPerSecond), g.profile.MapTimeSlice)
}

// ZeroAsync fails: there are no contents.
func (t *Thread) ZeroAsync(cuda.Ptr, int64, cuda.Stream) error {
	return noContents("cuMemsetD8Async")
}

// CopyAsync copies on a copy engine. Where a managed range is decides the
// direction; it is not moved, and leaves without contents come to life on the host.
func (t *Thread) CopyAsync(dst, src cuda.Ptr, bytes int64, s cuda.Stream) error {
	const call = "cuMemcpyAsync"
	g := t.g
	g.mu.Lock()
	defer g.mu.Unlock()
	st, err := g.stream(call, s)
	if err != nil {
		return err
	}
	if bytes < 0 {
		return fail(invalidValue, call, "%d bytes", bytes)
	}
	to, from := cuda.Range{Base: dst, Bytes: bytes}, cuda.Range{Base: src, Bytes: bytes}
	for _, r := range []cuda.Range{to, from} {
		if bytes > 0 && !g.accessible(r) {
			return fail(invalidValue, call, "%#x + %d bytes is not accessible memory", uint64(r.Base), bytes)
		}
	}
	at := t.spend(g.profile.CopySubmit)
	done := g.enqueueCopy(to, from)
	g.submit(st, at, func(next func()) {
		g.startCopy(to, from, func() {
			done()
			next()
		})
	})
	return nil
}

// enqueueCopy counts a copy on its engine until the returned function is called.
func (g *GPU) enqueueCopy(to, from cuda.Range) (done func()) {
	direction := cuda.Device
	if g.onDevice(from) > g.onDevice(to) {
		direction = cuda.Host
	}
	e := &g.engines[direction]
	e.queued++
	e.queuedBytes += to.Bytes
	return func() {
		e.queued--
		e.queuedBytes -= to.Bytes
	}
}

// accessible says whether the whole range is live memory of some kind.
func (g *memory) accessible(r cuda.Range) bool {
	switch kindOf(r.Base) {
	case managedAddress:
		_, ok := g.pieces(r, false, nil)
		return ok
	case plainAddress:
		return inside(g.plain, r)
	case pinnedAddress:
		return inside(g.pinned, r)
	case reservedAddress:
		_, ok := g.mapped(r)
		return ok
	}
	return inside(g.registered, r)
}

// onDevice is how much of an accessible range is in device memory.
func (g *memory) onDevice(r cuda.Range) int64 {
	switch kindOf(r.Base) {
	case managedAddress:
		return g.residentIn(r)
	case plainAddress:
		return r.Bytes
	case reservedAddress:
		host, _ := g.mapped(r)
		return r.Bytes - host
	}
	return 0
}

func (g *GPU) startCopy(to, from cuda.Range, done func()) {
	p := &g.profile
	source, target := g.onDevice(from), g.onDevice(to)
	if kindOf(to.Base) == managedAddress && to.Bytes > 0 {
		g.bringToLife(to)
	}
	// Bytes that cross, and which way; the rest stays on its side.
	cross, direction := target-source, cuda.Device
	if cross < 0 {
		cross, direction = -cross, cuda.Host
	}
	rate := p.CopyBytesPerSecond
	if kindOf(to.Base) == managedAddress || kindOf(from.Base) == managedAddress {
		rate = p.ManagedCopyBytesPerSecond
	}
	stay := perByte(to.Bytes-cross, p.DeviceCopyBytesPerSecond)
	g.serve(&g.engines[direction].server, func(finish func()) {
		g.engines[direction].ends = g.now + p.CopySetup + stay + perByte(cross, rate)
		g.after(p.CopySetup+stay, func() {
			g.send(direction, cross, rate, func() {
				finish()
				done()
			})
		})
	})
}

// bringToLife gives contents on the host to what a copy writes and nobody wrote before.
func (g *memory) bringToLife(r cuda.Range) {
	pieces, ok := g.pieces(r, false, nil)
	if !ok {
		return
	}
	for _, p := range pieces {
		for i, end := p.blockRange(); i < end; i++ {
			b := &p.seg.blocks[i]
			if b.moving != nil {
				continue
			}
			m := p.mask(i) & b.valid
			b.dead &^= m
			empty := m &^ (b.dev | b.host)
			b.host |= empty
			b.hostPages |= empty
			// A duplicate of what is overwritten goes.
			b.host &^= m & b.dev
			g.relist(b)
			b.refresh()
		}
	}
}
