package pool

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
)

// checkSegments verifies that the segments have all the memory of a pool at rest, and show what its clients hold, and no more.
func checkSegments(p *Pool, clients []*client) error {
	all := p.Segments()
	if err := segments.Check(all, p.LiveBytes()); err != nil {
		return err
	}
	reserved, requested := int64(0), map[cuda.Ptr]int64{}
	for _, s := range all {
		reserved += s.Bytes
		for _, b := range s.Blocks {
			if b.State == segments.Allocated {
				requested[b.Address] = b.Requested
			}
		}
	}
	if reserved != p.ReservedBytes() {
		return fmt.Errorf("segments of %d bytes, %d reserved", reserved, p.ReservedBytes())
	}
	for _, c := range clients {
		for _, a := range c.live {
			if requested[a.p] != a.bytes {
				return fmt.Errorf("%d bytes at %#x are shown as %d", a.bytes, uint64(a.p), requested[a.p])
			}
			delete(requested, a.p)
		}
	}
	if len(requested) > 0 {
		return fmt.Errorf("%d allocations that nobody holds are shown", len(requested))
	}
	return nil
}
