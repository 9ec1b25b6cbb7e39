package sim

import (
	"math/bits"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

// EventKind says what an Event reports.
type EventKind uint8

// Kinds of Event.
const (
	EventFaults    EventKind = iota // a kernel missed: Faults entries in Range, one block's, served from Begin to End
	EventMigration                  // bytes crossed the bus: Range, To, Cause, Begin, End
)

// Cause says why memory migrated, as the driver reports it.
type Cause uint8

// Causes of migration.
const (
	CauseUser      Cause = iota // a prefetch call
	CauseCoherence              // a fault
	CausePrefetch               // the driver's tree prefetcher, beside a fault
	CauseEviction               // to make room
)

func (c Cause) String() string {
	return [...]string{"user", "coherence", "prefetch", "eviction"}[c]
}

// Event is one report of the simulated driver. Pages that are populated without
// a transfer raise faults or nothing, but no migration, as on the real one.
type Event struct {
	Kind       EventKind
	Begin, End time.Duration
	Range      cuda.Range    // live bytes within one block
	To         cuda.Location // of a migration
	Cause      Cause         // of a migration
	Faults     int64         // fault entries in Range
	Batches    int64         // fault batches that the kernel has needed so far
	Kernel     string        // the kernel that faulted
}

// Observer gets every Event, after the simulator's state has changed and
// outside its lock, in order.
type Observer func(Event)

// Observe adds an observer.
func (g *memory) Observe(o Observer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.observers = append(g.observers, o)
}

func (g *memory) notify(e Event) {
	for _, o := range g.observers {
		g.tell(func() { o(e) })
	}
}

// rangeOf is the address range of leaves [lo, hi) of a block, cut at the allocation's end.
func (b *block) rangeOf(lo, hi int) cuda.Range {
	base := b.base() + cuda.Ptr(int64(lo)*leafBytes)
	return cuda.Range{Base: base, Bytes: int64(min(b.base()+cuda.Ptr(int64(hi)*leafBytes), b.seg.End()) - base)}
}

// observeMask reports a migration for each run of leaves.
func (g *memory) observeMask(b *block, m mask, to cuda.Location, c Cause, begin, end time.Duration) {
	if len(g.observers) == 0 {
		return
	}
	for m != 0 {
		lo := bits.TrailingZeros32(m)
		n := bits.TrailingZeros32(^(m >> lo))
		g.notify(Event{Kind: EventMigration, Begin: begin, End: end, Range: b.rangeOf(lo, lo+n), To: to, Cause: c})
		m &^= ^mask(0) >> (blockLeafs - n) << lo
	}
}

func (g *memory) observeFaults(m moved, begin, end time.Duration, r *kernelRun) {
	if len(g.observers) == 0 || m.faulted == 0 {
		return
	}
	lo, hi := bits.TrailingZeros32(m.faulted), bits.Len32(m.faulted)
	g.notify(Event{Kind: EventFaults, Begin: begin, End: end, Range: m.b.rangeOf(lo, hi), Faults: m.entries, Batches: r.batches, Kernel: r.Name})
}

func (g *memory) reportEvictions(s *slice) {
	for _, m := range s.evicted {
		g.observeMask(m.b, m.leaves, cuda.Host, CauseEviction, s.begin, g.now)
	}
}

// Stats are totals since the GPU was made. Take the difference of two for an interval.
type Stats struct {
	H2DBytes, D2HBytes int64 // everything that crossed the bus, or has begun to

	Faults, FaultBatches int64 // fault entries, and the batches they came in
	FaultedBytes         int64 // moved to the device by faults and the tree prefetcher
	PrefetchedBytes      int64 // moved to the device by Prefetch
	SentHomeBytes        int64 // moved to the host by Prefetch
	EvictedBlocks        int64 // chunks taken from blocks with contents
	EvictedBytes         int64 // copied out for that
	ReclaimedChunks      int64 // chunks taken from blocks without contents: no cost
	DiscardedBytes       int64
	RemoteBytes          int64 // accessed in place over the bus by kernels
	NoRoomBlocks         int64 // blocks that could not come because not one chunk fits
	InUseMoves           int64 // blocks that left while a running kernel has them in its access set

	Kernels    int64
	BusyTime   time.Duration // sum of kernel durations
	FaultStall time.Duration // kernels past their duration, waiting for memory
	WaitStall  time.Duration // compute streams waiting at gates or events while no kernel ran
	StallTime  time.Duration // both
}

// Stats is the totals up to now.
func (g *GPU) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.account()
	return g.stats
}

// account adds the time since the last change to the stalls.
func (g *GPU) account() {
	if d := g.now - g.accounted; d > 0 && g.held > 0 && len(g.kernels) == 0 {
		g.stats.WaitStall += d
		g.stats.StallTime += d
	}
	g.accounted = g.now
}

// ResidentBytes is managed memory with contents on the device.
func (g *memory) ResidentBytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.resident
}

// ResidentIn is the part of a managed range that is on the device, to 64 KiB.
func (g *memory) ResidentIn(r cuda.Range) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.residentIn(r)
}

func (g *memory) residentIn(r cuda.Range) int64 {
	var n int64
	for i := g.findSegment(r.Base); i < len(g.managed) && g.managed[i].Base < r.End(); i++ {
		s := g.managed[i]
		lo, hi := max(r.Base, s.Base), min(r.End(), s.End())
		pieces, _ := g.pieces(cuda.Range{Base: lo, Bytes: int64(hi - lo)}, false, nil)
		for _, p := range pieces {
			for k, end := p.blockRange(); k < end; k++ {
				b := &s.blocks[k]
				m := p.mask(k) & b.dev
				if m == 0 {
					continue
				}
				n += b.bytes(m)
				// The first and the last leaf count only as far as the range goes.
				if first := s.Base + cuda.Ptr(int64(p.first)*leafBytes); k == p.first/blockLeafs && m>>(p.first%blockLeafs)&1 == 1 {
					n -= int64(lo - first)
				}
				if last := p.end - 1; k == last/blockLeafs && m>>(last%blockLeafs)&1 == 1 {
					n -= int64(min(s.Base+cuda.Ptr(int64(p.end)*leafBytes), s.End()) - hi)
				}
			}
		}
	}
	return n
}

// UsedBytes is device memory in use: plain allocations, physical handles and
// the root chunks that managed memory holds, with or without contents.
func (g *memory) UsedBytes() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.usedBytes()
}

// CapacityBytes is the device memory.
func (g *memory) CapacityBytes() int64 { return g.capacityBytes }
