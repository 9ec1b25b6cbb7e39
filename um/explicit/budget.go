package explicit

import (
	"fmt"

	"github.com/penstock-gpu/penstock/internal/size"
	"github.com/penstock-gpu/penstock/um"
)

// This file is for how much memory there is, of the device and of the host, and for plain memory, which takes its share of it.

// WantsPlain says whether room is waited for by plain memory.
func (r *tensors) WantsPlain() bool { return r.plainNeed > 0 }

// BeyondLiveBytes is how much more may be allocated, in whole pages.
func (r *tensors) BeyondLiveBytes() int64 {
	return r.config.BudgetBytes + max(r.config.HostBudgetBytes-r.exchangeBytes(), 0) - r.liveSize - r.PlainBytes
}

// exchangeBytes is how much host memory nothing may be allocated in the place of: what comes in needs room on the device,
// and what makes it needs room on the host before that. There is enough for all that leaves at a time, of a small host
// budget half, and always for the largest chunk.
func (r *tensors) exchangeBytes() int64 {
	return max(2*r.config.ChunkBytes, min(int64(r.config.Depth)*r.config.ChunkBytes, r.config.HostBudgetBytes/2))
}

func (r *tensors) outOfMemory(bytes int64) error {
	return fmt.Errorf("%w: %s asked for with %s live; the device budget is %s (%s of it plain memory) and the host budget %s (%s of it for tensors that change places): raise --budget or --host-budget",
		um.ErrOutOfMemory, size.Text(bytes), size.Text(r.LiveBytes()), size.Text(r.config.BudgetBytes), size.Text(r.PlainBytes), size.Text(r.config.HostBudgetBytes),
		size.Text(min(r.exchangeBytes(), r.config.HostBudgetBytes)))
}

// SetPlainBytes says how much device memory is taken outside the reservation.
func (r *tensors) SetPlainBytes(bytes int64) {
	if r.PlainBytes != bytes {
		r.PlainBytes = bytes
		r.notePeak()
		r.Happened()
	}
}

// ReservePlain enters plain memory that is about to be taken. When there is no
// room it asks for it to be made, and answers false: try again after a move.
func (r *tensors) ReservePlain(bytes int64) bool {
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
func (r *tensors) CancelPlain() { r.plainNeed = 0 }

// SetBudget changes the device budget.
func (r *tensors) SetBudget(bytes int64) {
	r.config.BudgetBytes = bytes
	r.Happened()
}

// Shrink makes the budget what is in use now: the driver has no more.
func (r *tensors) Shrink() {
	r.config.BudgetBytes = min(r.config.BudgetBytes, r.PlainBytes+r.physical.total())
	r.plan.valid = false
	r.Happened()
}

// Budget is the device budget: as configured, or what Shrink left of it.
func (r *tensors) Budget() int64 { return r.config.BudgetBytes }

// RoomBytes is how much more device memory may be taken at this moment.
func (r *tensors) RoomBytes() int64 {
	return r.config.BudgetBytes - r.PlainBytes - r.physical.total()
}

// room is that but for what is kept for plain memory that is waited for: a move that took it
// would have to be followed by another that makes it again, and so on for ever.
func (r *tensors) room() int64 { return r.RoomBytes() - r.plainNeed }

// deviceBytes is the physical memory that tensors take: what goes is gone before anything is made.
func (r *tensors) deviceBytes() int64 { return r.physical.total() - r.physical.going }

func (r *tensors) notePeak() { r.NotePeak(r.deviceBytes()) }

// ReservedBytes are the bytes of live tensors in whole pages, and of dead ranges
// that are kept mapped.
func (r *tensors) ReservedBytes() int64 { return r.liveSize + r.dead.bytes }
