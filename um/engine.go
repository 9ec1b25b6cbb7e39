package um

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/segments"
)

// Errors.
var (
	ErrOutOfMemory = errors.New("out of memory")
	ErrNotOurs     = errors.New("not an address that Penstock handed out")
)

// Engine moves memory between the device and the host, so that operations find what they name. What its workers do for that, and
// what it tells the process around it, is its own: a process drives each with threads made for it.
type Engine interface {
	// Malloc allocates for work on a stream; Free ends an allocation's life, and work already queued may still use it.
	Malloc(bytes int64, stream int) (cuda.Ptr, error)
	Free(p cuda.Ptr) error
	// RecordStream says that work on another stream uses the allocation.
	RecordStream(p cuda.Ptr, stream int) error
	// Owns says whether an address is one of its memory. It needs no lock.
	Owns(p cuda.Ptr) bool
	// SlotAddress is the address of the tensor in a slot, SlotOf the slot of what was allocated at an address, 0 when nothing was.
	SlotAddress(slot uint32) (cuda.Ptr, bool)
	SlotOf(p cuda.Ptr) uint32

	// Op reports an operation, in the order of Seq; Progress that a stream has finished every operation up to one.
	Op(o Op)
	Progress(stream int, seq uint64)
	// Queued is how many operations are reported and not finished; Held says whether one waits for memory.
	Queued() int
	Held() bool
	// Moving says whether a move is under way. Epoch changes with every event that may change what to do.
	Moving() bool
	Epoch() uint64

	// SetBudget changes the device budget; RoomBytes is how much of it is free.
	SetBudget(bytes int64)
	RoomBytes() int64
	// LiveBytes are the bytes of live tensors as asked for, ReservedBytes those that they and what is kept for others occupy.
	LiveBytes() int64
	ReservedBytes() int64
	// Segments are its memory that is allocated or kept for allocations, in no order; of a stream they have the number.
	Segments() []segments.Segment
	// Check recounts the ledger and returns what does not add up.
	Check() error
}

// Direction is which kind of worker a move belongs to.
type Direction int

// The workers: one kind brings in, the other takes out.
const (
	In Direction = iota
	Out
)

// Op is an operation on a stream: a kernel, a copy, a fill. It is reported when it is queued, or before it is launched.
type Op struct {
	Seq    uint64 // ascending over all streams
	Stream int    // stream index
	Slots  []uint32
	Name   string // for messages; may be empty
	// Work is the same whenever the same work is done, and else seldom: which kernel or kind of copy,
	// whatever it touches; not by how many tensors either, for allocations that share a range are one.
	Work uint32
	// Shape is that of the work: a hash of a launch's dimensions, or of a copy's bytes. With Work it tells what takes as long.
	Shape uint32

	// Of these an engine uses what it can.

	Gated   bool // it waits on its stream until it is let go
	Reports bool // its stream says so when it has finished
	// Keep says that addresses of what it names are left where no operation will show them: that stays from then on.
	Keep bool
	// ToHost says that it copies to the host, for which programs wait: nothing depends on it but how the job is judged.
	ToHost bool
	// Access is what it does with each of Slots, as far as it is known; it may be shorter.
	Access []Access
	// Again is the launch, when it can be issued again: it writes to the one that Access says. What is absent may then come
	// back by being computed, instead of from the host.
	Again *cuda.RecordedLaunch
	// Written are the addresses of what it writes to, as far as they are known: where allocations share a range they tell which it is.
	Written []cuda.Ptr
	// Trying says that it is not known yet what launches of its kernel write to: trials are to tell.
	Trying bool
	// Product says that it is a launch of a kernel that takes long, as matrix products do, of which trials tell what it writes to.
	Product bool
	// Fill says that it writes one value everywhere.
	Fill bool
}

// AccessOf is what it does with what a slot has.
func (o *Op) AccessOf(slot uint32) Access {
	if len(o.Access) == 0 { // it may name thousands
		return AccessUnknown
	}
	if i := slices.Index(o.Slots, slot); i >= 0 && i < len(o.Access) {
		return o.Access[i]
	}
	return AccessUnknown
}

// Signature is what the history tells operations apart by where allocations share nothing: Work, and how many tensors are named.
func (o *Op) Signature() uint64 {
	const k = 0x9e3779b97f4a7c15
	x := uint64(o.Work)<<16 ^ uint64(len(o.Slots))
	x *= k
	return x ^ x>>31
}

// Access is what an operation does with something that it names.
type Access uint8

// Accesses.
const (
	AccessUnknown Access = iota // it may write
	AccessReads                 // and does not write
	AccessWrites                // and may read
	AccessScratch               // and may write, though what is there means nothing, before or after
)

// Stats counts what an engine did. It may have counts of its own beside these.
type Stats struct {
	FetchedBytes, EvictedBytes   int64 // that were copied
	Fetches, Evictions           int64
	LiveBytes, LivePeakBytes     int64
	DeviceBytes, DevicePeakBytes int64 // device memory, plain memory included
	PlainBytes                   int64
	Ops                          int64
	OversizeOps                  int64 // operations that name more than the budget
	OversizeName                 string
	OversizeBytes                int64
	Plans                        int64 // times the future was looked at
	Stall                        [StallCauses]time.Duration
	History                      correlate.HistoryStats
}

// Stalled is all of the time that something waited.
func (s *Stats) Stalled() (all time.Duration) {
	for _, d := range s.Stall {
		all += d
	}
	return all
}
