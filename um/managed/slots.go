package managed

import "github.com/penstock-gpu/penstock/cuda"

// SlotAddress is the address of the live tensor in a slot; ok is false when the
// slot is empty.
func (r *Runtime) SlotAddress(slot uint32) (p cuda.Ptr, ok bool) {
	if t := r.Slots.At(slot); t != nil {
		return r.arena.ptr(t.first), true
	}
	return 0, false
}

// Moving says whether a worker has a move in its hands.
func (r *Runtime) Moving() bool { return r.arriving+r.leaving > 0 }

// LetHeadGo opens the gate of the operation that has been held back longest,
// although it misses memory: it faults for that, which is slow and right. It is
// the way out when no move can help it.
func (r *Runtime) LetHeadGo() {
	if x := r.head(); x != nil {
		r.letLate(x)
	}
}

// RoomBytes is how much more may come to the device now; negative when too much is there.
func (r *Runtime) RoomBytes() int64 { return int64(r.room()) * BlockBytes }

// Republish tells the process of every slot again, for one whose answer to
// residency has changed.
func (r *Runtime) Republish() {
	for slot, t := range r.Slots.All() {
		if t != nil {
			r.process.SetResident(uint32(slot), t.present == t.n && t.leaving == 0)
		}
	}
}
