package stitch

import "fmt"

// Check verifies the invariants: blocks cover their arenas, free neighbours are
// joined, memory is where blocks say, and the counters are what the parts add up to.
func (p *Pool) Check() error {
	var reserved int64
	for _, a := range []*arena{p.small, p.large} {
		if a == nil {
			continue
		}
		n, err := a.check()
		if err != nil {
			return err
		}
		reserved += n
	}
	if reserved != p.stats.ReservedBytes {
		return fmt.Errorf("pool: chunks of %d bytes, %d reserved", reserved, p.stats.ReservedBytes)
	}
	var live int64
	for at, b := range p.live {
		live += b.requested
		if b.state != used {
			return fmt.Errorf("pool: the live allocation at %#x is not in use", uint64(at))
		}
	}
	if live != p.stats.LiveBytes {
		return fmt.Errorf("pool: allocations of %d bytes, %d live", live, p.stats.LiveBytes)
	}
	if n := len(p.stitches.bySize); n != p.stitches.lru.Len() {
		return fmt.Errorf("pool: %d stitched ranges by size, %d by use", n, p.stitches.lru.Len())
	}
	return nil
}

func (a *arena) check() (reserved int64, err error) {
	at, freeSize, indexed := a.base, int64(0), 0
	var prev *block
	for b := a.first; b != nil; prev, b = b, b.next {
		switch {
		case b.base != at || b.prev != prev || b.bytes <= 0:
			return 0, fmt.Errorf("pool: an arena has a gap or overlap at %#x", uint64(at))
		case prev != nil && joins(prev, b):
			return 0, fmt.Errorf("pool: neighbours that should be one at %#x", uint64(b.base))
		}
		for p := b.base; p < b.end(); p += pageBytes - (p-a.base)%pageBytes {
			if i := int64(p-a.base) / pageBytes; b.state == hole && i >= int64(len(a.pages)) {
				break
			}
			if (a.at(p) == nil) != (b.state == hole) {
				return 0, fmt.Errorf("pool: a block at %#x does not have the memory it should have", uint64(b.base))
			}
		}
		if b.state == free {
			freeSize += b.bytes
			l := a.free[b.stream]
			if l == nil || l.fit(b.bytes) == nil || l.blocks[l.search(b.bytes, b.base)] != b {
				return 0, fmt.Errorf("pool: the free block at %#x is not in its list", uint64(b.base))
			}
			indexed++
		}
		at = b.end()
	}
	for _, l := range a.free {
		indexed -= len(l.blocks)
	}
	if a.tail != prev || freeSize != a.freeSize || indexed != 0 {
		return 0, fmt.Errorf("pool: an arena's lists do not match its blocks")
	}
	for i := 0; i < len(a.pages); i++ {
		if c := a.pages[i]; c != nil && c.at == int64(i)*pageBytes {
			reserved += c.bytes
		}
	}
	return reserved, nil
}
