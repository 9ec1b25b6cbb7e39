package explicit

import (
	"slices"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for aliases: addresses of dead ranges that stay mapped to memory which something else has by now. A
// dead range of which a move takes the memory, all of it, need not be unmapped: nobody uses its addresses. When that
// memory is free again it is a dead range at these addresses once more, and the next allocation of the size gets it
// without a call of the driver. What is alive and not on the device is always unmapped: an access that was not foreseen
// must fail, and not find what something else has there.
//
// Memory that is written at one of its addresses may be read at another once what has written has finished, by what is
// launched after that ("Virtual Aliasing Support", CUDA C++ Programming Guide). A move takes only what is idle.

// mapsMuch says whether mapping is what a job waits for, as where memory is made again, so that calls of the driver are worth more than memory of the
// very size. Where all that moves is copied the bus is the limit, and simulated jobs are up to 3 % slower with aliases and bursts (burst.go).
func (r *tensors) mapsMuch() bool { return r.config.Replay != um.ReplayOff }

// mostAliases is how many aliases memory has at most: each has to be unmapped before it can be released.
const mostAliases = 4

// lend gives a move the memory of a dead range, which becomes an alias of it.
func (r *tensors) lend(m *Move, g *tensor) {
	c := &g.chunks[0]
	m.Handle = c.handle
	r.physical.mapped -= c.bytes
	c.where, c.handle = blank, 0
	aliases := append(r.physical.aliases[m.Handle], g)
	if len(aliases) > mostAliases {
		m.unmap(aliases[0], m.Handle)
		aliases = slices.Delete(aliases, 0, 1)
	}
	r.physical.aliases[m.Handle] = aliases
}

// unmap has a move unmap an alias of memory, whose addresses may then be used for anything.
func (m *Move) unmap(g *tensor, h cuda.Handle) {
	m.Unmap = append(m.Unmap, Mapping{cuda.Range{Base: g.base, Bytes: g.size}, h})
	m.dead = append(m.dead, g)
}

// unalias has a move unmap all aliases of memory, which is to be released.
func (r *tensors) unalias(m *Move, h cuda.Handle) {
	for _, g := range r.physical.aliases[h] {
		m.unmap(g, h)
	}
	delete(r.physical.aliases, h)
}

// freed takes memory back that is mapped for nothing any more: it is a dead range again where it has an alias, else spare.
func (r *tensors) freed(h cuda.Handle, bytes int64) {
	aliases := r.physical.aliases[h]
	if len(aliases) == 0 {
		r.physical.giveSpare(h, bytes)
		return
	}
	last := aliases[len(aliases)-1]
	if aliases = aliases[:len(aliases)-1]; len(aliases) > 0 {
		r.physical.aliases[h] = aliases
	} else {
		delete(r.physical.aliases, h)
	}
	r.physical.mapped += bytes
	r.stats.AliasedRanges++
	g := &tensor{Tensor: um.Tensor{Stream: r.lastStream, Freed: true}, base: last.base, size: bytes, chunks: []chunk{{bytes: bytes, where: onDevice, handle: h}}}
	r.retire(g)
	r.offer(g)
}
