package faults

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

// faultEntry and migrationEntry write entries as the driver does.
func faultEntry(access, gpu, client byte, address, nanos uint64, batch uint32) []byte {
	b := make([]byte, EntryBytes)
	b[0], b[1], b[2], b[3], b[36] = typeGPUFault, 2, access, gpu, client
	binary.LittleEndian.PutUint64(b[8:], address)
	binary.LittleEndian.PutUint64(b[16:], nanos)
	binary.LittleEndian.PutUint64(b[24:], 0xdeadbeef) // the GPU's own clock: not used
	binary.LittleEndian.PutUint32(b[32:], batch)
	return b
}

func migrationEntry(cause, from, to byte, address, bytes, begin, end uint64) []byte {
	b := make([]byte, EntryBytes)
	b[0], b[1], b[2], b[3] = typeMigration, cause, from, to
	for i, v := range []uint64{address, bytes, begin, end} {
		binary.LittleEndian.PutUint64(b[8+8*i:], v)
	}
	return b
}

func TestDecode(t *testing.T) {
	tests := []struct {
		name  string
		entry []byte
		want  Event
		err   error
	}{
		{"write fault", faultEntry(2, 1, 1, 0x7f0000201000, 5000, 17),
			Event{Kind: trace.KindFault, Address: 0x7f0000201000, BeginNanos: 5000, EndNanos: 5000, Access: AccessWrite, GPU: 1, Batch: 17}, nil},
		{"copy engine fault", faultEntry(1, 2, 2, 0x1000, 1, 0),
			Event{Kind: trace.KindFault, Address: 0x1000, BeginNanos: 1, EndNanos: 1, Access: AccessRead, GPU: 2, CopyEngine: true}, nil},
		{"prefetch to the device", migrationEntry(1, 0, 1, 0x200000, 2<<20, 100, 250),
			Event{Kind: trace.KindMigration, Address: 0x200000, Bytes: 2 << 20, BeginNanos: 100, EndNanos: 250, From: 0, To: 1, Cause: trace.CauseUser}, nil},
		{"eviction", migrationEntry(4, 1, 0, 0x200000, 65536, 100, 250),
			Event{Kind: trace.KindMigration, Address: 0x200000, Bytes: 65536, BeginNanos: 100, EndNanos: 250, From: 1, To: 0, Cause: trace.CauseEviction}, nil},
		{"between CPU nodes the cause means nothing", migrationEntry(2, 0, 0, 0x1000, 4096, 1, 2),
			Event{Kind: trace.KindMigration, Address: 0x1000, Bytes: 4096, BeginNanos: 1, EndNanos: 2}, nil},
		{"a cause of the future", migrationEntry(9, 0, 1, 0x1000, 4096, 1, 2),
			Event{Kind: trace.KindMigration, Address: 0x1000, Bytes: 4096, BeginNanos: 1, EndNanos: 2, To: 1}, nil},
		{"end before begin", migrationEntry(1, 0, 1, 0x1000, 4096, 20, 10),
			Event{Kind: trace.KindMigration, Address: 0x1000, Bytes: 4096, BeginNanos: 20, EndNanos: 20, To: 1, Cause: trace.CauseUser}, nil},
		{"no bytes", migrationEntry(1, 0, 1, 0x1000, 0, 1, 2), Event{}, ErrBadEntry},
		{"negative bytes", migrationEntry(1, 0, 1, 0x1000, 1<<63, 1, 2), Event{}, ErrBadEntry},
		{"past the address space", migrationEntry(1, 0, 1, ^uint64(0), 4096, 1, 2), Event{}, ErrBadEntry},
		{"a fault by the CPU", faultEntry(1, 0, 1, 0x1000, 1, 0), Event{}, ErrBadEntry},
		{"time past the clock", faultEntry(1, 1, 1, 0x1000, 1<<63, 0), Event{}, ErrBadEntry},
		{"empty", make([]byte, EntryBytes), Event{}, ErrUnknownEntry},
		{"not asked for", append([]byte{7}, make([]byte, EntryBytes)...), Event{}, ErrUnknownEntry},
		{"short", make([]byte, EntryBytes-1), Event{}, ErrShortEntry},
		{"nothing", nil, Event{}, ErrShortEntry},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Decode(tt.entry)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %+v, %v\nwant %+v, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

// rareEntry writes 64-bit words at offsets; the type is in the first byte.
func rareEntry(kind byte, words map[int]uint64) []byte {
	b := make([]byte, EntryBytes)
	for at, v := range words {
		binary.LittleEndian.PutUint64(b[at:], v)
	}
	b[0] = kind
	return b
}

func TestTrace(t *testing.T) {
	decode := func(b []byte) Event {
		e, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	tests := []struct {
		name  string
		entry []byte
		want  trace.Event
	}{
		{"read", faultEntry(1, 1, 1, 0x1000, 1500, 0), trace.Event{Kind: trace.KindFault, Address: 0x1000, GPU: 1, Time: 500, Mode: trace.AccessRead}},
		{"write", faultEntry(2, 1, 1, 0x1000, 1500, 0), trace.Event{Kind: trace.KindFault, Address: 0x1000, GPU: 1, Time: 500, Mode: trace.AccessWrite}},
		{"atomic", faultEntry(3, 1, 1, 0x1000, 1500, 0), trace.Event{Kind: trace.KindFault, Address: 0x1000, GPU: 1, Time: 500, Mode: trace.AccessReadWrite}},
		{"prefetch", faultEntry(4, 1, 1, 0x1000, 1500, 0), trace.Event{Kind: trace.KindFault, Address: 0x1000, GPU: 1, Time: 500, Mode: trace.AccessRead}},
		{"odd access", faultEntry(9, 1, 1, 0x1000, 1500, 0), trace.Event{Kind: trace.KindFault, Address: 0x1000, GPU: 1, Time: 500}},
		{"before the trace began", faultEntry(1, 1, 1, 0x1000, 900, 0), trace.Event{Kind: trace.KindFault, Address: 0x1000, GPU: 1, Mode: trace.AccessRead}},
		{"batch and engine", faultEntry(1, 3, 2, 0x1000, 1500, 77), trace.Event{Kind: trace.KindFault, Address: 0x1000, Time: 500, Mode: trace.AccessRead, GPU: 3, Batch: 77, CopyEngine: true}},
		{"by the CPU", rareEntry(typeCPUFault, map[int]uint64{0: 2<<8 | typeCPUFault, 8: 0x5000, 16: 1500}), trace.Event{Kind: trace.KindCPUFault, Address: 0x5000, Time: 500, Mode: trace.AccessWrite}},
		{"thrashing", rareEntry(typeThrashing, map[int]uint64{8: 3, 16: 0x5000, 24: 4096, 32: 1500}), trace.Event{Kind: trace.KindThrash, Address: 0x5000, Bytes: 4096, Time: 500}},
		{"mapped by the GPU where it lies", rareEntry(typeMapRemote, map[int]uint64{0: 1<<8 | typeMapRemote, 8: 0x5000, 16: 8192, 24: 1500}),
			trace.Event{Kind: trace.KindRemote, Address: 0x5000, Bytes: 8192, Time: 500, To: trace.SideDevice, GPU: 1}},
		{"out", migrationEntry(4, 1, 0, 0x2000, 4096, 2000, 2600),
			trace.Event{Kind: trace.KindMigration, GPU: 1, Address: 0x2000, Bytes: 4096, Time: 1000, Duration: 600, To: trace.SideHost, Cause: trace.CauseEviction}},
		{"in", migrationEntry(3, 0, 2, 0x2000, 4096, 2000, 2600),
			trace.Event{Kind: trace.KindMigration, GPU: 2, Address: 0x2000, Bytes: 4096, Time: 1000, Duration: 600, To: trace.SideDevice, Cause: trace.CausePrefetch}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := decode(tt.entry).Trace(1000)
			if got.Kind != tt.want.Kind || got.Address != tt.want.Address || got.Bytes != tt.want.Bytes || got.Time != tt.want.Time ||
				got.Duration != tt.want.Duration || got.Mode != tt.want.Mode || got.To != tt.want.To || got.Cause != tt.want.Cause ||
				got.GPU != tt.want.GPU || got.Batch != tt.want.Batch || got.CopyEngine != tt.want.CopyEngine {
				t.Errorf("got %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(faultEntry(2, 1, 1, 0x7f0000201000, 5000, 17))
	f.Add(migrationEntry(4, 1, 0, 0x200000, 65536, 100, 250))
	f.Add(migrationEntry(1, 0, 1, ^uint64(0), ^uint64(0), ^uint64(0), 0))
	f.Add(rareEntry(typeThrashing, map[int]uint64{16: 0x5000, 24: 1 << 63, 32: 1500}))
	f.Add(rareEntry(typeMapRemote, map[int]uint64{8: ^uint64(0), 16: 8192, 24: 1500}))
	f.Add(rareEntry(typeCPUFault, map[int]uint64{8: 0x5000}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b)
		if err != nil {
			if e != (Event{}) {
				t.Fatalf("an event beside the error %v: %+v", err, e)
			}
			return
		}
		tr := e.Trace(int64(len(b)))
		switch e.Kind {
		case trace.KindFault:
			if e.Bytes != 0 || tr.Time < 0 {
				t.Fatalf("%+v %+v", e, tr)
			}
		case trace.KindMigration:
			if e.Bytes <= 0 || e.EndNanos < e.BeginNanos || tr.Duration < 0 || tr.Cause > trace.CauseAccessCounters || tr.To > trace.SideDevice {
				t.Fatalf("%+v %+v", e, tr)
			}
		case trace.KindCPUFault, trace.KindThrash, trace.KindRemote:
			if e.Bytes < 0 || e.Address+uint64(e.Bytes) < e.Address {
				t.Fatalf("%+v", e)
			}
		default:
			t.Fatalf("kind %d", e.Kind)
		}
		if tr.Time < 0 || tr.Kind != e.Kind {
			t.Fatalf("%+v", tr)
		}
	})
}
