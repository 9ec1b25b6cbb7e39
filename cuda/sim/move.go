package sim

import (
	"math/bits"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// moveJob is a prefetch under way: its pieces in order, slice by slice.
type moveJob struct {
	g      *GPU
	to     cuda.Location
	pieces []piece
	at     int // piece
	block  int // next block of that piece; below its first when not begun
	done   func()
}

// current is the next block to look at; nil when the job is over.
func (j *moveJob) current() (*block, mask) {
	for ; j.at < len(j.pieces); j.at, j.block = j.at+1, -1 {
		p := j.pieces[j.at]
		first, end := p.blockRange()
		j.block = max(j.block, first)
		if j.block < end && !p.seg.freed {
			b := &p.seg.blocks[j.block]
			return b, p.mask(j.block) & b.valid
		}
	}
	return nil, 0
}

// missing is what of leaves m a move to a side has to bring there.
func (b *block) missing(m mask, to cuda.Location) mask {
	if to == cuda.Device {
		return m &^ b.dev
	}
	return m &^ b.host
}

// nextNotReady is the first block at or after i, below end, whose bit is not set.
func nextNotReady(ready []uint64, i, end int) int {
	for i < end {
		if w := ^ready[i>>6] >> (i & 63); w != 0 {
			return min(end, i+bits.TrailingZeros64(w))
		}
		i = i&^63 + 64
	}
	return end
}

// hasWork says whether a prefetch of the piece would move or populate anything.
func (p piece) hasWork(to cuda.Location) bool {
	for i, end := p.blockRange(); i < end; i++ {
		if to == cuda.Device {
			if i = nextNotReady(p.seg.ready, i, end); i == end {
				return false
			}
		}
		b := &p.seg.blocks[i]
		if b.moving != nil || b.missing(p.mask(i)&b.valid, to) != 0 {
			return true
		}
	}
	return false
}

// prefetchCost is the software part of a prefetch of one range, and an estimate
// of the part of a move to the host that the caller sits through.
func (g *GPU) prefetchCost(pieces []piece, to cuda.Location) (software, mapping time.Duration) {
	var work bool
	for _, p := range pieces {
		if !p.hasWork(to) {
			continue
		}
		work = true
		if to == cuda.Device {
			break
		}
		for i, end := p.blockRange(); i < end; i++ {
			b := &p.seg.blocks[i]
			live, empty, pages := b.toHost(p.mask(i) & b.valid)
			mapping += g.mappingTime(b, live, empty, pages) + perBlock(b.bytes(live), g.profile.ToHostCopyPerBlock)
		}
	}
	switch {
	case !work:
		return g.profile.PrefetchResidentCall, 0
	case to == cuda.Host:
		return g.profile.ToHostCall, mapping
	}
	return g.profile.PrefetchCall, 0
}

// startMove runs a prefetch whose turn on its stream has come. ranges holds the
// pieces of each range of the call.
func (g *GPU) startMove(ranges [][]piece, to cuda.Location, done func()) {
	var software time.Duration
	var all []piece
	for _, pieces := range ranges {
		s, _ := g.prefetchCost(pieces, to)
		software += s
		all = append(all, pieces...)
	}
	j := &moveJob{g: g, to: to, pieces: all, block: -1, done: done}
	g.after(software, j.begin)
}

func (j *moveJob) begin() {
	for _, p := range j.pieces {
		if p.hasWork(j.to) {
			j.g.serve(&j.g.uvm, j.step)
			return
		}
	}
	// Nothing to move: no turn at the lock is needed, but the driver still
	// touches the blocks.
	for b, m := j.current(); b != nil; b, m = j.current() {
		if j.to == cuda.Device && !b.seg.freed {
			b.dead &^= m
			j.g.touch(b)
		}
		j.block++
	}
	j.done()
}

// step does one slice with the driver's lock held.
func (j *moveJob) step(finish func()) {
	if j.to == cuda.Device {
		j.stepToDevice(finish)
	} else {
		j.stepToHost(finish)
	}
}

// again queues for the next slice, behind whoever waits already.
func (j *moveJob) again() {
	if b, _ := j.current(); b == nil {
		j.done()
		return
	}
	j.g.serve(&j.g.uvm, j.step)
}

// blocked handles a block that another slice holds: go without it if this slice
// has something, else let go of the lock and come back.
func (j *moveJob) blocked(s *slice, b *block, finish func()) bool {
	if len(s.moves) > 0 {
		return false
	}
	b.moving.waiters = append(b.moving.waiters, j.again)
	finish()
	return true
}

func (j *moveJob) stepToDevice(finish func()) {
	g, s := j.g, j.g.newSlice()
	var evictBytes, copyBytes, duplicateBytes, populateBytes int64
	for len(s.moves) < sliceBlocks {
		b, m := j.current()
		if b == nil {
			break
		}
		if b.moving != nil {
			if j.blocked(s, b, finish) {
				return
			}
			break
		}
		need := b.missing(m, cuda.Device)
		if need == 0 {
			b.dead &^= m
			g.touch(b)
			j.block++
			continue
		}
		if !b.chunk {
			n, ok := g.takeChunk(s)
			if !ok {
				if len(s.moves) > 0 {
					break
				}
				if g.roomForChunks() == 0 {
					g.stats.NoRoomBlocks++
					j.block++
					continue
				}
				g.roomWaiters = append(g.roomWaiters, j.again)
				finish()
				return
			}
			b.chunk = true
			evictBytes += n
		}
		copied := need & b.host
		duplicateBytes += b.bytes(copied & b.readMostly)
		copyBytes += b.bytes(copied &^ b.readMostly)
		populateBytes += b.bytes(need &^ b.host)
		g.unlist(b)
		s.hold(b)
		b.dead &^= m
		s.moves = append(s.moves, moved{b: b, leaves: need, copied: copied})
		j.block++
	}
	if len(s.moves) == 0 {
		finish()
		j.again()
		return
	}
	g.launchSlice(s)
	g.send(cuda.Host, evictBytes, g.profile.EvictBytesPerSecond, func() {
		g.reportEvictions(s)
		g.after(perGiB(populateBytes, g.profile.PopulatePerGiB), func() {
			g.send(cuda.Device, copyBytes, g.profile.PrefetchBytesPerSecond, func() {
				g.send(cuda.Device, duplicateBytes, g.profile.DuplicateBytesPerSecond, func() {
					g.stats.PrefetchedBytes += copyBytes + duplicateBytes
					for _, m := range s.moves {
						g.arriveOnDevice(m, m.b.readMostly)
						g.observeMask(m.b, m.copied, cuda.Device, CauseUser, s.begin, g.now)
					}
					g.release(s)
					finish()
					j.again()
				})
			})
		})
	})
}

// arriveOnDevice is the end of make_resident: the leaves are on the device, the
// host's copy is gone but for the leaves to keep, and the block is touched.
func (g *GPU) arriveOnDevice(m moved, keep mask) {
	b := m.b
	if b.seg.freed {
		return
	}
	g.setDevice(b, b.dev|m.leaves)
	b.host &^= m.leaves &^ keep
	g.touch(b)
}

// toHost sorts what moving leaves m to the host has to do: live contents to
// copy, leaves without contents that only get pages, and pages to be made.
func (b *block) toHost(m mask) (live, empty, pages mask) {
	m &^= b.host
	live = m & b.dev &^ b.dead
	empty = m &^ live
	return live, empty, m &^ b.hostPages
}

// mappingTime is the driver's second pass: CPU pages and their mappings.
func (g *memory) mappingTime(b *block, live, empty, pages mask) time.Duration {
	return perBlock(b.bytes(live), g.profile.ToHostMapPerBlock) +
		perBlock(b.bytes(empty), g.profile.ToHostDeadPerBlock) +
		perBlock(b.bytes(pages), g.profile.ToHostAllocPerBlock)
}

func (j *moveJob) stepToHost(finish func()) {
	g, s := j.g, j.g.newSlice()
	var copyBytes int64
	var mapping time.Duration
	for len(s.moves) < sliceBlocks {
		b, m := j.current()
		if b == nil {
			break
		}
		if b.moving != nil {
			if j.blocked(s, b, finish) {
				return
			}
			break
		}
		live, empty, pages := b.toHost(m)
		if live|empty != 0 {
			if live != 0 {
				g.noteInUse(b)
			}
			copyBytes += b.bytes(live)
			mapping += g.mappingTime(b, live, empty, pages)
			s.hold(b)
			s.moves = append(s.moves, moved{b: b, leaves: live | empty, copied: live})
		}
		j.block++
	}
	if len(s.moves) == 0 {
		finish()
		j.again()
		return
	}
	g.launchSlice(s)
	rate := float64(blockBytes) / g.profile.ToHostCopyPerBlock.Seconds()
	arrived := func() {
		g.stats.SentHomeBytes += copyBytes
		for _, m := range s.moves {
			b := m.b
			if b.seg.freed {
				continue
			}
			b.host |= m.leaves
			b.hostPages |= m.leaves
			// A read-duplicated range keeps its device copy.
			g.setDevice(b, b.dev&^(m.leaves&^b.readMostly))
			g.relist(b)
			g.observeMask(b, m.copied, cuda.Host, CauseUser, s.begin, g.now)
		}
		g.release(s)
	}
	g.send(cuda.Host, copyBytes, rate, func() {
		if !g.directMoves {
			g.after(mapping, func() {
				arrived()
				finish()
				j.again()
			})
			return
		}
		// Mapping pages for the CPU needs no lock of the moves to the device.
		finish()
		g.serve(&g.mapper, func(mapped func()) {
			g.after(mapping, func() {
				arrived()
				mapped()
				j.again()
			})
		})
	})
}
