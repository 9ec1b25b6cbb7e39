package process

import (
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/internal/hook"
	"github.com/penstock-gpu/penstock/um"
)

// Hook is the launch hook as the engine sees it; *hook.Shared is the real one.
type Hook interface {
	Publish(slot uint32, r cuda.Range, resident bool)
	Withdraw(slot uint32, r cuda.Range)
	SetResident(slot uint32, resident bool)
	OpenGate(stream int, seq uint64)
	Progress(stream int) uint64
	Head() uint64
	Read() uint64
	Drain(visit func(*hook.Record)) int
	Streams() []uint64
	FunctionName(id uint32) string
	Wait(timeout time.Duration)
	SetMode(m hook.Mode)
	SetProgressEvery(n uint32)
	SetStamps(on bool)
	SetTiming(on bool)
	Timings(visit func(seq uint64, took, empty time.Duration))
	TimingsLost() uint64
	ReportAll()
	Words(gate, progress cuda.Ptr)
	Counters() hook.Counters
	Serve()
	SynchronizeOthers() error
}

// Sink receives what happens, for recording. It is called under the lock and in
// order, but for allocations in plain memory, which come from any thread at any time.
type Sink interface {
	Alloc(p cuda.Ptr, bytes int64, stream uint64)
	Free(p cuda.Ptr)
	// Record is an operation. What it needs of the record it copies.
	Record(r *hook.Record, stream uint64, name func(function uint32) string, address func(slot uint32) (cuda.Ptr, bool))
	// Move says that the engine has moved what lies at these addresses.
	Move(ranges []cuda.Range, d um.Direction, began, ended time.Duration)
	// Progress says that a stream has finished everything up to a record.
	Progress(stream, seq uint64)
	// Timing says how long a record's operation took on the device.
	Timing(seq uint64, took time.Duration)
	// Faults are what the driver has reported, and what it has lost in all.
	Faults(events []faults.Event, lost faults.Lost)
	// FaultSource says once why the driver's events cannot be seen; "" when they can.
	FaultSource(why string)
	// DriverSums are the driver's own sums, at the end.
	DriverSums(s faults.Sums)
}
