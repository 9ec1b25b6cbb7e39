package managed

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// Process is what a Runtime needs from the process around it: the launch hook
// of a real one, or the replayer of a simulated one.
type Process interface {
	// Publish says which slot owns a run of addresses and whether it is wholly on the device.
	Publish(slot uint32, r cuda.Range, resident bool)
	// Withdraw ends a slot's ownership.
	Withdraw(slot uint32, r cuda.Range)
	// SetResident updates a published slot.
	SetResident(slot uint32, resident bool)
	// OpenGate lets a stream run up to and including an operation.
	OpenGate(stream int, seq uint64)
	// Now is the time, for accounting.
	Now() time.Duration
}

// op is a queued operation.
type op struct {
	um.Operation[*tensor]
	gated   bool
	reports bool
	open    bool
}

// Runtime is the engine: the floors below and, on top of them, what is asked of it. See the package comment.
type Runtime struct{ scheduler }

// Stats counts what a Runtime did.
type Stats struct {
	um.Stats
	DiscardedBytes, PopulatedBytes   int64
	Discards, Populates              int64
	ResidentBytes, ResidentPeakBytes int64 // managed blocks on the device

	GatedOps            int64
	StaleBytes          int64 // of the fetched ones, dead pages that the host held for fresh memory
	TouchedBlocks       int64 // blocks made recent so that the driver evicts others
	SparedBlocks        int64 // blocks that the driver was expected to evict and did not
	UnforeseenEvictions int64 // blocks that the driver evicted on its own
	LateOps             int64 // operations let go although a tensor was missing: they fault
}

var _ um.Engine = (*Runtime)(nil)

// New returns a Runtime over an arena of managed address space.
func New(c Config, p Process, arenaBase cuda.Ptr) *Runtime {
	c = c.withDefaults()
	r := &Runtime{}
	r.config, r.process = c, p
	r.arena = newArena(arenaBase, c.ArenaBytes)
	r.detached, r.foretold = make(map[int32][]extent), make([]bool, 1)
	r.Init(p)
	if c.Policy.Fetch == um.FetchTables {
		r.tables = correlate.NewTables(correlate.TablesConfig{})
	}
	r.scratch = &arena{base: arenaBase, blocks: r.arena.blocks, deferred: r.arena.deferred, compactAt: math.MaxInt}
	if c.DriverEvicts {
		r.recency = newRecency(r.arena.blocks)
	}
	return r
}

func blocksOf(bytes int64) int32 { return int32((bytes + BlockBytes - 1) / BlockBytes) }

// Malloc allocates for work on a stream.
func (r *Runtime) Malloc(bytes int64, stream int) (cuda.Ptr, error) {
	if bytes <= 0 || bytes > int64(r.arena.blocks)*BlockBytes {
		return 0, r.outOfMemory(bytes)
	}
	n := blocksOf(bytes)
	if limit := r.config.BudgetBytes + r.config.HostBudgetBytes; r.config.HostBudgetBytes > 0 &&
		int64(r.liveBlocks+n)*BlockBytes+r.PlainBytes > limit {
		return 0, r.outOfMemory(bytes)
	}
	first, ok := r.arena.place(n, stream, r.config.Policy.DeadKnown, r.spareAfter(n), r.Passed)
	if !ok {
		return 0, r.outOfMemory(bytes)
	}
	r.arena.take(first, n)
	r.misplaced = 0
	r.plan.spend(n, r.History.Now())
	t := &tensor{Tensor: um.Tensor{Stream: stream, Instance: r.History.Alloc(int64(n) * BlockBytes)}, first: first, n: n, bytes: bytes}
	for b := first; b < first+n; b++ {
		r.arena.owner[b] = t
		switch {
		case r.arena.onDevice[b]:
			t.present++
		case r.arena.arriving[b]:
			r.arena.arriving[b] = false
			t.arriving++
		}
		if g := r.arena.deferred[b]; g != nil {
			if g.Busy() {
				t.inherit(g)
			} else {
				r.arena.deferred[b] = nil
			}
		}
	}
	if t.Slot = r.Slots.Take(t); int(t.Slot) == len(r.foretold) {
		r.foretold = append(r.foretold, false)
	}
	p := r.arena.ptr(first)
	r.ByPtr[p] = t
	r.liveBlocks += n
	r.AddLive(bytes)
	r.process.Publish(t.Slot, cuda.Range{Base: p, Bytes: int64(n) * BlockBytes}, t.present == t.n)
	r.Happened()
	return p, nil
}

// Free ends an allocation's life. Work already queued may still use it.
func (r *Runtime) Free(p cuda.Ptr) error {
	t, err := r.Find(p)
	if err != nil {
		return err
	}
	delete(r.ByPtr, p)
	r.process.Withdraw(t.Slot, cuda.Range{Base: p, Bytes: int64(t.n) * BlockBytes})
	r.Slots.Give(t.Slot)
	r.foretold[t.Slot] = false
	r.History.Free(t.Instance)
	r.liveBlocks -= t.n
	r.AddLive(-t.bytes)
	t.freeSeq = r.idleAfter(t.Stream)
	for _, s := range t.Others {
		t.freeOthers = append(t.freeOthers, um.Mark{Stream: s, Seq: r.idleAfter(s)})
	}
	t.Freed = true
	if t.Busy() || t.present > 0 {
		r.plan.spareBlocks += t.n
		r.plan.frees = append(r.plan.frees, freeing{r.History.Now(), t.n})
	}
	if t.Busy() {
		r.deferred = append(r.deferred, t)
	}
	if t.arriving+t.leaving == 0 {
		r.release(t)
	} else {
		r.freeMoving += t.n
	}
	r.Happened()
	return nil
}

// Op reports an operation in the order of queueing.
func (r *Runtime) Op(o um.Op) {
	r.stats.Ops++
	r.lastSeq = max(r.lastSeq, o.Seq)
	x := &op{gated: o.Gated, reports: o.Reports}
	r.Begin(&o, &x.Operation)
	var blocks int32
	for _, t := range x.Tensors {
		blocks += t.n
		t.predictedVersion = 0
	}
	signature := o.Signature()
	r.Enter(x, &x.Operation, signature)
	if bytes := int64(blocks)*BlockBytes + r.PlainBytes; bytes > r.config.BudgetBytes {
		r.stats.OversizeOps++
		if bytes > r.stats.OversizeBytes {
			r.stats.OversizeBytes, r.stats.OversizeName = bytes, o.Name
		}
	}
	if r.tables != nil {
		r.learnTables(signature, x)
	}
	if x.gated {
		r.stats.GatedOps++
		for len(r.gated) <= x.Stream {
			r.gated = append(r.gated, nil)
		}
		r.gated[x.Stream] = append(r.gated[x.Stream], x)
	} else {
		r.letGo(x)
	}
	r.Happened()
	r.openGates()
}

// Progress reports that a stream has finished every operation up to seq. Those have been
// reported: what is told of the end of one before the operation never learns of it.
func (r *Runtime) Progress(stream int, seq uint64) {
	if !r.Finished(stream, seq) {
		return
	}
	died := false
	r.Pending.Finish(stream, seq, func(x *op) {
		if !x.open { // it ran although its gate was not opened here: the wait was given up
			r.letGo(x)
			r.dropGated(x)
		}
		for _, t := range x.Tensors {
			t.open--
			t.Queued.Remove(x.Position)
			died = died || t.Freed && !t.Busy()
		}
	})
	if died {
		r.deferred = slices.DeleteFunc(r.deferred, func(t *tensor) bool { return !t.Busy() })
	}
	r.Happened()
	r.openGates()
}

// Stats reports counters.
func (r *Runtime) Stats() Stats {
	s := r.stats
	s.ResidentBytes = r.residentBytes()
	r.Account(&s.Stats, s.ResidentBytes)
	return s
}

// Check recounts the ledger and returns what does not add up.
func (r *Runtime) Check() error {
	var resident, freeResident, free, live, liveResident, moving int32
	for _, on := range r.arena.onDevice {
		if on {
			resident++
		}
	}
	for i := range r.arena.free {
		e := &r.arena.free[i]
		free += e.n
		for b := e.first; b < e.end(); b++ {
			if r.arena.onDevice[b] != e.onDevice {
				return fmt.Errorf("free block %d: the extent says on device %t, the ledger %t", b, e.onDevice, r.arena.onDevice[b])
			}
		}
		if e.onDevice {
			freeResident += e.n
		}
		if i > 0 && r.arena.free[i-1].end() > e.first {
			return fmt.Errorf("free extents overlap at block %d", e.first)
		}
	}
	for _, t := range r.ByPtr {
		live += t.n
		var present int32
		for b := t.first; b < t.first+t.n; b++ {
			if r.arena.onDevice[b] {
				present++
			}
		}
		if present != t.present {
			return fmt.Errorf("tensor at block %d: %d blocks on the device, the tensor says %d", t.first, present, t.present)
		}
		liveResident += present
	}
	for _, m := range r.arena.moving {
		if m {
			moving++
		}
	}
	switch {
	case resident != r.arena.resident:
		return fmt.Errorf("%d blocks on the device, the ledger says %d", resident, r.arena.resident)
	case freeResident != r.arena.freeOnDevice:
		return fmt.Errorf("%d free blocks on the device, the ledger says %d", freeResident, r.arena.freeOnDevice)
	case live != r.liveBlocks:
		return fmt.Errorf("%d live blocks, the ledger says %d", live, r.liveBlocks)
	case live+free+r.freeMoving+int32(len(r.detached)) != r.arena.blocks:
		return fmt.Errorf("%d live blocks, %d free ones, %d that moves hold and %d that the driver evicts, of %d", live, free, r.freeMoving, len(r.detached), r.arena.blocks)
	case moving == 0 && liveResident+freeResident != resident:
		return fmt.Errorf("%d live and %d free blocks on the device, %d in all", liveResident, freeResident, resident)
	case moving == 0 && (r.arriving != 0 || r.leaving != 0):
		return fmt.Errorf("nothing moves, yet %d blocks arriving and %d leaving", r.arriving, r.leaving)
	}
	return nil
}
