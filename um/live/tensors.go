package live

import "github.com/penstock-gpu/penstock/cuda"

// tensors is what the two engines' runtimes have in common. Live's lock guards it,
// but for Owns, which is fixed from the start.
type tensors interface {
	Owns(p cuda.Ptr) bool
	Free(p cuda.Ptr) error
	RecordStream(p cuda.Ptr, stream int) error
	SlotAddress(slot uint32) (cuda.Ptr, bool)
	Progress(stream int, seq uint64)
	SetBudget(bytes int64)
	LiveBytes() int64
	ReservedBytes() int64
	Check() error
}
