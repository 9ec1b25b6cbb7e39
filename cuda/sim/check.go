package sim

import (
	"errors"
	"fmt"
)

// Check recomputes the ledger from the blocks and returns what does not agree.
// It may be called at any time between events.
func (g *GPU) Check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	var resident, chunks, managed int64
	look := func(b *block) {
		resident += b.bytes(b.dev)
		if b.chunk {
			chunks++
		}
	}
	for _, s := range g.managed {
		managed += s.Bytes
		for i := range s.blocks {
			b := &s.blocks[i]
			look(b)
			at := uint64(b.base())
			if (b.dev|b.host|b.hostPages)&^b.valid != 0 {
				bad("block %#x: contents past the allocation's end", at)
			}
			if b.dev != 0 && !b.chunk {
				bad("block %#x: on the device without a chunk", at)
			}
			if b.moving == nil && b.dev&b.host&^b.readMostly != 0 {
				bad("block %#x: on both sides without read-mostly", at)
			}
			if b.dead&^b.dev != 0 {
				bad("block %#x: dead leaves that are not on the device", at)
			}
			if b.host&^b.hostPages != 0 {
				bad("block %#x: host contents without host pages", at)
			}
			if b.chunk && b.moving == nil && b.list == listNone {
				bad("block %#x: holds a chunk and is in no list", at)
			}
			if b.list == listUnused && b.dev != 0 || b.list == listUsed && b.dev == 0 && b.moving == nil {
				bad("block %#x: in the wrong list", at)
			}
			word, bit := b.index>>6, b.index&63
			read := b.moving == nil && b.dev == b.valid
			if s.ready[word]>>bit&1 == 1 != read || s.readyWrite[word]>>bit&1 == 1 != (read && b.dev&b.host == 0) {
				bad("block %#x: ready bits are stale", at)
			}
		}
	}
	for _, s := range g.inFlight {
		for _, b := range s.held {
			if b.moving != s {
				bad("block %#x: held by a slice that does not move it", uint64(b.base()))
			}
			if b.seg.freed {
				look(b)
			}
		}
	}
	for k := listUnused; k < listKinds; k++ {
		var previous *block
		for b := g.lists[k].head; b != nil; previous, b = b, b.next {
			if b.list != k || b.previous != previous || !b.chunk {
				bad("block %#x: list %d is broken there", uint64(b.base()), k)
			}
		}
		if g.lists[k].tail != previous {
			bad("list %d has the wrong tail", k)
		}
	}
	if resident != g.resident {
		bad("resident bytes: ledger %d, blocks %d", g.resident, resident)
	}
	if chunks != g.chunks {
		bad("chunks: ledger %d, blocks %d", g.chunks, chunks)
	}
	if managed != g.managedBytes {
		bad("managed bytes: ledger %d, allocations %d", g.managedBytes, managed)
	}
	if g.usedBytes() > g.capacityBytes {
		bad("%d bytes in use on a card of %d", g.usedBytes(), g.capacityBytes)
	}
	var plain int64
	for _, p := range g.plain {
		plain += p.Bytes
	}
	if plain != g.plainBytes {
		bad("plain bytes: ledger %d, allocations %d", g.plainBytes, plain)
	}
	if len(g.kernels) > 0 && g.next() == nil {
		bad("%d kernels run and nothing will end them", len(g.kernels))
	}
	return errors.Join(errs...)
}
