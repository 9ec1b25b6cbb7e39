package um

import (
	"errors"
	"time"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
)

// Errors.
var (
	ErrOutOfMemory = errors.New("out of memory")
	ErrNotOurs     = errors.New("not an address that Penstock handed out")
)

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
	// Again is the launch, when it can be made again: it writes to what Access says, and reads nothing that it writes. What
	// is absent may then come back by being computed, instead of from the host.
	Again *cuda.RecordedLaunch
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
	AccessUnknown Access = iota
	AccessReads
	AccessWrites // and may read
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
