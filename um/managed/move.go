package managed

import "github.com/penstock-gpu/penstock/cuda"

// MoveKind says what a Move does.
type MoveKind int

// Kinds of move.
const (
	MoveFetch    MoveKind = iota // bring a tensor's blocks to the device
	MoveEvict                    // take a tensor's blocks to the host
	MovePopulate                 // make free blocks present on the device, without contents
	MoveDiscard                  // let go of free blocks, without a copy
	MovePrepare                  // make host pages for untouched blocks; see Prepare
	MoveTouch                    // prefetch what is on the device already, so that the driver evicts others first
)

func (k MoveKind) String() string {
	return [...]string{"fetch", "evict", "populate", "discard", "prepare", "touch"}[k]
}

// Move is something for a worker to do: discard first where StaleFirst says so,
// then migrate (or discard) Ranges.
type Move struct {
	Kind   MoveKind
	Ranges []cuda.Range
	// StaleFirst says that the ranges hold dead pages to discard before migrating.
	StaleFirst bool
	Bytes      int64 // that cross the bus, as far as the runtime knows
	OutBytes   int64 // that leave in the driver's eviction under this move

	runs      []run    // blocks that change sides
	in        bool     // they come to the device
	extents   []extent // free blocks among them, to give back
	touched   []int32  // blocks that it makes recent
	displaced []int32  // blocks that the driver evicts under this move
}

func (m *Move) blocks() (n int32) {
	for _, x := range m.runs {
		n += x.n
	}
	return n
}
