package trace

import "time"

// Kind says what an Event records. The zero value is invalid, so that a
// zeroed or truncated record is never mistaken for a real one.
type Kind uint8

// The kinds of event. The numbers are part of the recorded format and never change.
const (
	KindInvalid   Kind = iota
	KindAlloc          // an allocation came to life: Alloc, Bytes, Address, Stream
	KindFree           // an allocation died: Alloc
	KindFunction       // a kernel was seen for the first time: Function, Name
	KindLaunch         // a kernel launch: Stream, Function, Grid, Block, Duration, Accesses
	KindCopy           // a copy or fill: Stream, Copy, Bytes, Duration, Accesses
	KindFault          // a GPU page fault: Address, Mode, GPU, Batch, CopyEngine, Process
	KindMigration      // memory changed sides: Address, Bytes, To, Cause, Duration, GPU, Process
	KindMark           // a named moment, such as an iteration boundary: Name
	KindProgress       // a stream was seen to have finished: Stream, Alloc (the last launch or copy that is done, counted from 1 over the whole trace), Duration (of that one, when it was timed)
	KindCPUFault       // a CPU page fault on managed memory: Address, Mode, Process
	KindThrash         // the driver found memory thrashing between processors: Address, Bytes, Process
	KindRemote         // memory was mapped where it lies instead of moved: Address, Bytes, To (the side that maps), Process
	KindLost           // events that are missing here: Bytes (how many), Name (of what)

	kindLast = KindLost
)

// AccessMode says how an operation touches an allocation.
type AccessMode uint8

// Access modes. A kernel parameter does not say how it is used, so launches
// imported from parameters alone carry AccessUnknown: assume read and write.
const (
	AccessUnknown AccessMode = iota
	AccessRead
	AccessWrite
	AccessReadWrite
)

// Access is one allocation touched by a launch or copy.
type Access struct {
	Alloc  uint64 // allocation id, unique within a trace
	Offset uint64 // bytes from the allocation's start to the pointer that named it
	Mode   AccessMode
}

// CopyKind is the direction of a copy, or a fill.
type CopyKind uint8

// Copy kinds.
const (
	CopyUnknown CopyKind = iota
	CopyHostToDevice
	CopyDeviceToHost
	CopyDeviceToDevice
	CopyFill
)

// Side is where memory is: on the host or on the device.
type Side uint8

// Sides.
const (
	SideHost Side = iota
	SideDevice
)

// Cause says why a migration happened, in the driver's own terms
// (nvidia-uvm UvmEventMigrationCause; Penstock's own moves are CauseUser).
type Cause uint8

// Causes of migration, numbered as the driver numbers them.
const (
	CauseInvalid Cause = iota
	CauseUser
	CauseCoherence
	CausePrefetch
	CauseEviction
	CauseAccessCounters
)

// Event is one thing that happened, in program order. Which fields are set
// depends on Kind; the others are zero.
type Event struct {
	Kind  Kind
	Mode  AccessMode
	Copy  CopyKind
	To    Side
	Cause Cause
	GPU   uint8 // the driver's number of the GPU that faulted or took part, from 1; 0 when unknown
	// CopyEngine: the fault was raised by a copy engine, not by a kernel.
	CopyEngine bool
	Time       time.Duration // since the trace began; 0 when the source has no clock
	Duration   time.Duration // on the GPU; negative when it was not measured
	Stream     uint64        // the stream's handle or number; 0 is the default stream
	Alloc      uint64
	Bytes      int64
	Address    uint64
	Function   uint32
	Grid       [3]uint32
	Block      [3]uint32
	Batch      uint32 // faults that the driver serviced together share it; launches or copies of equal dimensions, where those are not given
	Process    uint32 // 0 is the recorded process; others appear in system-wide recordings
	Name       string // of a function, a mark, an allocation's site, or what was lost
	Accesses   []Access
}
