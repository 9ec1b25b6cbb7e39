package swapped

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// This file is for copies of the small memory that launches read which are to be issued again: that memory is not the engine's to guard.

const (
	leastClone = 512     // bytes
	mostClone  = 1 << 20 // what is larger is not copied, nor is what reads it made again
)

// clones is device memory in pieces of powers of two.
type clones struct {
	mu   sync.Mutex
	left cuda.Range // that was never given out
	free map[int64][]cuda.Ptr
}

func (c *clones) take(bytes int64) (cuda.Range, bool) {
	size := max(leastClone, int64(1)<<bits.Len64(uint64(bytes-1)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.free[size]; len(l) > 0 {
		c.free[size] = l[:len(l)-1]
		return cuda.Range{Base: l[len(l)-1], Bytes: size}, true
	}
	if c.left.Bytes < size {
		return cuda.Range{}, false
	}
	r := cuda.Range{Base: c.left.Base, Bytes: size}
	c.left.Base, c.left.Bytes = c.left.Base+cuda.Ptr(size), c.left.Bytes-size
	return r, true
}

func (c *clones) give(all []cuda.Range) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range all {
		c.free[r.Bytes] = append(c.free[r.Bytes], r.Base)
	}
}

// busyTries is how often a pool is asked that is in use: most have it for less than a microsecond.
const busyTries = 32

// plainAt is the block of plain memory that an address lies in.
func (p *porter) plainAt(at cuda.Ptr) (block cuda.Range, ok bool, err error) {
	for range busyTries {
		block, ok, busy := p.e.blocks.TryContaining(at)
		if !busy {
			return block, ok, nil
		}
		process.Pause(process.ShortWait)
	}
	return block, false, errPoolBusy
}

// clone queues a copy of plain memory from an address on, for a launch with that seq. What has been given out anew since holds
// something else: a kernel that takes indices from it would reach for memory that nobody has.
func (p *porter) clone(at cuda.Ptr, seq uint64) (from, to cuda.Range, err error) {
	e := p.e
	block, ok, err := p.plainAt(at)
	if err != nil {
		return from, to, err
	}
	from = cuda.Range{Base: at, Bytes: int64(block.End() - at)}
	if !ok || from.Bytes > mostClone {
		return from, to, fmt.Errorf("%w: %d bytes at %#x", errNotGuarded, from.Bytes, uint64(at))
	}
	if born, known := e.bornAt(block.Base); known && born >= seq {
		return from, to, fmt.Errorf("%w: %#x has been given out anew", errNotGuarded, uint64(at))
	}
	if to, ok = e.verifier.clones.take(from.Bytes); !ok {
		return from, to, fmt.Errorf("%w: no memory for copies is left", errNotGuarded)
	}
	// What is on its way back to the driver is not copied any more.
	e.plainMu.Lock()
	defer e.plainMu.Unlock()
	if !e.mapped(from) {
		e.verifier.clones.give([]cuda.Range{to})
		return from, to, fmt.Errorf("%w: it is being released", errNotGuarded)
	}
	return from, to, e.proc.Driver.CopyAsync(to.Base, from.Base, from.Bytes, p.mover.Stream())
}

// mapPlainAt maps plain memory.
func (e *Engine) mapPlainAt(p cuda.Ptr, bytes int64, h cuda.Handle) error {
	if err := e.proc.Driver.Map(p, bytes, h); err != nil || !e.replays() {
		return err
	}
	e.plainMu.Lock()
	defer e.plainMu.Unlock()
	e.plainMapped[p] = bytes
	return nil
}

// unmapPlain unmaps plain memory, when nothing is being copied from there to verify.
func (e *Engine) unmapPlain(p cuda.Ptr, bytes int64) error {
	if !e.replays() {
		return e.proc.Driver.Unmap(p, bytes)
	}
	e.plainMu.Lock()
	for base := range e.plainMapped {
		if base >= p && base < p+cuda.Ptr(bytes) {
			delete(e.plainMapped, base)
		}
	}
	e.plainMu.Unlock()
	if s := e.verifying.Load(); s != 0 {
		if err := e.proc.Driver.StreamSynchronize(cuda.Stream(s)); err != nil {
			return err
		}
	}
	return e.proc.Driver.Unmap(p, bytes)
}

// replays says whether anything may be made again in this job.
func (e *Engine) replays() bool { return e.config.Replay != um.ReplayOff }

// mapped says whether a range is in what is mapped of plain memory. plainMu is held.
func (e *Engine) mapped(r cuda.Range) bool {
	for bytes := r.Bytes; bytes > 0; {
		found := int64(0)
		for base, n := range e.plainMapped {
			if at := r.End() - cuda.Ptr(bytes); at >= base && at < base+cuda.Ptr(n) {
				found = int64(base + cuda.Ptr(n) - at)
				break
			}
		}
		if found == 0 {
			return false
		}
		bytes -= found
	}
	return true
}
