package um

import "github.com/penstock-gpu/penstock/cuda"

// SlotAddress is the address of the live tensor in a slot; ok is false when the
// slot is empty.
func (r *Runtime) SlotAddress(slot uint32) (p cuda.Ptr, ok bool) {
	if int(slot) >= len(r.slots) || r.slots[slot] == nil {
		return 0, false
	}
	return r.arena.ptr(r.slots[slot].first), true
}
