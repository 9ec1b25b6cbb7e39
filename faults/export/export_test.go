package export

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/trace"
)

// recording has a stream of five launches, two batches of faults, migrations each way, and odd names.
func recording(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := trace.NewWriter(&b, trace.Header{Command: "a \"b\" <c>\x00", Started: time.Unix(100, 0)}, trace.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	us := func(n int) time.Duration { return time.Duration(n) * time.Microsecond }
	events := []trace.Event{
		{Kind: trace.KindMark, Name: "clock 100000000000"},
		{Kind: trace.KindAlloc, Alloc: 1, Address: 0x200000, Bytes: 4 << 20, Name: "m.py:3 f < t.py:9 main"},
		{Kind: trace.KindFunction, Function: 1, Name: "k\"\\\n<é"},
	}
	for i := range 5 {
		events = append(events, trace.Event{Kind: trace.KindLaunch, Time: us(10 + i), Function: 1, Duration: -1, Stream: 7, Accesses: []trace.Access{{Alloc: 1}}})
	}
	for i := range 4 {
		events = append(events, trace.Event{Kind: trace.KindFault, Time: us(20 + i), Address: 0x200000, GPU: 1, Batch: uint32(i / 2), Mode: trace.AccessWrite})
	}
	events = append(events,
		trace.Event{Kind: trace.KindMigration, Time: us(30), Duration: us(10), Address: 0x200000, Bytes: 2 << 20, To: trace.SideDevice, Cause: trace.CauseCoherence},
		trace.Event{Kind: trace.KindMigration, Time: us(41), Duration: us(10), Address: 0x400000, Bytes: 1 << 20, To: trace.SideDevice, Cause: trace.CauseCoherence},
		trace.Event{Kind: trace.KindMigration, Time: us(50), Duration: us(10), Address: 0x400000, Bytes: 1 << 20, Cause: trace.CauseEviction},
		trace.Event{Kind: trace.KindProgress, Time: us(110), Stream: 7, Alloc: 1},
		trace.Event{Kind: trace.KindProgress, Time: us(150), Stream: 7, Alloc: 5},
		trace.Event{Kind: trace.KindLost, Time: us(151), Bytes: 3, Name: "events"},
		trace.Event{Kind: trace.KindMark, Time: 10 * time.Second, Name: "clock 110000100000"}) // the wall clock is 10 us a second faster
	for i := range events {
		if err := w.Append(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type chromeFile struct {
	Base        int64 `json:"baseTimeNanoseconds"`
	TraceEvents []struct {
		Name string
		Ph   string
		TS   float64
		Dur  float64
		TID  int
		Args map[string]any
	}
}

func TestChrome(t *testing.T) {
	var out bytes.Buffer
	if err := Chrome(&out, bytes.NewReader(recording(t))); err != nil {
		t.Fatal(err)
	}
	var f chromeFile
	if err := json.Unmarshal(out.Bytes(), &f); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	const start = 100e6 // us since 1970
	var kernels, approximate, batches, in, out2 int
	for _, e := range f.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		if e.TS < start || e.TS+e.Dur > start+200 || e.Dur < 0 {
			t.Errorf("%+v is not within the recording", e)
		}
		switch e.TID {
		case trackFaults:
			batches++
			if e.Args["faults"] != 2.0 {
				t.Errorf("%+v", e)
			}
		case trackFaultedIn:
			in++
			if e.Args["bytes"] != 3.0*(1<<20) || e.Args["migrations"] != 2.0 || e.Dur != 21 {
				t.Errorf("%+v", e)
			}
		case trackEvicted:
			out2++
		case trackStreams:
			kernels++
			if e.Name != "k\"\\\n<é" {
				t.Errorf("%q", e.Name)
			}
			if e.Args["approximate"] == true {
				approximate++
				if e.Dur != 10 {
					t.Errorf("a fourth of 40 us is %v", e.Dur)
				}
			}
		}
	}
	if kernels != 5 || approximate != 4 || batches != 2 || in != 1 || out2 != 1 {
		t.Errorf("%d kernels, %d of them approximate, %d batches, %d and %d slices of migrations", kernels, approximate, batches, in, out2)
	}
}

// Between two pairs of clocks the faster wall clock is followed.
func TestWallClock(t *testing.T) {
	var w wallClock
	w.start(trace.Header{Started: time.Unix(100, 0)})
	w.pair(0, "100000000000")
	w.pair(10*time.Second, "110000100000")
	if got := w.unix(20 * time.Second); got != 120_000_200_000 {
		t.Errorf("%d", got)
	}
	w.pair(30*time.Second, "500000000000") // somebody set the clock: no slewing
	if got := w.unix(31 * time.Second); got < 501_000_000_000 || got > 501_000_100_000 {
		t.Errorf("after the clock was set: %d", got)
	}
	w.pair(32*time.Second, "rubbish")
}

func TestPprof(t *testing.T) {
	r, err := analyse.Read(bytes.NewReader(recording(t)))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Pprof(&out, r); err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(&out)
	if err != nil {
		t.Fatal(err)
	}
	var faults, size int64
	frames := ""
	for _, s := range p.Sample {
		faults += s.Value[0]
		size += s.Value[1]
		for _, l := range s.Location {
			frames += l.Line[0].Function.Name + "@" + l.Line[0].Function.Filename + " "
		}
	}
	if faults != 4 || size != 2<<20 || !strings.Contains(frames, "f@m.py main@t.py phase: ") {
		t.Errorf("%d faults, %d bytes, %s", faults, size, frames)
	}
}

func TestDamaged(t *testing.T) {
	whole := recording(t)
	for name, f := range map[string]func(b *bytes.Buffer, in []byte) error{
		"chrome": func(b *bytes.Buffer, in []byte) error { return Chrome(b, bytes.NewReader(in)) },
		"jsonl":  func(b *bytes.Buffer, in []byte) error { return JSONLines(b, bytes.NewReader(in)) },
		"csv":    func(b *bytes.Buffer, in []byte) error { return CSV(b, bytes.NewReader(in)) },
		"merge": func(b *bytes.Buffer, in []byte) error {
			return Merge(b, bytes.NewReader(in), strings.NewReader(`{"traceEvents": []}`))
		},
	} {
		var out bytes.Buffer
		var d *Damaged
		if err := f(&out, whole[:len(whole)-3]); !errors.As(err, &d) || out.Len() == 0 {
			t.Errorf("%s: %v", name, err)
		}
		if (name == "chrome" || name == "merge") && !json.Valid(out.Bytes()) {
			t.Errorf("%s: what was written is no JSON:\n%s", name, out.String())
		}
		if err := f(&out, []byte("rubbish, not a recording")); !errors.Is(err, trace.ErrNotTrace) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzMerge gives any bytes as torch.profiler's file.
func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"schemaVersion": 1, "traceEvents": [{"ph": "X", "ts": 1}], "baseTimeNanoseconds": 5}`))
	f.Add([]byte(`{"traceEvents": [], "traceEvents": [1]}`))
	f.Add([]byte(`[]`))
	f.Add([]byte{0x1f, 0x8b, 0, 0})
	ours := recording(f)
	f.Fuzz(func(t *testing.T, torch []byte) {
		var out bytes.Buffer
		if err := Merge(&out, bytes.NewReader(ours), bytes.NewReader(torch)); err == nil && !json.Valid(out.Bytes()) {
			t.Errorf("no JSON:\n%s", out.String())
		}
	})
}
