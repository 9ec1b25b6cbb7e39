package explicit

import (
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/um"
)

// Check recounts the ledger and returns what does not add up.
func (r *Runtime) Check() error {
	var mapped, arrivingBytes, leavingBytes, placed, live, liveSize, dead, host, kept int64
	count := func(t *tensor) error {
		var absent int64
		flying := 0
		for i := range t.chunks {
			c := &t.chunks[i]
			if c.host != nil {
				host += c.bytes
				if c.where == onDevice {
					kept += c.bytes
				}
				if (c.where == onDevice) != (c.kept != nil) || c.where == blank || c.where == inPlace {
					return fmt.Errorf("tensor at %#x: chunk %d is %d with host memory, listed as kept: %t", uint64(t.base), i, c.where, c.kept != nil)
				}
			}
			switch c.where {
			case onDevice:
				mapped += c.bytes
				if c.handle == 0 {
					return fmt.Errorf("tensor at %#x: chunk %d is on the device without physical memory", uint64(t.base), i)
				}
			case arriving:
				mapped += c.bytes
				arrivingBytes += c.bytes
				flying++
			case leaving:
				mapped += c.bytes
				leavingBytes += c.bytes
				flying++
			case inPlace:
				placed += c.bytes
			case onHost:
				absent += c.bytes
				if c.host == nil {
					return fmt.Errorf("tensor at %#x: chunk %d is on the host without host memory", uint64(t.base), i)
				}
			case blank, dropped:
				absent += c.bytes
			}
			if c.where == dropped && (t.remake == nil || !t.remake.ready) {
				return fmt.Errorf("tensor at %#x: dropped, and nothing makes it", uint64(t.base))
			}
			if c.where == dropped && c.host == nil && r.depth(t) >= mostInRow {
				return fmt.Errorf("tensor at %#x: dropped, and %d others in a row have to be made before it", uint64(t.base), r.depth(t))
			}
		}
		if !t.Freed && absent != t.absent {
			return fmt.Errorf("tensor at %#x: %d bytes absent, the tensor says %d", uint64(t.base), absent, t.absent)
		}
		if flying != t.flying {
			return fmt.Errorf("tensor at %#x: %d chunks in flight, the tensor says %d", uint64(t.base), flying, t.flying)
		}
		return nil
	}
	seen := map[*tensor]bool{}
	for p, t := range r.ByPtr {
		if t.parts == nil {
			live += t.bytes
		} else if x := t.partAt(p); x != nil {
			live += x.bytes
		} else {
			return fmt.Errorf("pack at %#x: an allocation at %#x is none of its parts", uint64(t.base), uint64(p))
		}
		if seen[t] {
			continue
		}
		seen[t] = true
		liveSize += t.size
		if err := count(t); err != nil {
			return err
		}
	}
	for p, t := range r.reserved {
		if t.Freed || !slices.ContainsFunc(t.parts, func(x part) bool { return x.state == reserved && t.place(&x).Base == p }) {
			return fmt.Errorf("pack at %#x: %#x is reserved in it, and not one of its parts", uint64(t.base), uint64(p))
		}
	}
	for _, t := range r.unborn() {
		liveSize += t.size
		if err := count(t); err != nil {
			return err
		}
	}
	for _, t := range r.Slots.All() {
		if t == nil {
			continue
		}
		if t.retained {
			if liveSize += t.size; len(t.readers) == 0 || t.Freed {
				return fmt.Errorf("tensor at %#x: retained for nothing", uint64(t.base))
			}
			if err := count(t); err != nil {
				return err
			}
		}
		for _, x := range t.readers {
			if x.remake != nil && !slices.Contains(x.remake.inputs, t) {
				return fmt.Errorf("tensor at %#x: guarded for the one at %#x, which does not need it", uint64(t.base), uint64(x.base))
			}
		}
		if len(t.readers) > 0 && (t.state == Resident || t.state == Arriving) && !t.Freed {
			return fmt.Errorf("tensor at %#x: read by %d to be made again, and not guarded", uint64(t.base), len(t.readers))
		}
	}
	for p, t := range r.held {
		if !t.Freed || !t.held || t.base != p || r.Slots.At(t.Slot) != t {
			return fmt.Errorf("tensor at %#x: held, and not dead with a slot of its own", uint64(p))
		}
		if t.listed { // it is counted there
			continue
		}
		if err := count(t); err != nil {
			return err
		}
	}
	whole, bySize := 0, 0
	for _, l := range r.dead.bySize {
		bySize += len(l)
	}
	for _, t := range r.dead.order {
		if t.whole() {
			whole++
		}
		dead += t.deviceBytes()
		if err := count(t); err != nil {
			return err
		}
	}
	for size, handles := range r.physical.spare {
		for _, h := range handles {
			if len(r.physical.aliases[h]) > 0 {
				return fmt.Errorf("%d spare bytes are mapped at %#x", size, uint64(r.physical.aliases[h][0].base))
			}
		}
	}
	inFlight := r.flying[um.In]+r.flying[um.Out] > 0 || r.making != nil // of dead tensors, which are nowhere listed
	switch {
	case live != r.LiveBytes() || liveSize != r.liveSize:
		return fmt.Errorf("%d live bytes in %d, the ledger says %d in %d", live, liveSize, r.LiveBytes(), r.liveSize)
	case kept != r.kept.bytes || r.kept.bytes == 0 && r.kept.chunks.Len() > 0:
		return fmt.Errorf("%d bytes of the device are kept on the host, too, the ledger says %d", kept, r.kept.bytes)
	case !inFlight && host != r.stats.HostBytes:
		return fmt.Errorf("%d bytes of host memory in use, the ledger says %d", host, r.stats.HostBytes)
	case r.copying < 0 || r.flying[um.Out] == 0 && r.copying != 0:
		return fmt.Errorf("%d copies out are counted, of %d moves", r.copying, r.flying[um.Out])
	case whole != bySize || len(r.dead.order)-whole != len(r.dead.partial):
		return fmt.Errorf("of %d dead ranges %d are whole, by size there are %d, and %d others", len(r.dead.order), whole, bySize, len(r.dead.partial))
	case dead != r.dead.bytes:
		return fmt.Errorf("%d bytes of dead memory, the ledger says %d", dead, r.dead.bytes)
	case !inFlight && placed != r.placed:
		return fmt.Errorf("%d bytes in place, the ledger says %d", placed, r.placed)
	case !inFlight && mapped != r.physical.mapped:
		return fmt.Errorf("%d bytes mapped, the ledger says %d", mapped, r.physical.mapped)
	case !inFlight && (arrivingBytes != r.incoming || leavingBytes != r.outgoing || r.physical.releasing != 0):
		return fmt.Errorf("nothing moves, yet %d bytes arriving, %d leaving, %d being released", r.incoming, r.outgoing, r.physical.releasing)
	case r.RoomBytes() < 0 && r.PlainBytes < r.config.BudgetBytes/2:
		return fmt.Errorf("%d bytes of device memory over the budget", -r.RoomBytes())
	}
	return nil
}

// unborn are the packs of which no part is alive.
func (r *Runtime) unborn() (all []*tensor) {
	for _, t := range r.Slots.All() {
		if t != nil && !t.Freed && !t.retained && t.parts != nil && t.alive == 0 {
			all = append(all, t)
		}
	}
	return all
}
