package explicit

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/prefetch"
	"github.com/penstock-gpu/penstock/um"
)

// Runtime is the engine. See the package comment.
type Runtime struct {
	um.Base[*tensor, *op]
	config    Config
	process   Process
	addresses *addresses
	physical  physical
	graves    graveyard
	kept      kept
	trial     trial
	recent    recent
	again     again
	levels    levels
	// unpackedUntil is the position before which no packs are made.
	unpackedUntil int64
	lives         lives
	pass          uint64 // the version of the history that is repeated
	prepared      int64  // the lives before this number are parts of packs, or are not to be
	mostNamed     int64  // bytes that one operation has named at most, as op.asked counts them
	mostLive      int64  // of liveSize

	held      map[cuda.Ptr]*tensor // dead, and the job may take them again: see held.go
	reserved  map[cuda.Ptr]*tensor // packs, by the parts that the job may take: see pack.go
	early     []early              // packs, in the order in which they were made
	newest    int64                // the life that the newest allocation repeats which does repeat one
	loose     loose
	borrowers map[kind]int64 // the position at which they last borrowed: see borrow.go

	plainNeed   int64 // of plain memory, wanted and not taken yet
	emptying    bool  // what is free is to be given back
	empties     int   // moves under way that do so
	lastStream  int   // that something was allocated for
	liveSize    int64 // in whole pages
	incoming    int64 // bytes of chunks on the way in
	outgoing    int64 // bytes of chunks on the way out
	flying      [2]int
	copying     int       // of these, moves out that copy
	fetching    int       // of these, fetches
	nothing     [2]uint64 // by direction: the epoch, and one, at which there was nothing to do
	notRecalled int       // dead ranges that the job had taken again when they were last looked for
	refused     bool      // host memory was not to be had when it was last asked for
	moves       int64     // that have begun

	plan       plan
	drafting   *Draft          // the plan that is being made
	spareDraft Draft           // its memory
	have       map[int64]int   // scratch of reclaimable
	picked     map[int64]int   // scratch of pick
	searches   uint64          // for dead memory
	covered    map[int64]int   // scratch of makeReady
	born       map[int64]int   // scratch of lookAtFuture
	fitting    map[int64]int64 // scratch of fit
	placed     int64           // bytes in place
	oversize   *op             // the last operation for which something was placed
	making     *tensor         // a range that is being mapped for a coming allocation
	planner    prefetch.Planner[*tensor]
	stats      Stats
}

// Stats counts what a Runtime did.
type Stats struct {
	um.Stats
	Maps, Reclaims               int64
	Created, Released            int64                     // physical handles
	CleanBytes                   int64                     // that left without a copy
	Dropped, DroppedBytes, Wrong int64                     // chunks that can be made again, with or without a copy, and those that were found wrong when they were to leave
	CopiedBytes                  [Causes]int64             // what was copied out instead of being dropped, by cause
	Verified                     int64                     // recipes that were tried
	Level                        Level                     // how much is made again
	Took                         [levelCount]time.Duration // an iteration at each level, when it was last tried
	Trying                       bool                      // at the levels in turn
	BannedKernels                []string                  // of the functions of recipes that are not used any more
	Recorded, Trusted, Banned    int                       // functions of recipes that were tried, those that have been right often enough, and those that are not used any more
	GuardWaits                   int64                     // operations that waited for what is made of what they may write to
	Made, MadeBytes, Unmade      int64                     // moves in that made what left again, and those that did not succeed
	InPlaceBytes                 int64                     // that launches used in host memory
	HostBytes, KeptBytes         int64                     // host memory in use, and what of it is given back when it is wanted
	HostPeakBytes                int64                     // host memory in use but for that, at most
	WaitedOps                    int64
	WaitedForMap, WaitedForFetch int64 // of these: for fresh memory, for contents that nobody was bringing
	WaitedForLeaving             int64 // for contents on their way out
	WaitedForeach                int64 // of all that waited: of PyTorch's operations on many tensors at once
	ReusedRanges, FreshRanges    int64 // allocations that found mapped memory, and those that did not
	LooksAgain                   int64 // nothing had moved for a launch that waited: see LookAgain
	BorrowedRanges               int64 // allocations that found some of a larger size: see borrow.go
	Packs, PackedAllocs          int64 // ranges that allocations shared, and these: see pack.go
	TakenBack                    int64 // evictions that a launch came before
}

var _ um.Engine = (*Runtime)(nil)

// New returns a Runtime over reserved addresses.
func New(c Config, p Process) *Runtime {
	c = c.withDefaults()
	r := &Runtime{
		config: c, process: p,
		addresses: newAddresses(c.Addresses),
		physical:  physical{spare: map[int64][]cuda.Handle{}},
		graves:    graveyard{bySize: map[int64][]*tensor{}},
		held:      map[cuda.Ptr]*tensor{},
		reserved:  map[cuda.Ptr]*tensor{},
		loose:     loose{open: map[int]*tensor{}},
		borrowers: map[kind]int64{},
		levels:    newLevels(c.Level),
		again:     again{same: map[uint32]int{}, wrong: map[uint32]int{}, refused: map[uint32]int{}, banned: map[uint32]bool{}, names: map[uint32]string{}, mostWrong: c.MostWrong, proofs: proofs{}, sizes: map[int64]bool{}},
		have:      map[int64]int{}, picked: map[int64]int{}, covered: map[int64]int{}, born: map[int64]int{}, fitting: map[int64]int64{},
	}
	r.Init(p)
	return r
}

// Malloc allocates for work on a stream.
func (r *Runtime) Malloc(bytes int64, stream int) (cuda.Ptr, error) {
	if bytes <= 0 || bytes > r.addresses.Bytes {
		return 0, r.outOfMemory(bytes)
	}
	if !r.mayGrow(WholePages(bytes)) {
		return 0, r.outOfMemory(bytes)
	}
	before := r.repeats(bytes, stream)
	p := r.mallocPacked(before, stream)
	if p == 0 {
		p = r.mallocLoose(before, bytes, stream)
	}
	if p == 0 {
		t, ok := r.raise(before, bytes, stream)
		if !ok {
			return 0, r.outOfMemory(bytes)
		}
		p = t.base
		t.life = r.enter(t, p, bytes)
	}
	r.prepare(before)
	return p, nil
}

// raise makes a tensor that repeats the life before, of a dead range if there is one; ok is false when there are no addresses.
func (r *Runtime) raise(before, bytes int64, stream int) (t *tensor, ok bool) {
	size := WholePages(bytes)
	t = &tensor{Tensor: um.Tensor{Stream: stream}, size: size, bytes: bytes}
	if g := r.exhume(size, stream); g != nil {
		t.base, t.chunks = g.base, g.chunks
		r.stats.ReusedRanges++
	} else if g := r.borrow(before, bytes, stream); g != nil {
		t.base, t.chunks, t.size, t.borrowed = g.base, g.chunks, g.size, true
	} else {
		if t.base, ok = r.addresses.take(size); !ok {
			return nil, false
		}
		t.chunks, t.absent = r.cut(size), size
		r.stats.FreshRanges++
	}
	r.takeSlot(t)
	r.live(t)
	return t, true
}

// takeSlot makes a tensor known to the launch hook.
func (r *Runtime) takeSlot(t *tensor) {
	t.Slot = r.Slots.Take(t)
	r.publish(t)
}

// publish tells the launch hook where a tensor lies.
func (r *Runtime) publish(t *tensor) {
	var ticket uint32
	t.state, ticket = t.usable()
	r.process.Publish(t.Slot, cuda.Range{Base: t.base, Bytes: t.size})
	r.process.SetState(t.Slot, t.state, ticket)
}

// live enters a tensor among the living.
func (r *Runtime) live(t *tensor) {
	t.Instance, t.recipe, t.users, t.products = r.History.Alloc(t.size), recipe{}, nil, products{}
	t.rest, t.copied = rest{}, false
	r.History.Asked(t.Instance, t.bytes)
	r.lastStream = t.Stream
	r.liveSize += t.size
	r.mostLive = max(r.mostLive, r.liveSize)
	r.Happened()
}

// enter notes an allocation, of all of a tensor or of a part of it, and answers the number of its
// life, which is remembered where packs are made.
func (r *Runtime) enter(t *tensor, p cuda.Ptr, bytes int64) (life int64) {
	r.ByPtr[p] = t
	t.born = r.History.Now()
	r.AddLive(bytes)
	if !r.config.Packs {
		return noLife
	}
	return r.lives.begin(r.History.Ref(t.Instance), bytes, t.Stream, t.born)
}

// leave notes the end of one, whose life has that number.
func (r *Runtime) leave(t *tensor, p cuda.Ptr, bytes, life int64, named bool) {
	delete(r.ByPtr, p)
	r.AddLive(-bytes)
	if x := r.lives.of(life); x != nil {
		x.died, x.named, x.makeable = r.History.Now(), named, r.hasRecipe(t) && r.makesNow(t) && t.size >= leastMakeable
		if x.makeable {
			r.again.sizes[t.size] = true
		}
		if x.makeable && !t.copied {
			x.rest = t.rest
		}
	}
}

// BeyondLiveBytes is how much more may be allocated, in whole pages.
func (r *Runtime) BeyondLiveBytes() int64 {
	return r.config.BudgetBytes + max(r.config.HostBudgetBytes-r.exchangeBytes(), 0) - r.liveSize - r.PlainBytes
}

// mayGrow says whether so much more may be allocated, for which packs go that nothing is in.
func (r *Runtime) mayGrow(bytes int64) bool {
	if bytes > r.BeyondLiveBytes() {
		r.giveUpEarly()
	}
	return bytes <= r.BeyondLiveBytes()
}

// PlainFits says whether plain memory may grow by so much: else there is no room for it however long is waited.
func (r *Runtime) PlainFits(bytes int64) bool {
	return bytes <= r.config.BudgetBytes-r.PlainBytes && r.mayGrow(bytes)
}

// exchangeBytes is how much host memory nothing may be allocated in the place of: what comes in needs room on the device,
// and what makes it needs room on the host before that. There is enough for all that leaves at a time, of a small host
// budget half, and always for the largest chunk.
func (r *Runtime) exchangeBytes() int64 {
	return max(2*r.config.ChunkBytes, min(int64(r.config.Depth)*r.config.ChunkBytes, r.config.HostBudgetBytes/2))
}

// exhume finds a dead range of the size whose memory is mapped and may be used by
// the stream: the stream's own, as its work is in order, or one that is idle.
func (r *Runtime) exhume(size int64, stream int) *tensor {
	l := r.graves.bySize[size]
	for i := len(l) - 1; i >= 0; i-- {
		if g := l[i]; r.follows(g, stream) && r.recall(g) {
			r.graves.remove(g)
			return g
		}
	}
	return nil
}

// follows says whether a stream may use a dead tensor's memory.
func (r *Runtime) follows(g *tensor, stream int) bool {
	return g.Stream == stream && len(g.Others) == 0 && g.pins == 0 || r.idle(g)
}

// idle says whether nothing that was queued before a tensor died is unfinished, nor a making that reads it.
func (r *Runtime) idle(t *tensor) bool {
	if t.Busy() || t.pins > 0 {
		return false
	}
	for _, m := range t.freedAt {
		if !r.Passed(m) {
			return false
		}
	}
	return true
}

func (r *Runtime) outOfMemory(bytes int64) error {
	return fmt.Errorf("%w: %s asked for with %s live; the device budget is %s (%s of it plain memory) and the host budget %s (%s of it for tensors that change places): raise --budget or --host-budget",
		um.ErrOutOfMemory, size.Text(bytes), size.Text(r.LiveBytes()), size.Text(r.config.BudgetBytes), size.Text(r.PlainBytes), size.Text(r.config.HostBudgetBytes),
		size.Text(min(r.exchangeBytes(), r.config.HostBudgetBytes)))
}

// Free takes an allocation back. Operations reported before may still use it.
func (r *Runtime) Free(p cuda.Ptr) error {
	t, err := r.Find(p)
	if err != nil {
		return err
	}
	if t.parts != nil {
		r.freePart(t, p)
		return nil
	}
	r.leave(t, p, t.bytes, t.life, t.Named)
	r.end(t)
	return nil
}

// end ends a tensor's life, and what the launch hook knows of it; one that others are to be made of is retained.
func (r *Runtime) end(t *tensor) {
	for _, x := range slices.Clone(t.readers) {
		if !x.away() {
			r.release(x) // it is there: it can be made without this one, or is moved
		}
	}
	if len(t.readers) > 0 {
		r.retain(t)
		return
	}
	if t.loose {
		r.loose.excess -= t.size
	}
	r.die(t)
	r.giveSlot(t)
	if t.flying == 0 {
		r.bury(t)
	}
	if t.borrowed && t.buried && t.whole() && len(t.Others) == 0 {
		r.offer(t)
	}
}

// die ends a tensor's life. Its slot is still its own.
func (r *Runtime) die(t *tensor) {
	r.disband(t)
	r.inline(t)
	needed := len(t.readers) > 0 // the job has taken the range again: see Hold
	if !needed {
		r.release(t)
	}
	r.liveSize -= t.size
	if !t.retained {
		r.History.Free(t.Instance)
	}
	t.Freed, t.retained, t.recipe, t.users = true, false, recipe{}, nil // else what was read by what is dead would be remembered for ever
	for i := range t.chunks {
		c := &t.chunks[i]
		if c.kept != nil {
			r.giveHost(c)
		}
		if c.where == dropped && !needed {
			c.where = blank // there is nothing to be made any more
		}
	}
	r.noteFreed(t)
	r.Happened()
}

// noteFreed notes what has to pass before a tensor's memory is idle that is dead from now on.
func (r *Runtime) noteFreed(t *tensor) { t.freedAt = append(t.freedAt, r.reported(t)...) }

// reported is how far the streams that use a tensor have got in what was reported.
func (r *Runtime) reported(t *tensor) (marks []um.Mark) {
	for _, s := range append([]int{t.Stream}, t.Others...) {
		marks = append(marks, um.Mark{Stream: s, Seq: r.ReportedOn(s)})
	}
	return marks
}

// giveSlot ends what the launch hook knows of a tensor.
func (r *Runtime) giveSlot(t *tensor) {
	r.Slots.Give(t.Slot)
	r.process.Withdraw(t.Slot, cuda.Range{Base: t.base, Bytes: t.size})
}

// bury puts a dead tensor of which nothing is in flight into the graveyard, or
// gives its addresses back when nothing is mapped there.
func (r *Runtime) bury(t *tensor) {
	for i := range t.chunks {
		c := &t.chunks[i]
		r.giveHost(c)
		c.habit = habit{}
		if c.where == onHost {
			c.where = blank
		}
	}
	if t.deviceBytes()+t.bytesIn(inPlace) == 0 {
		r.addresses.give(t.base, t.size)
		return
	}
	r.graves.add(t)
}

// Owns says whether an address is in the reservation.
func (r *Runtime) Owns(p cuda.Ptr) bool { return r.addresses.contains(p) }

// Moving says whether a move is under way.
func (r *Runtime) Moving() bool { return r.flying[um.In]+r.flying[um.Out] > 0 }

// SlotAddress is the address of a slot's tensor.
func (r *Runtime) SlotAddress(slot uint32) (cuda.Ptr, bool) {
	if t := r.Slots.At(slot); t != nil {
		return t.base, true
	}
	return 0, false
}

// Range is the live allocation that an address lies in, as asked for.
func (r *Runtime) Range(p cuda.Ptr) (cuda.Range, bool) {
	t := r.at(p)
	if t == nil {
		return cuda.Range{}, false
	}
	if t.parts == nil {
		return cuda.Range{Base: t.base, Bytes: t.bytes}, true
	}
	if x := t.partAt(p); x != nil {
		return t.place(x), true
	}
	return cuda.Range{}, false
}

// Unwritten says whether no other operation has come since the live allocation that an address lies in was born
// than the one with that seq, which has not been launched: it can find nothing there, whatever was left behind.
// That is known of a part of a pack as long as its life is remembered.
func (r *Runtime) Unwritten(p cuda.Ptr, seq uint64) bool {
	t, x := r.at(p), r.find(seq)
	if t == nil || x == nil {
		return false
	}
	if t.parts == nil {
		return t.born == x.Position
	}
	part := t.partAt(p)
	if part == nil {
		return false
	}
	l := r.lives.of(part.life)
	return l != nil && l.born == x.Position
}

// SlotAt is the slot of the live tensor that an address lies in, 0 for none.
func (r *Runtime) SlotAt(p cuda.Ptr) uint32 {
	if t := r.ByPtr[p]; t != nil {
		return t.Slot
	}
	if t := r.at(p); t != nil {
		return t.Slot
	}
	return 0
}

// at is the live tensor that an address lies in, or nil. Only for rare questions.
func (r *Runtime) at(p cuda.Ptr) *tensor {
	if !r.addresses.contains(p) {
		return nil
	}
	for _, t := range r.Slots.All() {
		if t != nil && !t.Freed && !t.retained && p >= t.base && p < t.base+cuda.Ptr(t.size) {
			return t
		}
	}
	return nil
}

// SetPlainBytes says how much device memory is taken outside the reservation.
func (r *Runtime) SetPlainBytes(bytes int64) {
	if r.PlainBytes != bytes {
		r.PlainBytes = bytes
		r.notePeak()
		r.Happened()
	}
}

// ReservePlain enters plain memory that is about to be taken. When there is no
// room it asks for it to be made, and answers false: try again after a move.
func (r *Runtime) ReservePlain(bytes int64) bool {
	if r.RoomBytes() < bytes {
		if r.plainNeed != bytes {
			r.plainNeed = bytes
			r.plan.valid = false
			r.Happened()
		}
		return false
	}
	r.plainNeed = 0
	r.SetPlainBytes(r.PlainBytes + bytes)
	return true
}

// CancelPlain gives up what ReservePlain asked for.
func (r *Runtime) CancelPlain() { r.plainNeed = 0 }

// Span is the reservation: every tensor's addresses lie in [lo, hi).
func (r *Runtime) Span() (lo, hi cuda.Ptr) { return r.addresses.Base, r.addresses.End() }

// SetBudget changes the device budget.
func (r *Runtime) SetBudget(bytes int64) {
	r.config.BudgetBytes = bytes
	r.Happened()
}

// Shrink makes the budget what is in use now: the driver has no more.
func (r *Runtime) Shrink() {
	r.config.BudgetBytes = min(r.config.BudgetBytes, r.PlainBytes+r.physical.total())
	r.plan.valid = false
	r.Happened()
}

// Budget is the device budget: as configured, or what Shrink left of it.
func (r *Runtime) Budget() int64 { return r.config.BudgetBytes }

// RoomBytes is how much more device memory may be taken at this moment.
func (r *Runtime) RoomBytes() int64 {
	return r.config.BudgetBytes - r.PlainBytes - r.physical.total()
}

// room is that but for what is kept for plain memory that is waited for: a move that took it
// would have to be followed by another that makes it again, and so on for ever.
func (r *Runtime) room() int64 { return r.RoomBytes() - r.plainNeed }

// Stats reports counters.
func (r *Runtime) Stats() Stats {
	s := r.stats
	r.Account(&s.Stats, r.deviceBytes())
	s.KeptBytes = r.kept.bytes
	s.Level, s.Took, s.Trying = r.levels.at, r.levels.took, r.levels.trying
	s.Recorded, s.Trusted, s.BannedKernels = r.again.functions(r.config.TrustAfter)
	s.Banned = len(s.BannedKernels)
	return s
}

// deviceBytes is the physical memory that tensors take: what goes is gone before anything is made.
func (r *Runtime) deviceBytes() int64 { return r.physical.total() - r.physical.going }

func (r *Runtime) notePeak() { r.NotePeak(r.deviceBytes()) }

// ReservedBytes are the bytes of live tensors in whole pages, and of dead ranges
// that are kept mapped.
func (r *Runtime) ReservedBytes() int64 { return r.liveSize + r.graves.bytes }

// setState publishes where a tensor is now.
func (r *Runtime) setState(t *tensor) {
	s, ticket := t.usable()
	if len(t.readers) > 0 {
		switch s {
		case Resident:
			s = Guarded
		case Arriving: // until it has come: what waits for it on its stream would pass the guard
			s = Absent
		}
	}
	if t.Freed || s == t.state && s != Arriving {
		return
	}
	t.state = s
	r.process.SetState(t.Slot, s, ticket)
}

// ShowWaits has each wait that is over told: of which operation, for what, and from when to when.
func (r *Runtime) ShowWaits(tell func(seq uint64, cause um.StallCause, from, to time.Duration)) {
	r.Stalls.Ended = func(x *op, cause um.StallCause, from, to time.Duration) { tell(x.Seq, cause, from, to) }
}

// Stalling says whether an operation waits with nothing before it left to run.
func (r *Runtime) Stalling() bool { return r.Stalls.Of != nil }

// accountStall measures how long the oldest operation has waited of those that have
// nothing before them on their stream left to run: in the launch hook, and then on its
// stream for copies that are under way.
func (r *Runtime) accountStall() {
	var x *op
	cause := um.ForMap
	for s := range r.Streams() {
		first, ok := r.Pending.FirstOn(s)
		if !ok || x != nil && first.Seq > x.Seq {
			continue
		}
		switch {
		case first.waiting && !r.ready(first):
			x, cause = first, um.ForMap
		case first.awaits():
			x, cause = first, um.ForFetch
		}
	}
	if x == r.Stalls.Of && cause == um.ForFetch {
		r.Stalls.Blame(cause)
	}
	r.Stalls.Wait(x, cause)
}

// blame says what an operation waits for from now on, if it is the stalled one.
func (r *Runtime) blame(x *op, cause um.StallCause) {
	if x == r.Stalls.Of {
		r.Stalls.Blame(cause)
	}
}
