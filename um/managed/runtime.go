package managed

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/internal/queue"
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

// Op is an operation queued on a stream: a launch, a copy or a fill.
type Op struct {
	Seq       uint64 // ascending over all streams
	Stream    int    // stream index
	Signature uint64 // the same whenever the same work is done: kernel and shape, no addresses
	Slots     []uint32
	Gated     bool   // it waits on its stream for OpenGate
	Reports   bool   // its stream says so when it has finished
	Name      string // for messages; may be empty
}

// op is a queued operation.
type op struct {
	position int64
	seq      uint64
	stream   int
	gated    bool
	reports  bool
	open     bool
	name     string
	tensors  []*tensor
}

// Runtime is the engine. See the package comment.
type Runtime struct {
	config  Config
	process Process
	arena   *arena
	history *correlate.History
	tables  *correlate.Tables

	byPtr     map[cuda.Ptr]*tensor
	slots     []*tensor // by slot; slot 0 is unused
	freeSlots []uint32
	foretold  []bool // by slot: the deepum tables predict it for the next kernels

	pending  queue.Queue[*op]
	progress []uint64 // by stream: finished up to this seq
	lastSeq  uint64   // queued, perhaps not reported yet
	reported uint64   // the last that was reported
	lastOn   []uint64 // by stream: the last that was reported

	plainBytes    int64 // device memory taken outside the arena
	plainDue      int64 // about to be taken there: room is made for it
	liveBlocks    int32
	liveBytes     int64
	arriving      int32              // blocks in fetch and populate moves
	leaving       int32              // blocks in evict and discard moves, and the driver's victims
	discarding    int32              // of these, blocks in discard moves
	displacing    int32              // of these, the driver's victims
	populating    int32              // of the arriving ones, free blocks
	flying        int32              // moves that have begun
	displacers    int32              // of these, moves to the device, under which the driver may evict
	touching      bool               // one of them puts the driver's order right
	driverVictims []int32            // blocks that the driver is or was to evict
	detached      map[int32][]extent // driver's victims that are free
	deferred      []*tensor          // dead tensors that unfinished operations use, in order of death
	gated         []([]*op)          // by stream: gated operations whose gate is closed, in order
	recency       *recency           // driver's eviction order; nil unless DriverEvicts

	prepared        []bool // blocks whose host pages have been made
	plan            plan
	foresight       uint64   // of foresee: looks into the future so far
	born            []run    // of foresee: allocations that it has placed
	misplaced       int32    // blocks that discardMisplaced has let go of since the last allocation
	scratch         *arena   // of makeReady: in which coming allocations are placed
	taken           []extent // the same: by one of them
	outlook         outlook
	epoch           uint64 // counts events that may change what to do
	stalledAt       time.Duration
	stalled         *op
	stalledForSpace bool
	stats           Stats
}

// Stats counts what a Runtime did.
type Stats struct {
	FetchedBytes                            int64
	EvictedBytes                            int64
	DiscardedBytes                          int64
	PopulatedBytes                          int64
	Fetches, Evictions, Discards, Populates int64

	LiveBytes, LivePeakBytes         int64
	ResidentBytes, ResidentPeakBytes int64 // managed blocks on the device
	DevicePeakBytes                  int64 // the most that these and plain memory took together
	PlainBytes                       int64

	Ops, GatedOps       int64
	StaleBytes          int64 // of the fetched ones, dead pages that the host held for fresh memory
	Plans               int64 // times the future was looked at
	TouchedBlocks       int64 // blocks made recent so that the driver evicts others
	SparedBlocks        int64 // blocks that the driver was expected to evict and did not
	UnforeseenEvictions int64 // blocks that the driver evicted on its own
	LateOps             int64 // operations let go although a tensor was missing: they fault
	OversizeOps         int64 // operations whose own access set exceeds the budget
	OversizeName        string
	OversizeBytes       int64
	Stall               time.Duration // streams waited at a gate with nothing before it
	StallForSpace       time.Duration // of it, waiting for an eviction
	History             correlate.HistoryStats
}

// New returns a Runtime over an arena of managed address space.
func New(c Config, p Process, arenaBase cuda.Ptr) *Runtime {
	c = c.withDefaults()
	r := &Runtime{
		config: c, process: p,
		arena:    newArena(arenaBase, c.ArenaBytes),
		history:  correlate.NewHistory(correlate.HistoryConfig{}),
		byPtr:    make(map[cuda.Ptr]*tensor),
		detached: make(map[int32][]extent),
		slots:    make([]*tensor, 1), foretold: make([]bool, 1),
	}
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

func (r *Runtime) passed(m streamSeq) bool {
	return m.seq == 0 || m.stream < len(r.progress) && r.progress[m.stream] >= m.seq
}

// Malloc allocates for work on a stream.
func (r *Runtime) Malloc(bytes int64, stream int) (cuda.Ptr, error) {
	if bytes <= 0 || bytes > int64(r.arena.blocks)*BlockBytes {
		return 0, r.outOfMemory(bytes)
	}
	n := blocksOf(bytes)
	if limit := r.config.BudgetBytes + r.config.HostBudgetBytes; r.config.HostBudgetBytes > 0 &&
		int64(r.liveBlocks+n)*BlockBytes+r.plainBytes > limit {
		return 0, r.outOfMemory(bytes)
	}
	first, ok := r.arena.place(n, stream, r.config.Policy.DeadKnown, r.spareAfter(n), r.passed)
	if !ok {
		return 0, r.outOfMemory(bytes)
	}
	r.arena.take(first, n)
	r.misplaced = 0
	r.plan.spend(n, r.history.Now())
	t := &tensor{first: first, n: n, bytes: bytes, stream: stream, instance: r.history.Alloc(int64(n) * BlockBytes)}
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
			if g.busy() {
				t.inherit(g)
			} else {
				r.arena.deferred[b] = nil
			}
		}
	}
	if k := len(r.freeSlots); k > 0 {
		t.slot = r.freeSlots[k-1]
		r.freeSlots = r.freeSlots[:k-1]
		r.slots[t.slot] = t
	} else {
		t.slot = uint32(len(r.slots))
		r.slots = append(r.slots, t)
		r.foretold = append(r.foretold, false)
	}
	p := r.arena.ptr(first)
	r.byPtr[p] = t
	r.liveBlocks += n
	r.liveBytes += bytes
	r.stats.LivePeakBytes = max(r.stats.LivePeakBytes, r.liveBytes)
	r.process.Publish(t.slot, cuda.Range{Base: p, Bytes: int64(n) * BlockBytes}, t.present == t.n)
	r.epoch++
	return p, nil
}

func (r *Runtime) outOfMemory(bytes int64) error {
	host := "as large as the host's memory allows"
	if r.config.HostBudgetBytes > 0 {
		host = size.Text(r.config.HostBudgetBytes)
	}
	return fmt.Errorf("%w: %s asked for with %s live; the device budget is %s and the host budget %s (largest free range %s): raise --budget or --host-budget",
		um.ErrOutOfMemory, size.Text(bytes), size.Text(r.liveBytes), size.Text(r.config.BudgetBytes), host, size.Text(int64(r.arena.largestFree())*BlockBytes))
}

// RecordStream says that work on another stream uses the allocation.
func (r *Runtime) RecordStream(p cuda.Ptr, stream int) error {
	t := r.byPtr[p]
	if t == nil {
		return um.ErrNotOurs
	}
	if stream == t.stream {
		return nil
	}
	for _, s := range t.others {
		if s == stream {
			return nil
		}
	}
	t.others = append(t.others, stream)
	return nil
}

// Owns says whether an address is in the arena.
func (r *Runtime) Owns(p cuda.Ptr) bool { return r.arena.contains(p) }

// Free ends an allocation's life. Work already queued may still use it.
func (r *Runtime) Free(p cuda.Ptr) error {
	t := r.byPtr[p]
	if t == nil {
		return fmt.Errorf("%w: %#x", um.ErrNotOurs, uint64(p))
	}
	delete(r.byPtr, p)
	r.process.Withdraw(t.slot, cuda.Range{Base: p, Bytes: int64(t.n) * BlockBytes})
	r.slots[t.slot] = nil
	r.foretold[t.slot] = false
	r.freeSlots = append(r.freeSlots, t.slot)
	r.history.Free(t.instance)
	r.liveBlocks -= t.n
	r.liveBytes -= t.bytes
	t.freeSeq = r.idleAfter(t.stream)
	for _, s := range t.others {
		t.freeOthers = append(t.freeOthers, streamSeq{s, r.idleAfter(s)})
	}
	t.freed = true
	if t.busy() || t.present > 0 {
		r.plan.spareBlocks += t.n
		r.plan.frees = append(r.plan.frees, freeing{r.history.Now(), t.n})
	}
	if t.busy() {
		r.deferred = append(r.deferred, t)
	}
	if t.arriving+t.leaving == 0 {
		r.release(t)
	}
	r.epoch++
	return nil
}

// idleAfter is the operation after which a stream has done everything that is
// queued on it now. Where work may be queued that the hook does not see, only an
// operation queued later proves that: discarding on less could lose data.
func (r *Runtime) idleAfter(stream int) uint64 {
	if !r.config.AllWorkSeen || r.lastSeq > r.reported { // some are not known yet, and may be this stream's
		return r.lastSeq + 1
	}
	if stream >= len(r.lastOn) {
		return 0
	}
	return r.lastOn[stream]
}

// Op reports an operation in the order of queueing.
func (r *Runtime) Op(o Op) {
	r.stats.Ops++
	r.lastSeq = max(r.lastSeq, o.Seq)
	for len(r.progress) <= o.Stream {
		r.progress = append(r.progress, 0)
	}
	for len(r.lastOn) <= o.Stream {
		r.lastOn = append(r.lastOn, 0)
	}
	r.reported = max(r.reported, o.Seq)
	r.lastOn[o.Stream] = max(r.lastOn[o.Stream], o.Seq)
	x := &op{position: r.history.Now(), seq: o.Seq, stream: o.Stream, gated: o.Gated, reports: o.Reports, name: o.Name}
	touched := make([]correlate.InstanceID, 0, len(o.Slots))
	var blocks int32
	for _, s := range o.Slots {
		if int(s) >= len(r.slots) || r.slots[s] == nil {
			continue
		}
		t := r.slots[s]
		x.tensors = append(x.tensors, t)
		touched = append(touched, t.instance)
		blocks += t.n
	}
	r.history.Observe(o.Signature, touched)
	for _, t := range x.tensors {
		t.queued.Add(x.position)
		t.lastUse = x.position
		t.named = true
		t.predictedVersion = 0
	}
	if bytes := int64(blocks)*BlockBytes + r.plainBytes; bytes > r.config.BudgetBytes {
		r.stats.OversizeOps++
		if bytes > r.stats.OversizeBytes {
			r.stats.OversizeBytes, r.stats.OversizeName = bytes, o.Name
		}
	}
	if r.tables != nil {
		r.learnTables(o.Signature, x)
	}
	r.pending.Add(x.stream, x.seq, x)
	if x.gated {
		r.stats.GatedOps++
		for len(r.gated) <= x.stream {
			r.gated = append(r.gated, nil)
		}
		r.gated[x.stream] = append(r.gated[x.stream], x)
	} else {
		r.letGo(x)
	}
	r.epoch++
	r.openGates()
}

// letGo marks an operation as free to run: its tensors must stay until it has.
func (r *Runtime) letGo(x *op) {
	x.open = true
	for _, t := range x.tensors {
		t.open++
		t.ran = true
	}
}

// Progress reports that a stream has finished every operation up to seq. Those have been
// reported: what is told of the end of one before the operation never learns of it.
func (r *Runtime) Progress(stream int, seq uint64) {
	for len(r.progress) <= stream {
		r.progress = append(r.progress, 0)
	}
	if seq <= r.progress[stream] {
		return
	}
	r.progress[stream] = seq
	died := false
	r.pending.Finish(stream, seq, func(x *op) {
		if !x.open { // it ran although its gate was not opened here: the wait was given up
			r.letGo(x)
			r.dropGated(x)
		}
		for _, t := range x.tensors {
			t.open--
			t.queued.Remove(x.position)
			died = died || t.freed && !t.busy()
		}
	})
	if died {
		r.deferred = slices.DeleteFunc(r.deferred, func(t *tensor) bool { return !t.busy() })
	}
	r.epoch++
	r.openGates()
}

// Epoch changes with every event that may change what to do.
func (r *Runtime) Epoch() uint64 { return r.epoch }

// Queued is how many operations are queued and not finished.
func (r *Runtime) Queued() int { return r.pending.Len() }

// Finished says whether all operations up to a number have finished, of those that were reported.
func (r *Runtime) Finished(seq uint64) bool {
	first, ok := r.pending.First()
	return !ok || first.seq > seq
}

// Held says whether any operation is held back.
func (r *Runtime) Held() bool { return r.head() != nil }

// Reserved says that operations up to seq have been queued, though perhaps not reported yet.
func (r *Runtime) Reserved(seq uint64) { r.lastSeq = max(r.lastSeq, seq) }

// SetPlainBytes says how much device memory is taken outside the arena and how much
// more is about to be: room is made for that, but it is not on the device yet.
func (r *Runtime) SetPlainBytes(bytes, due int64) {
	if r.plainBytes == bytes && r.plainDue == due {
		return
	}
	r.plainBytes, r.plainDue = bytes, due
	r.notePeak()
	r.plan.valid = false // made for other room, and there may be no other event
	r.epoch++
}

// SetBudget changes the device budget.
func (r *Runtime) SetBudget(bytes int64) {
	r.config.BudgetBytes = bytes
	r.plan.valid = false
	r.epoch++
}

// Stats reports counters.
func (r *Runtime) Stats() Stats {
	s := r.stats
	s.LiveBytes = r.liveBytes
	s.PlainBytes = r.plainBytes
	s.ResidentBytes = int64(r.arena.resident) * BlockBytes
	s.History = r.history.Stats()
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
	for _, t := range r.byPtr {
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
	case moving == 0 && live+free != r.arena.blocks:
		return fmt.Errorf("%d live and %d free blocks of %d", live, free, r.arena.blocks)
	case moving == 0 && liveResident+freeResident != resident:
		return fmt.Errorf("%d live and %d free blocks on the device, %d in all", liveResident, freeResident, resident)
	case moving == 0 && (r.arriving != 0 || r.leaving != 0):
		return fmt.Errorf("nothing moves, yet %d blocks arriving and %d leaving", r.arriving, r.leaving)
	}
	return nil
}

// LiveBytes are the bytes of live tensors, as asked for.
func (r *Runtime) LiveBytes() int64 { return r.liveBytes }

// ReservedBytes are the bytes of live tensors in whole blocks. Free blocks that are on the device
// are not reserved: the driver gives their memory to whoever asks for some.
func (r *Runtime) ReservedBytes() int64 { return int64(r.liveBlocks) * BlockBytes }
