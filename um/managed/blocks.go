package managed

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um"
)

// blocks is the lowest floor: the arena, whose blocks are whose, where each is, what moves, and how much room there is.
type blocks struct {
	um.Base[*tensor, *op]
	config  Config
	process Process
	arena   *arena

	foretold []bool // by slot: the deepum tables predict it for the next kernels
	lastSeq  uint64 // queued, perhaps not reported yet

	plainDue      int64 // about to be taken there: room is made for it
	liveBlocks    int32
	arriving      int32              // blocks in fetch and populate moves
	leaving       int32              // blocks in evict and discard moves, and the driver's victims
	discarding    int32              // of these, blocks in discard moves
	displacing    int32              // of these, the driver's victims
	populating    int32              // of the arriving ones, free blocks
	flying        int32              // moves that have begun
	freeMoving    int32              // blocks that are nobody's, and not in arena.free before a move is done
	driverVictims []int32            // blocks that the driver is or was to evict
	detached      map[int32][]extent // driver's victims that are free
	deferred      []*tensor          // dead tensors that unfinished operations use, in order of death
	recency       *recency           // driver's eviction order; nil unless DriverEvicts
	plan          plan               // made by planning; below it is told that something is otherwise
	stats         Stats
}

// note keeps the mirror of the driver's order.
func (r *blocks) note(b int32, onDevice bool) {
	switch {
	case r.recency == nil:
	case onDevice:
		r.recency.touch(b)
	default:
		r.recency.remove(b)
	}
}

func (r *blocks) leave(t *tensor) {
	if t.leaving == 0 && !t.Freed {
		r.process.SetResident(t.Slot, false)
	}
	t.leaving++
}

// settle puts a run of blocks on one side.
func (r *blocks) settle(x run, onDevice bool) {
	a := r.arena
	for b := x.first; b < x.end(); b++ {
		a.moving[b] = false
		t := a.owner[b]
		if t != nil {
			if onDevice {
				t.arriving--
			} else {
				t.leaving--
			}
			if a.onDevice[b] != onDevice {
				if onDevice {
					t.present++
				} else {
					t.present--
				}
			}
		}
		a.setOnDevice(b, 1, onDevice)
		r.note(b, onDevice)
		if t != nil {
			r.settled(t)
		}
	}
}

// settled follows the end of a move of one of a tensor's blocks.
func (r *blocks) settled(t *tensor) {
	switch {
	case t.Freed:
		if t.arriving+t.leaving == 0 {
			r.freeMoving -= t.n
			r.release(t)
		}
	case t.present == t.n && t.leaving == 0:
		r.process.SetResident(t.Slot, true)
	}
}

// release gives a dead tensor's blocks back.
func (r *blocks) release(t *tensor) {
	a := r.arena
	for b := t.first; b < t.first+t.n; b++ {
		a.owner[b] = nil
		if t.Busy() {
			a.deferred[b] = t
		}
		if !a.onDevice[b] && t.ran {
			a.stale[b] = true
		}
	}
	t.released = true
	a.give(t.first, t.n, t.Stream, t.freeSeq, t.freeOthers)
}

func (r *blocks) account(m *Move) {
	bytes := int64(m.blocks()) * BlockBytes
	switch m.Kind {
	case MoveFetch:
		r.stats.Fetches++
		r.stats.FetchedBytes += m.Bytes
	case MoveEvict:
		r.stats.Evictions++
		r.stats.EvictedBytes += m.Bytes
	case MovePopulate:
		r.stats.Populates++
		r.stats.PopulatedBytes += bytes
	case MoveDiscard:
		r.stats.Discards++
		r.stats.DiscardedBytes += bytes
	}
	r.stats.EvictedBytes += m.OutBytes
}

func (r *blocks) notePeak() {
	resident := r.residentBytes()
	r.stats.ResidentPeakBytes = max(r.stats.ResidentPeakBytes, resident)
	r.NotePeak(resident)
}

// residentBytes are those of managed blocks on the device.
func (r *blocks) residentBytes() int64 { return int64(r.arena.resident) * BlockBytes }

// takeFree takes the free blocks of a move out of the allocator's hands while it moves.
func (r *blocks) takeFree(m *Move) {
	for _, x := range m.runs {
		for b := x.first; b < x.end(); b++ {
			if r.arena.owner[b] == nil {
				m.extents = append(m.extents, r.arena.take(b, 1)...)
			}
		}
	}
}

// mayGo says whether a block may leave under demand paging while x waits.
func (r *blocks) mayGo(b int32, x *op) bool {
	if !r.arena.onDevice[b] || r.arena.moving[b] {
		return false
	}
	t := r.holder(b)
	if t == nil {
		return true
	}
	if t.pinned() || t.Freed && !t.released {
		return false
	}
	if x != nil {
		for _, y := range x.Tensors {
			if b >= y.first && b < y.first+y.n {
				return false
			}
		}
	}
	return true
}

// oldestExists says whether anything may leave under demand paging while x waits.
func (r *blocks) oldestExists(x *op) bool {
	for b := int32(0); b < r.arena.blocks; b++ {
		if r.mayGo(b, x) {
			return true
		}
	}
	return false
}

// room is how many blocks may come to the device now.
func (r *blocks) room() int32 {
	plain := blocksOf(r.PlainBytes + r.plainDue)
	return int32(r.config.BudgetBytes/BlockBytes) - plain - r.arena.resident - r.arriving + r.displacing
}

// dead says whether nothing can touch a free extent any more. Work on a stream
// that was never named for its memory (a missing record_stream) counts, too.
func (r *blocks) dead(e *extent) bool {
	if !e.idle(r.Passed) {
		return false
	}
	for b := e.first; b < e.end(); b++ {
		if g := r.arena.deferred[b]; g != nil {
			if g.Busy() {
				return false
			}
			r.arena.deferred[b] = nil
		}
	}
	return true
}

func (r *blocks) outOfMemory(bytes int64) error {
	host := "as large as the host's memory allows"
	if r.config.HostBudgetBytes > 0 {
		host = size.Text(r.config.HostBudgetBytes)
	}
	return fmt.Errorf("%w: %s asked for with %s live; the device budget is %s and the host budget %s (largest free range %s): raise --budget or --host-budget",
		um.ErrOutOfMemory, size.Text(bytes), size.Text(r.LiveBytes()), size.Text(r.config.BudgetBytes), host, size.Text(int64(r.arena.largestFree())*BlockBytes))
}

// Owns says whether an address is in the arena.
func (r *blocks) Owns(p cuda.Ptr) bool { return r.arena.contains(p) }

// idleAfter is the operation after which a stream has done everything that is
// queued on it now. Where work may be queued that the hook does not see, only an
// operation queued later proves that: discarding on less could lose data.
func (r *blocks) idleAfter(stream int) uint64 {
	if !r.config.AllWorkSeen || r.lastSeq > r.Reported() { // some are not known yet, and may be this stream's
		return r.lastSeq + 1
	}
	return r.ReportedOn(stream)
}

// letGo marks an operation as free to run: its tensors must stay until it has.
func (r *blocks) letGo(x *op) {
	x.open = true
	for _, t := range x.Tensors {
		t.open++
		t.ran = true
	}
}

// AllFinished says whether all operations up to a number have finished, of those that were reported.
func (r *blocks) AllFinished(seq uint64) bool {
	first, ok := r.Pending.First()
	return !ok || first.Seq > seq
}

// Quiet says that nothing is queued any more, reported or not: all that is dead is idle. What was freed is known to be only once a
// later operation has finished, and there may be none.
func (r *blocks) Quiet() { r.arena.compact(func(um.Mark) bool { return true }) }

// FreeMoves says whether moves that have begun hold memory that is nobody's: it can be
// allocated when they are done.
func (r *blocks) FreeMoves() bool { return r.freeMoving > 0 || len(r.detached) > 0 }

// Reserved says that operations up to seq have been queued, though perhaps not reported yet.
func (r *blocks) Reserved(seq uint64) { r.lastSeq = max(r.lastSeq, seq) }

// SetPlainBytes says how much device memory is taken outside the arena and how much
// more is about to be: room is made for that, but it is not on the device yet.
func (r *blocks) SetPlainBytes(bytes, due int64) {
	if r.PlainBytes == bytes && r.plainDue == due {
		return
	}
	r.PlainBytes, r.plainDue = bytes, due
	r.notePeak()
	r.plan.valid = false // made for other room, and there may be no other event
	r.Happened()
}

// SetBudget changes the device budget.
func (r *blocks) SetBudget(bytes int64) {
	r.config.BudgetBytes = bytes
	r.plan.valid = false
	r.Happened()
}

// ReservedBytes are the bytes of live tensors in whole blocks. Free blocks that are on the device
// are not reserved: the driver gives their memory to whoever asks for some.
func (r *blocks) ReservedBytes() int64 { return int64(r.liveBlocks) * BlockBytes }

// SlotAddress is the address of the live tensor in a slot; ok is false when the
// slot is empty.
func (r *blocks) SlotAddress(slot uint32) (p cuda.Ptr, ok bool) {
	if t := r.Slots.At(slot); t != nil {
		return r.arena.ptr(t.first), true
	}
	return 0, false
}

// Moving says whether a worker has a move in its hands.
func (r *blocks) Moving() bool { return r.arriving+r.leaving > 0 }

// RoomBytes is how much more may come to the device now; negative when too much is there.
func (r *blocks) RoomBytes() int64 { return int64(r.room()) * BlockBytes }

// Republish tells the process of every slot again, for one whose answer to
// residency has changed.
func (r *blocks) Republish() {
	for slot, t := range r.Slots.All() {
		if t != nil {
			r.process.SetResident(uint32(slot), t.present == t.n && t.leaving == 0)
		}
	}
}
