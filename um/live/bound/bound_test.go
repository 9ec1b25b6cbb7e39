package bound

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// TestReport: what a job leaves comes back from its report.
func TestReport(t *testing.T) {
	events := []trace.Event{
		{Kind: trace.KindAlloc, Alloc: 1, Bytes: 8 << 20},
		{Kind: trace.KindMark, Name: "iter0", Time: time.Second},
		{Kind: trace.KindFunction, Function: 3, Time: time.Second},
		{Kind: trace.KindLaunch, Function: 3, Time: time.Second, Duration: 5 * time.Millisecond, Accesses: []trace.Access{{Alloc: 1}}},
		{Kind: trace.KindCopy, Copy: trace.CopyDeviceToHost, Time: 2 * time.Second, Duration: time.Microsecond, Accesses: []trace.Access{{Alloc: 1}}},
		{Kind: trace.KindFree, Alloc: 1, Time: 3 * time.Second},
		{Kind: trace.KindMark, Name: "end", Time: 3 * time.Second},
	}
	e := &Evidence{Device: "NVIDIA H200", BudgetBytes: 1 << 30, InBytesPerSecond: 5e10, OutBytesPerSecond: 4e10}
	if err := e.Record(&trace.Trace{Events: events}); err != nil {
		t.Fatal(err)
	}
	want := Report{Explicit: &Judgement{Bound: Bound{IterationSeconds: 0.2, Why: "nobody asked"}, Evidence: e}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Report
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got.Explicit, err)
	}
	back, err := got.Explicit.Evidence.Trace()
	if err != nil || len(back.Events) != len(events) {
		t.Fatalf("%+v, %v", back, err)
	}
	for i, was := range events {
		is := back.Events[i]
		if is.Kind != was.Kind || is.Time != was.Time || is.Duration != was.Duration || is.Alloc != was.Alloc || is.Bytes != was.Bytes || is.Name != was.Name || len(is.Accesses) != len(was.Accesses) {
			t.Errorf("%+v came back as %+v", was, is)
		}
	}
	got.Explicit.Evidence.Recording = text
	if _, err := got.Explicit.Evidence.Trace(); err == nil {
		t.Error("what is no recording is read")
	}
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		b    Bound
		want []string // a part of each line
	}{
		{Bound{}, nil},
		{Bound{IterationSeconds: 1, Why: "nobody asked"}, []string{"not compared with an oracle: nobody asked"}},
		{Bound{IterationSeconds: 1, Seconds: 0.5, Share: 0.5}, []string{"50 % of the speed", "estimated from"}},
		{Bound{IterationSeconds: 1, Seconds: 0.5, Share: 0.5, LaunchCostSeconds: 1e-5, CPUSeconds: 0.7, WithCPUSeconds: 0.8, WithCPUShare: 0.8},
			[]string{"50 % of the speed", "80 % of the speed of an oracle that waits", "and the CPU 0.700 s"}},
		{Bound{IterationSeconds: 1, Seconds: 1.5, Share: 1.5, Defects: 1}, []string{"150 %", "estimated from", "a defect of the oracle"}},
	} {
		var lines []string
		c.b.Lines(func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) })
		if len(lines) != len(c.want) {
			t.Errorf("%+v: %q", c.b, lines)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(lines[i], want) {
				t.Errorf("%q is not in %q", want, lines[i])
			}
		}
	}
}
