package um

import "github.com/penstock-gpu/penstock/cuda"

// MoveKind says what a Move does.
type MoveKind int

// Kinds of move.
const (
	MoveFetch    MoveKind = iota // bring a tensor's blocks to the device
	MoveEvict                    // take a tensor's blocks to the host
	MovePopulate                 // make free blocks present on the device, without contents
	MoveDiscard                  // let go of free blocks, without a copy
)

func (k MoveKind) String() string {
	return [...]string{"fetch", "evict", "populate", "discard"}[k]
}

// Direction is which of the two workers a move belongs to.
type Direction int

// The workers: one brings in, the other takes out.
const (
	In Direction = iota
	Out
)

// Move is something for a worker to do, in this order: make Touch recent, so
// that the driver evicts others first; discard; migrate Ranges.
type Move struct {
	Kind   MoveKind
	Ranges []cuda.Range
	// Touch are resident ranges that must outlive a driver eviction.
	Touch []cuda.Range
	// StaleFirst says that the ranges hold dead pages to discard before migrating.
	StaleFirst bool
	Bytes      int64 // that cross the bus, as far as the runtime knows
	OutBytes   int64 // that leave in the driver's eviction under this move

	runs      []run    // blocks that change sides
	in        bool     // they come to the device
	extents   []extent // free blocks among them, to give back
	displaced []run    // blocks that the driver evicts under this move
}
