//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/trace"
)

// raw is a record as the programs write it: the generated type is the C structure's own.
func raw(r uvmRecord) []byte {
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, struct {
		Begin, End, Address, Bytes, Space                 uint64
		Pid, Batch                                        uint32
		Source, Target                                    uint16
		Kind, Access, Cause, FaultType, Client, Duplicate uint8
		Reserved                                          [6]uint8
	}{r.Begin, r.End, r.Address, r.Bytes, r.Space, r.Pid, r.Batch, r.Source, r.Target, r.Kind, r.Access, r.Cause, r.FaultType, r.Client, r.Duplicate, r.Reserved}); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func TestDecode(t *testing.T) {
	if n := binary.Size(uvmRecord{}); n != recordBytes {
		t.Fatalf("the C structure has %d bytes", n)
	}
	good := uvmRecord{Begin: 1, End: 2, Address: 3, Bytes: 4, Space: 5, Pid: 6, Batch: 7, Source: 8, Target: 9, Kind: kindMigration, Access: 11, Cause: 12, FaultType: 13, Client: 14, Duplicate: 15}
	if got, err := decode(raw(good)); err != nil || got != good {
		t.Errorf("%+v, %v", got, err)
	}
	for name, change := range map[string]func(*uvmRecord){
		"kind 0":          func(r *uvmRecord) { r.Kind = 0 },
		"kind 8":          func(r *uvmRecord) { r.Kind = kindSpaceGone + 1 },
		"time":            func(r *uvmRecord) { r.Begin = math.MaxUint64 },
		"no bytes":        func(r *uvmRecord) { r.Bytes = 0 },
		"past the end":    func(r *uvmRecord) { r.Address = math.MaxUint64 },
		"negative":        func(r *uvmRecord) { r.Bytes = 1 << 63 },
		"ends before":     func(r *uvmRecord) { r.Kind, r.End = kindService, 0 },
		"eviction, bytes": func(r *uvmRecord) { r.Kind, r.Bytes = kindEviction, 1<<63 },
	} {
		r := good
		change(&r)
		if _, err := decode(raw(r)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := decode(raw(good)[:63]); err == nil {
		t.Error("a short record was accepted")
	}
}

func TestEvent(t *testing.T) {
	n := numbering{partitions: true}
	for _, c := range []struct {
		r    uvmRecord
		want faults.Event
	}{
		{uvmRecord{Kind: kindGPUFault, Begin: 100, Address: 4096, Pid: 5, Batch: 6, Target: 17, Access: 4, Client: clientHub},
			faults.Event{Kind: trace.KindFault, BeginNanos: 90, EndNanos: 90, Address: 4096, Process: 5, Batch: 6, GPU: 3, Access: faults.AccessAtomic, CopyEngine: true}},
		{uvmRecord{Kind: kindCPUFault, Begin: 5, Access: 1}, faults.Event{Kind: trace.KindCPUFault, Access: faults.AccessWrite}},
		{uvmRecord{Kind: kindMigration, Begin: 10, Bytes: 8192, Source: 1, Cause: 4},
			faults.Event{Kind: trace.KindMigration, Bytes: 8192, From: 1, Cause: trace.CauseEviction}},
	} {
		if got, ok := n.event(&c.r, -10); !ok || got != c.want {
			t.Errorf("%+v: %+v", c.r, got)
		}
	}
	for _, r := range []uvmRecord{{Kind: kindGPUFault, Target: 1, Access: 5}, {Kind: kindGPUFault, Target: 0}, {Kind: kindMigration, Bytes: 1, Cause: 9}, {Kind: kindService}} {
		if e, ok := n.event(&r, 0); ok {
			t.Errorf("%+v became %+v", r, e)
		}
	}
	if p := (numbering{}).processor(2); p != 2 {
		t.Errorf("without partitions GPU 2 is %d", p)
	}
}

// TestTake: every record ends in an event, a span, a decision or a count.
func TestTake(t *testing.T) {
	s := &Source{numbering: numbering{partitions: true}, processes: newProcesses(Options{})}
	var events []faults.Event
	for _, r := range []uvmRecord{
		{Kind: kindSpaceBorn, Pid: 7, Space: 1}, {Kind: kindGPUFault, Target: 1, Pid: 7}, {Kind: kindEviction, Bytes: 2 << 20},
		{Kind: kindService, End: 5}, {Kind: kindGPUFault, Target: 1, Access: 9}, {Kind: kindSpaceGone, Pid: 7},
	} {
		events = s.take(events, raw(r), 0)
	}
	events = s.take(events, []byte("?"), 0)
	if len(events) != 1 || events[0].Process != 7 || len(s.Spans(nil)) != 2 || s.stats.Nonsense != 2 {
		t.Errorf("%+v, %+v", events, s.stats)
	}
	if again := s.Spans(nil); len(again) != 0 {
		t.Errorf("taken twice: %+v", again)
	}
	for range maxSpans + 3 {
		s.take(nil, raw(uvmRecord{Kind: kindService}), 0)
	}
	if n := len(s.Spans(nil)); n != maxSpans || s.stats.SpansLost != 3 {
		t.Errorf("%d spans wait, %d lost", n, s.stats.SpansLost)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add(raw(uvmRecord{Kind: kindGPUFault, Target: 1}), int64(0))
	f.Add(raw(uvmRecord{Kind: kindMigration, Bytes: 4096, Cause: 4}), int64(-1))
	f.Add(raw(uvmRecord{Kind: kindEviction, End: 1, Bytes: 2 << 20}), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, b []byte, offset int64) {
		s := &Source{numbering: numbering{partitions: len(b)%2 == 0}, processes: newProcesses(Options{})}
		events := s.take(nil, b, offset%(1<<62))
		for _, e := range events {
			if e.Kind == trace.KindMigration && (e.Bytes <= 0 || e.Address+uint64(e.Bytes) < e.Address) || e.Cause > trace.CauseAccessCounters || e.Access > faults.AccessPrefetch {
				t.Errorf("%+v", e)
			}
		}
		for _, sp := range s.Spans(nil) {
			if sp.EndNanos < sp.BeginNanos || sp.Bytes < 0 {
				t.Errorf("%+v", sp)
			}
		}
	})
}

// BenchmarkTake is what the reader does with a fault's record once it has it.
func BenchmarkTake(b *testing.B) {
	s := &Source{numbering: numbering{partitions: true}, processes: newProcesses(Options{})}
	record := raw(uvmRecord{Kind: kindGPUFault, Begin: 1, Address: 1 << 40, Pid: 7, Batch: 3, Target: 1, Access: 1})
	events := make([]faults.Event, 0, 1024)
	for b.Loop() {
		if events = s.take(events, record, 5); len(events) == cap(events) {
			events = events[:0]
		}
	}
}
