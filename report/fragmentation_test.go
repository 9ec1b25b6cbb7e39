package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// reservedTrace is a run whose allocator said what it reserved.
func reservedTrace() *trace.Trace {
	e := func(kind trace.Kind, id uint64, bytes int64, ms int) trace.Event {
		return trace.Event{Kind: kind, Alloc: id, Bytes: bytes, Time: time.Duration(ms) * time.Millisecond}
	}
	return &trace.Trace{Name: `run <b>"1"</b>`, Header: trace.Header{Source: "PyTorch memory snapshot, device 0"}, Events: []trace.Event{
		e(trace.KindAlloc, 1, 1<<20, 0), e(trace.KindAlloc, 2, 100, 10), {Kind: trace.KindMark, Name: "iter0"}, e(trace.KindFree, 1, 0, 20), e(trace.KindFree, 2, 0, 30),
	}, Reserved: []trace.Reserved{{Event: 0, Bytes: 2 << 20}, {Event: 1, Bytes: 4 << 20}, {Event: 4, Bytes: 3 << 20}}}
}

func TestFragmentationOfRecorded(t *testing.T) {
	f, err := FragmentationOf(reservedTrace())
	if err != nil {
		t.Fatal(err)
	}
	want := []UseOfBytes{
		{1, 0, 1 << 20, 1 << 20, 2 << 20},
		{2, 0.01, 1<<20 + 100, 1<<20 + 512, 4 << 20},
		{3, 0.02, 100, 512, 4 << 20},
		{4, 0.03, 0, 0, 3 << 20},
	}
	for i, w := range want {
		if i >= len(f.Timeline) || f.Timeline[i] != w {
			t.Errorf("moment %d of %+v, want %+v", i, f.Timeline, w)
			break
		}
	}
	if f.Reserved != ReservedRecorded || !f.HasClock || f.Allocations != 2 || f.PeakReservedBytes != 4<<20 || f.LostBytes != 3<<20-512 || f.MostIdleBytes != 4<<20-512 {
		t.Errorf("%+v", f)
	}
}

func TestFragmentationIsSimulatedWithoutRecord(t *testing.T) {
	tr := reservedTrace()
	tr.Reserved = nil
	for i := range tr.Events {
		tr.Events[i].Time = 0
	}
	f, err := FragmentationOf(tr)
	if err != nil {
		t.Fatal(err)
	}
	// Both requests are small ones of one segment of 2 MiB.
	if f.Reserved != ReservedSimulated || f.HasClock || f.PeakReservedBytes != 2<<20 || f.PeakActiveBytes != 1<<20+512 {
		t.Errorf("%+v", f)
	}
	var text, page bytes.Buffer
	if err := f.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{text.String(), page.String()} {
		if !strings.Contains(out, "simulated") || !strings.Contains(out, "operation") && !strings.Contains(out, "allocations and frees") {
			t.Errorf("%s", out)
		}
	}
	if _, err := FragmentationOf(&trace.Trace{Name: "empty"}); err == nil {
		t.Error("a report about nothing")
	}
}

func TestFragmentationPage(t *testing.T) {
	f, err := FragmentationOf(reservedTrace())
	if err != nil {
		t.Fatal(err)
	}
	var page, text bytes.Buffer
	if err := f.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<!doctype html>", "run &lt;b&gt;", "Reserved is as recorded", "Lost memory", "4.00 MiB", "</html>"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	for _, bad := range []string{"<b>\"1\"", "<script", "http:", "https:", "NaN", "simulated"} {
		if strings.Contains(page.String(), bad) {
			t.Errorf("%q is on the page", bad)
		}
	}
	if err := f.WriteText(&text); err != nil || strings.Count(text.String(), "\n") != 6+1+4-0 {
		t.Errorf("%d lines: %s", strings.Count(text.String(), "\n"), text.String())
	}
	if out, err := json.Marshal(f.Thinned(2)); err != nil || !bytes.Contains(out, []byte(`"peak_reserved_bytes":4194304`)) {
		t.Errorf("%s, %v", out, err)
	}
}
