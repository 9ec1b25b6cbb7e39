package record

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/faults/bpf"
	"github.com/penstock-gpu/penstock/trace"
)

// script is a source that gives one batch at a time.
type script struct {
	batches [][]faults.Event
	flushed int
}

func (s *script) Drain(dst []faults.Event) []faults.Event {
	if len(s.batches) == 0 {
		return dst
	}
	dst = append(dst, s.batches[0]...)
	s.batches = s.batches[1:]
	return dst
}
func (s *script) Flush() error              { s.flushed++; return nil }
func (s *script) Lost() faults.Lost         { return faults.Lost{Driver: 3} }
func (s *script) Coverage() faults.Coverage { return faults.Coverage{} }
func (s *script) Close() error              { return nil }

// TestDrain: what arrives between the end and the last flush is still seen, and the last word counts all.
func TestDrain(t *testing.T) {
	fault := faults.Event{Kind: trace.KindFault}
	s := &script{batches: [][]faults.Event{{fault, {Kind: trace.KindMigration}}, {fault, {Kind: trace.KindCPUFault}}}}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	seen := 0
	var last Progress
	drain(ctx, s, func() bool { return false },
		func(events []faults.Event, _ faults.Lost) { seen += len(events) }, func(p Progress) { last = p })
	if seen != 4 || last.Faults != 2 || last.Migrations != 1 || last.CPUFaults != 1 || last.Lost != 3 || s.flushed != 1 {
		t.Errorf("%d events, %+v, %d flushes", seen, last, s.flushed)
	}
}

func TestWork(t *testing.T) {
	var w Work
	w.add([]bpf.Span{{Kind: bpf.SpanService, BeginNanos: 5, EndNanos: 15}, {Kind: bpf.SpanEviction, BeginNanos: 1, EndNanos: 4}, {Kind: bpf.SpanService, EndNanos: 1}})
	if w != (Work{Runs: 2, RunNanos: 11, Evictions: 1, EvictionNanos: 3}) {
		t.Errorf("%+v", w)
	}
}

// TestSystemRefused: where eBPF cannot run, no recording is left behind.
func TestSystemRefused(t *testing.T) {
	if _, err := os.Stat("/sys/module/nvidia_uvm"); err == nil {
		t.Skip("nvidia-uvm is loaded here")
	}
	path := t.TempDir() + "/x.pstrace"
	if err := System(context.Background(), bpf.Options{}, path, func(Progress) {}); err == nil {
		t.Error("recorded without a driver")
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an empty recording was left")
	}
}
