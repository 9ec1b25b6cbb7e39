//go:build linux

package bpf

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/trace"
)

// recordBytes is the size of struct record in kmod-patch/bpf/record.h.
const recordBytes = 64

// maxNanos is 146 years after the machine was started; a time and an offset never overflow.
const maxNanos = 1 << 62

// Kinds of record.
const (
	kindGPUFault = iota + 1
	kindCPUFault
	kindMigration
	kindEviction
	kindService
	kindSpaceBorn
	kindSpaceGone
)

// Errors of decode.
var (
	errRecordSize  = errors.New("bpf: record of another size")
	errRecordKind  = errors.New("bpf: record of an unknown kind")
	errRecordValue = errors.New("bpf: record with impossible values")
)

// decode reads a record of the ring and checks that it can be true.
func decode(b []byte) (uvmRecord, error) {
	if len(b) != recordBytes {
		return uvmRecord{}, errRecordSize
	}
	le := binary.LittleEndian
	r := uvmRecord{
		Begin: le.Uint64(b[0:]), End: le.Uint64(b[8:]), Address: le.Uint64(b[16:]), Bytes: le.Uint64(b[24:]), Space: le.Uint64(b[32:]),
		Pid: le.Uint32(b[40:]), Batch: le.Uint32(b[44:]), Source: le.Uint16(b[48:]), Target: le.Uint16(b[50:]),
		Kind: b[52], Access: b[53], Cause: b[54], FaultType: b[55], Client: b[56], Duplicate: b[57],
	}
	if r.Begin > maxNanos {
		return uvmRecord{}, errRecordValue
	}
	switch r.Kind {
	case kindGPUFault, kindCPUFault, kindSpaceBorn, kindSpaceGone:
	case kindMigration:
		if r.Bytes == 0 || r.Bytes > math.MaxInt64 || r.Address+r.Bytes < r.Address {
			return uvmRecord{}, errRecordValue
		}
	case kindEviction, kindService:
		if r.End < r.Begin || r.End > maxNanos || r.Bytes > math.MaxInt64 {
			return uvmRecord{}, errRecordValue
		}
	default:
		return uvmRecord{}, errRecordKind
	}
	return r, nil
}

// The driver's own numbers (uvm_hal_types.h, uvm_va_block_types.h) in those of its event queue.
var (
	accesses = []faults.Access{faults.AccessPrefetch, faults.AccessRead, faults.AccessWrite, faults.AccessAtomic, faults.AccessAtomic}
	causes   = []trace.Cause{
		trace.CauseCoherence,      // a fault
		trace.CauseCoherence,      // a fault that is not replayed: a copy engine's
		trace.CauseAccessCounters, //
		trace.CausePrefetch,       //
		trace.CauseEviction,       //
		trace.CauseInvalid,        // a debugger
		trace.CauseUser,           // migrate
		trace.CauseCoherence,      // set range group
		trace.CauseUser,           // advice
	}
)

// clientHub is a fault of a copy engine or of the host interface, not of a kernel.
const clientHub = 1

// numbering turns the driver's processor numbers into those of its event queue.
type numbering struct{ partitions bool }

func (n numbering) processor(id uint16) faults.Processor {
	if n.partitions && id > 0 {
		id = (id-1)/8 + 1
	}
	return faults.Processor(min(id, math.MaxUint8))
}

// event is a fault's or a migration's record as an event. offset takes
// CLOCK_MONOTONIC to CLOCK_MONOTONIC_RAW.
func (n numbering) event(r *uvmRecord, offset int64) (faults.Event, bool) {
	e := faults.Event{Address: r.Address, BeginNanos: max(0, int64(r.Begin)+offset), Process: r.Pid}
	e.EndNanos = e.BeginNanos
	switch r.Kind {
	case kindGPUFault:
		e.Kind, e.GPU, e.Batch, e.CopyEngine = trace.KindFault, n.processor(r.Target), r.Batch, r.Client == clientHub
		if int(r.Access) >= len(accesses) || e.GPU == 0 {
			return e, false
		}
		e.Access = accesses[r.Access]
	case kindCPUFault:
		e.Kind, e.Access = trace.KindCPUFault, faults.AccessRead
		if r.Access != 0 {
			e.Access = faults.AccessWrite
		}
	case kindMigration:
		e.Kind, e.Bytes, e.From, e.To = trace.KindMigration, int64(r.Bytes), n.processor(r.Source), n.processor(r.Target)
		if int(r.Cause) >= len(causes) {
			return e, false
		}
		e.Cause = causes[r.Cause]
	default:
		return e, false
	}
	return e, true
}

// SpanKind says what took time.
type SpanKind uint8

// Kinds of Span.
const (
	SpanEviction SpanKind = iota + 1 // the driver evicted a block
	SpanService                      // the driver's fault handler ran, once for up to 20 batches
)

// Span is a piece of the driver's own work, of any process. Times are
// CLOCK_MONOTONIC_RAW in nanoseconds. Of an eviction, Address and Bytes are the
// block's, 0 where the kernel's structures are not as expected.
type Span struct {
	Kind                 SpanKind
	BeginNanos, EndNanos int64
	Address              uint64
	Bytes                int64
}

func span(r *uvmRecord, offset int64) Span {
	s := Span{Kind: SpanService, BeginNanos: max(0, int64(r.Begin)+offset), EndNanos: max(0, int64(r.End)+offset), Address: r.Address, Bytes: int64(r.Bytes)}
	if r.Kind == kindEviction {
		s.Kind = SpanEviction
	}
	return s
}
