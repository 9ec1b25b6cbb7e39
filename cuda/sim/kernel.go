package sim

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// Access is a range that a kernel touches. Neither Read nor Write means both.
type Access struct {
	Range cuda.Range
	Write bool
	Read  bool
}

// Kernel is one launch: how long it computes when everything is at hand, and
// what it touches, in the order in which it first touches it. Started and Done
// may be nil.
type Kernel struct {
	Name          string
	Duration      time.Duration
	Accesses      []Access
	Started, Done func(at time.Duration)
}

// kernelRun is a kernel that has started. It is over when its compute time has
// passed and its accesses are served: faults overlap its compute, which favours
// the demand-paging baseline.
type kernelRun struct {
	Kernel
	g      *GPU
	stream *stream
	start  time.Duration
	open   int // compute, access scan and remote transfers that are not over

	pieces   []touched
	at       int // piece
	block    int // next block of that piece; -1 when not begun
	deferred []want
	entries  float64 // fault entries so far, exact
	counted  int64   // and as reported
	batches  int64
}

// touched is a piece with how it is accessed.
type touched struct {
	piece
	read, write bool
}

// want is a block that was moving when the kernel came to it.
type want struct {
	b           *block
	m           mask
	read, write bool
}

// Launch queues a kernel on a stream. It runs when everything queued on the
// stream before it is done. Kernels of different streams overlap without
// slowing each other down.
func (g *GPU) Launch(s cuda.Stream, k Kernel) {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := g.mustStream(s)
	st.compute = true
	g.submit(st, g.now, func(done func()) { g.startKernel(st, k, done) })
}

func (g *GPU) startKernel(st *stream, k Kernel, done func()) {
	r := &kernelRun{Kernel: k, g: g, stream: st, start: g.now, block: -1, open: 2}
	g.account()
	g.kernels = append(g.kernels, r)
	g.stats.Kernels++
	if k.Started != nil {
		at := g.now
		g.tell(func() { k.Started(at) })
	}
	var read, write int64
	var buf []piece
	for _, a := range k.Accesses {
		if a.Range.Bytes <= 0 {
			continue
		}
		reads, writes := a.Read || !a.Write, a.Write || !a.Read
		ok := true
		switch kindOf(a.Range.Base) {
		case managedAddress:
			buf, ok = g.pieces(a.Range, false, buf[:0])
			for _, p := range buf {
				r.pieces = append(r.pieces, touched{p, reads, writes})
			}
		case plainAddress:
			ok = inside(g.plain, a.Range)
		case pinnedAddress:
			if ok = inside(g.pinned, a.Range); ok {
				read, write = addIf(read, reads, a.Range.Bytes), addIf(write, writes, a.Range.Bytes)
			}
		case reservedAddress:
			var host int64
			host, ok = g.mapped(a.Range)
			read, write = addIf(read, reads, host), addIf(write, writes, host)
		default:
			if ok = inside(g.registered, a.Range); ok {
				read, write = addIf(read, reads, a.Range.Bytes), addIf(write, writes, a.Range.Bytes)
			}
		}
		if !ok && g.fault == nil {
			g.fault = cuda.NewError(700, "cuLaunchKernel").WithDetail(
				fmt.Errorf("kernel %s touched %#x + %d bytes, which is not accessible memory", k.Name, uint64(a.Range.Base), a.Range.Bytes))
		}
	}
	finished := func() { g.endKernel(r, done) }
	g.after(k.Duration, finished)
	r.remote(read, write, finished)
	r.advance(finished)
}

func addIf(n int64, on bool, more int64) int64 {
	if on {
		n += more
	}
	return n
}

// endKernel ends one of the things that the kernel waits for.
func (g *GPU) endKernel(r *kernelRun, done func()) {
	if r.open--; r.open > 0 {
		return
	}
	g.account()
	for i, o := range g.kernels {
		if o == r {
			g.kernels = remove(g.kernels, i)
			break
		}
	}
	g.stats.BusyTime += r.Duration
	if late := g.now - r.start - r.Duration; late > 0 {
		g.stats.FaultStall += late
		g.stats.StallTime += late
	}
	if r.Done != nil {
		at := g.now
		g.tell(func() { r.Done(at) })
	}
	done()
}

// remote is access in place over the bus.
func (r *kernelRun) remote(read, write int64, finished func()) {
	if read > 0 {
		r.open++
		r.g.stats.RemoteBytes += read
		r.g.send(cuda.Device, read, r.g.profile.RemoteReadBytesPerSecond, finished)
	}
	if write > 0 {
		r.open++
		r.g.stats.RemoteBytes += write
		r.g.send(cuda.Host, write, r.g.profile.RemoteWriteBytesPerSecond, finished)
	}
}

// lacks sorts leaves m of a block that is not moving: those to fault in, those
// accessed in place on the host, and duplicated ones that a write collapses.
func (b *block) lacks(m mask, write bool) (miss, inPlace, collapse mask) {
	miss = m &^ b.dev
	inPlace = miss & (b.accessedBy&b.host | b.preferHost)
	if write {
		collapse = m & b.dev & b.host
	}
	return miss &^ inPlace, inPlace, collapse
}

// next is the next block of the scan that is not simply there; ok is false at its end.
func (r *kernelRun) next() (w want, ok bool) {
	for ; r.at < len(r.pieces); r.at, r.block = r.at+1, -1 {
		p := &r.pieces[r.at]
		if p.seg.freed {
			continue
		}
		ready := p.seg.ready
		if p.write {
			ready = p.seg.readyWrite
		}
		first, end := p.blockRange()
		for r.block = nextNotReady(ready, max(r.block, first), end); r.block < end; r.block = nextNotReady(ready, r.block+1, end) {
			b := &p.seg.blocks[r.block]
			m := p.mask(r.block) & b.valid
			w := want{b, m, p.read, p.write}
			if b.moving != nil {
				r.deferred = append(r.deferred, w)
				continue
			}
			if miss, inPlace, collapse := b.lacks(m, p.write); miss|inPlace|collapse != 0 {
				return w, true
			}
		}
	}
	return want{}, false
}

// advance goes on with the scan: queue for the fault thread when a block lacks
// something, wait for blocks that move, and finish when nothing is left.
func (r *kernelRun) advance(finished func()) {
	for {
		if _, ok := r.next(); ok {
			r.g.serve(&r.g.faultThread, func(finish func()) { r.service(finish, finished) })
			return
		}
		// The scan is over; blocks that were moving are looked at again.
		for i, w := range r.deferred {
			if w.b.moving != nil && !w.b.seg.freed {
				r.deferred = r.deferred[i:]
				w.b.moving.waiters = append(w.b.moving.waiters, func() { r.advance(finished) })
				return
			}
			if !w.b.seg.freed {
				first := w.b.index * blockLeafs
				// Back into the scan as pieces of one block, runs of leaves.
				for m := w.m; m != 0; {
					lo := bits.TrailingZeros32(m)
					n := bits.TrailingZeros32(^(m >> lo))
					r.pieces = append(r.pieces, touched{piece{w.b.seg, first + lo, first + lo + n}, w.read, w.write})
					m &^= ^mask(0) >> (blockLeafs - n) << lo
				}
			}
		}
		if len(r.deferred) == 0 {
			finished()
			return
		}
		r.deferred = r.deferred[:0]
	}
}

// grow is the driver's tree prefetcher: each faulting leaf takes the largest
// subtree around it of which more than the threshold is there or faulting.
func grow(fault, dev, valid mask, percent int) mask {
	out, there := fault, fault|dev
	for width := 2; width <= blockLeafs; width *= 2 {
		for at := 0; at < blockLeafs; at += width {
			sub := ^mask(0) >> (blockLeafs - width) << at
			if fault&sub != 0 && bits.OnesCount32(there&sub)*100 > percent*bits.OnesCount32(valid&sub) {
				out |= sub & valid
			}
		}
	}
	return out &^ dev
}

// service is one slice of fault service, in the driver's fault thread.
func (r *kernelRun) service(finish, finished func()) {
	g, s := r.g, r.g.newSlice()
	var evictBytes, copyBytes, collapseBytes, read, write int64
	noRoom := false
	for len(s.moves) < sliceBlocks {
		w, more := r.next()
		if !more {
			break
		}
		b := w.b
		miss, inPlace, collapse := b.lacks(w.m, w.write)
		if miss != 0 && !b.chunk {
			n, ok := g.takeChunk(s)
			if !ok && g.roomForChunks() > 0 {
				noRoom = true
				break
			}
			if !ok {
				// Not one chunk fits beside the plain memory: reach over the bus.
				g.stats.NoRoomBlocks++
				inPlace |= miss
				miss = 0
			} else {
				b.chunk = true
				evictBytes += n
			}
		}
		if inPlace != 0 {
			b.host |= inPlace
			b.hostPages |= inPlace
			read = addIf(read, w.read, b.bytes(inPlace))
			write = addIf(write, w.write, b.bytes(inPlace))
		}
		if miss|collapse != 0 {
			leaves := mask(0)
			if miss != 0 {
				leaves = grow(miss, b.dev, b.valid, g.profile.PrefetchThresholdPercent) &^ (inPlace | b.preferHost)
				leaves |= miss
			}
			copied := leaves & b.host
			copyBytes += b.bytes(copied)
			collapseBytes += b.bytes(collapse)
			r.entries += float64(bits.OnesCount32(miss|collapse)) * g.profile.FaultEntriesPerLeaf
			total := int64(math.Ceil(r.entries - 1e-9))
			written := collapse
			if w.write {
				written |= miss
			}
			s.moves = append(s.moves, moved{b: b, leaves: leaves, copied: copied, faulted: miss | collapse, written: written, entries: total - r.counted})
			r.counted = total
			g.unlist(b)
			s.hold(b)
		}
		r.block++
	}
	r.remote(read, write, finished)
	if len(s.moves) == 0 {
		if noRoom {
			g.roomWaiters = append(g.roomWaiters, func() { r.advance(finished) })
			finish()
			return
		}
		finish()
		r.advance(finished)
		return
	}
	var entries int64
	for _, m := range s.moves {
		entries += m.entries
	}
	batches := int64(math.Ceil(r.entries/g.profile.FaultEntriesPerBatch-1e-9)) - r.batches
	r.batches += batches
	g.stats.Faults += entries
	g.stats.FaultBatches += batches
	software := time.Duration(entries)*g.profile.FaultEntry + time.Duration(batches)*g.profile.FaultBatch +
		perByte(collapseBytes, g.profile.DuplicateWriteBytesPerSecond)
	g.launchSlice(s)
	g.after(software, func() {
		g.send(cuda.Host, evictBytes, g.profile.EvictBytesPerSecond, func() {
			g.reportEvictions(s)
			g.send(cuda.Device, copyBytes, g.profile.FaultCopyBytesPerSecond, func() {
				g.stats.FaultedBytes += copyBytes
				for _, m := range s.moves {
					g.observeFaults(m, s.begin, g.now, r)
					g.observeMask(m.b, m.copied&m.faulted, cuda.Device, CauseCoherence, s.begin, g.now)
					g.observeMask(m.b, m.copied&^m.faulted, cuda.Device, CausePrefetch, s.begin, g.now)
					m.b.host &^= m.written & m.b.dev // collapsed duplicates
					g.arriveOnDevice(m, m.b.readMostly&^m.written)
				}
				g.release(s)
				finish()
				r.advance(finished)
			})
		})
	})
}

// noteInUse counts a block that leaves the device while a running kernel has it
// in its access set: the real card would fault it back in. The simulator does not.
func (g *memory) noteInUse(b *block) {
	for _, k := range g.kernels {
		for i := range k.pieces {
			if p := &k.pieces[i]; p.seg == b.seg && p.mask(b.index) != 0 {
				g.stats.InUseMoves++
				return
			}
		}
	}
}
