package swapped

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/penstock-gpu/penstock/cuda"
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
func (p *worker) plainAt(at cuda.Ptr) (block cuda.Range, ok bool, err error) {
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
// something else: a kernel that takes indices from it would reach for memory that nobody has. What several products use is not copied: they may be at it.
func (p *worker) clone(at cuda.Ptr, seq uint64, uses [][]cuda.Ptr) (from, to cuda.Range, err error) {
	e := p.e
	block, ok, err := p.plainAt(at)
	if err != nil {
		return from, to, err
	}
	from = cuda.Range{Base: at, Bytes: int64(block.End() - at)}
	if !ok || from.Bytes > mostClone {
		return from, to, fmt.Errorf("%w: %d bytes at %#x", errNotGuarded, from.Bytes, uint64(at))
	}
	if severalName(uses, block) {
		return from, to, fmt.Errorf("%w: several products use %#x", errNotGuarded, uint64(at))
	}
	if born, known := e.bornAt(block.Base); known && born >= seq {
		return from, to, fmt.Errorf("%w: %#x has been given out anew", errNotGuarded, uint64(at))
	}
	if to, ok = e.verifier.clones.take(from.Bytes); !ok {
		return from, to, fmt.Errorf("%w: no memory for copies is left", errNotGuarded)
	}
	// What is on its way back to the driver is not copied any more.
	e.plain.mu.Lock()
	defer e.plain.mu.Unlock()
	if !e.plain.holds(from) {
		e.verifier.clones.give([]cuda.Range{to})
		return from, to, fmt.Errorf("%w: it is being released", errNotGuarded)
	}
	return from, to, e.proc.Driver.CopyAsync(to.Base, from.Base, from.Bytes, p.mover.Stream())
}
