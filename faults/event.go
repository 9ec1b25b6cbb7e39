package faults

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// EntryBytes is the size of one entry of the driver's event queue, version 1.
const EntryBytes = 64

// Types of entry that Penstock asks for, as the driver numbers them.
const (
	typeCPUFault  = 1
	typeMigration = 2
	typeGPUFault  = 3
	typeThrashing = 10
	typeMapRemote = 13
)

// Access is how the GPU touched the faulting address.
type Access uint8

// Accesses, numbered as the driver numbers them.
const (
	AccessInvalid Access = iota
	AccessRead
	AccessWrite
	AccessAtomic
	AccessPrefetch
)

func (a Access) String() string {
	if s := []string{"invalid", "read", "write", "atomic", "prefetch"}; int(a) < len(s) {
		return s[a]
	}
	return fmt.Sprintf("access(%d)", a)
}

// mode is the same in a trace's terms: atomics read and write, a prefetch instruction reads.
func (a Access) mode() trace.AccessMode {
	switch a {
	case AccessRead, AccessPrefetch:
		return trace.AccessRead
	case AccessWrite:
		return trace.AccessWrite
	case AccessAtomic:
		return trace.AccessReadWrite
	}
	return trace.AccessUnknown
}

// Processor is the driver's index of a processor: 0 is the CPU, GPUs count from 1.
type Processor uint8

func (p Processor) side() trace.Side {
	if p == 0 {
		return trace.SideHost
	}
	return trace.SideDevice
}

// Event is one fault of a GPU or a CPU, migration, thrashing range or remote
// mapping (trace.KindFault, KindCPUFault, KindMigration, KindThrash,
// KindRemote). Times are CLOCK_MONOTONIC_RAW in nanoseconds.
type Event struct {
	Kind       trace.Kind
	Address    uint64
	BeginNanos int64  // of a fault: when the driver fetched it
	Process    uint32 // in system-wide sources; else 0, the process that is listened to

	// Of a fault.
	Access     Access
	GPU        Processor
	Batch      uint32 // faults serviced together share it
	CopyEngine bool   // raised by a copy engine, not by a kernel

	// Of a migration. Bytes also of thrashing and remote mappings; From and To also
	// of a remote mapping: who maps, and where the memory lies.
	Bytes    int64
	From, To Processor
	Cause    trace.Cause
	EndNanos int64
}

// Errors of Decode.
var (
	ErrShortEntry   = errors.New("faults: entry shorter than 64 bytes")
	ErrUnknownEntry = errors.New("faults: entry of a type that was not asked for")
	ErrBadEntry     = errors.New("faults: entry with impossible values")
)

// Decode reads one entry of the driver's queue.
func Decode(entry []byte) (Event, error) {
	if len(entry) < EntryBytes {
		return Event{}, ErrShortEntry
	}
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(entry[at:]) }
	switch entry[0] {
	case typeGPUFault:
		e := Event{
			Kind:       trace.KindFault,
			Access:     Access(entry[2]),
			GPU:        Processor(entry[3]),
			Address:    u64(8),
			BeginNanos: int64(u64(16)),
			Batch:      binary.LittleEndian.Uint32(entry[32:]),
			CopyEngine: entry[36] == 2,
		}
		e.EndNanos = e.BeginNanos
		if e.BeginNanos < 0 || e.GPU == 0 {
			return Event{}, ErrBadEntry
		}
		return e, nil
	case typeMigration:
		e := Event{
			Kind:       trace.KindMigration,
			Cause:      trace.Cause(entry[1]),
			From:       Processor(entry[2]),
			To:         Processor(entry[3]),
			Address:    u64(8),
			Bytes:      int64(u64(16)),
			BeginNanos: int64(u64(24)),
			EndNanos:   int64(u64(32)),
		}
		// Between CPU nodes the driver writes another numbering into the cause.
		if e.Cause > trace.CauseAccessCounters || e.From == 0 && e.To == 0 {
			e.Cause = trace.CauseInvalid
		}
		if e.Bytes <= 0 || e.Address+uint64(e.Bytes) < e.Address || e.BeginNanos < 0 || e.EndNanos < 0 {
			return Event{}, ErrBadEntry
		}
		// The end is stamped on another path and may come out a little early.
		e.EndNanos = max(e.EndNanos, e.BeginNanos)
		return e, nil
	}
	return decodeRare(entry)
}

// decodeRare reads the entries that only a recording asks for.
func decodeRare(entry []byte) (Event, error) {
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(entry[at:]) }
	var e Event
	switch entry[0] {
	case typeCPUFault:
		e = Event{Kind: trace.KindCPUFault, Access: Access(entry[1]), Address: u64(8), BeginNanos: int64(u64(16))}
	case typeThrashing:
		e = Event{Kind: trace.KindThrash, Address: u64(16), Bytes: int64(u64(24)), BeginNanos: int64(u64(32))}
	case typeMapRemote:
		e = Event{Kind: trace.KindRemote, From: Processor(entry[1]), To: Processor(entry[2]), Address: u64(8), Bytes: int64(u64(16)), BeginNanos: int64(u64(24))}
	default:
		return Event{}, ErrUnknownEntry
	}
	if e.BeginNanos < 0 || e.Bytes < 0 || e.Address+uint64(e.Bytes) < e.Address {
		return Event{}, ErrBadEntry
	}
	e.EndNanos = e.BeginNanos
	return e, nil
}

// Trace is the event in the common model, with times since originNanos (a reading of Clock).
func (e Event) Trace(originNanos int64) trace.Event {
	t := trace.Event{Kind: e.Kind, Address: e.Address, Process: e.Process, Time: time.Duration(max(0, e.BeginNanos-originNanos))}
	switch e.Kind {
	case trace.KindFault:
		t.Mode, t.GPU, t.Batch, t.CopyEngine = e.Access.mode(), uint8(e.GPU), e.Batch, e.CopyEngine
	case trace.KindCPUFault:
		t.Mode = e.Access.mode()
	case trace.KindRemote:
		t.Bytes, t.To, t.GPU = e.Bytes, e.From.side(), uint8(max(e.From, e.To))
	default:
		t.Bytes, t.To, t.Cause, t.GPU = e.Bytes, e.To.side(), e.Cause, uint8(max(e.From, e.To))
		t.Duration = time.Duration(e.EndNanos - e.BeginNanos)
	}
	return t
}
