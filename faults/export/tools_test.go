package export

import (
	"bytes"
	"encoding/json"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/trace"
)

// slewing is a recording of many launches whose wall clock runs by turns faster and slower.
func slewing(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := trace.NewWriter(&b, trace.Header{Started: time.Unix(1_800_000_000, 123456789), Command: "python <train>.py"}, trace.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(e trace.Event) {
		if err := w.Append(&e); err != nil {
			t.Fatal(err)
		}
	}
	add(trace.Event{Kind: trace.KindFunction, Function: 1, Name: "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctorIN3c108BFloat16EEESt5arrayIPcLm1EEEEviT0_T1_"})
	wall := int64(1_800_000_000_123_456_789)
	for i := range 3000 {
		at := time.Duration(i) * 7_777_777
		if i%700 == 0 {
			add(trace.Event{Kind: trace.KindMark, Time: at, Name: "clock " + big.NewInt(wall+int64(at)+int64(i%3-1)*3000).String()})
		}
		add(trace.Event{Kind: trace.KindLaunch, Time: at, Function: 1, Duration: -1, Stream: uint64(i % 2)})
		add(trace.Event{Kind: trace.KindFault, Time: at + 111, Address: 0x200000 + uint64(i)<<12, GPU: 1, Batch: uint32(i)})
		add(trace.Event{Kind: trace.KindMigration, Time: at + 333, Duration: 5_000_001, Address: 0x200000, Bytes: 4096, To: trace.SideDevice, Cause: trace.CauseCoherence})
		if i%3 == 0 {
			add(trace.Event{Kind: trace.KindProgress, Time: at + 5_555_555, Stream: uint64(i % 2), Alloc: uint64(i + 1)})
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// nanos reads a time in microseconds exactly, as a reader that takes it for a
// floating-point number would not.
func nanos(t *testing.T, text json.Number) int64 {
	t.Helper()
	r, ok := new(big.Rat).SetString(text.String())
	if !ok {
		t.Fatalf("%q is no number", text)
	}
	r.Mul(r, big.NewRat(1000, 1))
	if !r.IsInt() {
		t.Fatalf("%s is not of whole nanoseconds", text)
	}
	f, _ := new(big.Rat).SetInt(r.Num()).Float64()
	if micros, _ := text.Float64(); f != 0 && (micros*1000-f > 0.1 || f-micros*1000 > 0.1) {
		t.Fatalf("%s is not the same as a floating-point number", text)
	}
	return r.Num().Int64()
}

// The export keeps the rules of the Trace Event Format, and those that Perfetto's
// importer adds: what it cannot use it drops in silence.
func TestChromeFollowsTheFormat(t *testing.T) {
	for name, in := range map[string][]byte{"small": recording(t), "slewing": slewing(t)} {
		var out bytes.Buffer
		if err := Chrome(&out, bytes.NewReader(in)); err != nil {
			t.Fatal(err)
		}
		var file struct {
			TraceEvents []struct {
				Name *string
				Ph   string
				TS   *json.Number
				Dur  *json.Number
				PID  *int
				TID  *int
				S    string
				Args map[string]any
			}
			Base int64  `json:"baseTimeNanoseconds"`
			Unit string `json:"displayTimeUnit"`
		}
		d := json.NewDecoder(&out)
		d.UseNumber()
		d.DisallowUnknownFields()
		if err := d.Decode(&file); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ends := map[int]int64{}
		named := map[int]bool{}
		kinds := map[string]int{}
		for _, e := range file.TraceEvents {
			kinds[e.Ph]++
			if e.Name == nil || *e.Name == "" || e.PID == nil || e.TID == nil {
				t.Fatalf("%s: an event without a name, process or thread: %+v", name, e)
			}
			if e.Ph != "M" && e.TS == nil {
				t.Fatalf("%s: %s has no time", name, *e.Name)
			}
			switch e.Ph {
			case "M":
				if !slices.Contains([]string{"process_name", "thread_name", "thread_sort_index"}, *e.Name) || len(e.Args) != 1 {
					t.Errorf("%s: metadata %s %v", name, *e.Name, e.Args)
				}
				named[*e.TID] = true
			case "X":
				if e.Dur == nil || !named[*e.TID] {
					t.Fatalf("%s: slice %s has no duration, or its track %d no name", name, *e.Name, *e.TID)
				}
				begin, took := nanos(t, *e.TS), nanos(t, *e.Dur)
				if took < 0 || begin < ends[*e.TID] {
					t.Fatalf("%s: slice %s of track %d begins at %d ns, %d before the one before it ends", name, *e.Name, *e.TID, begin, ends[*e.TID]-begin)
				}
				ends[*e.TID] = begin + took
			case "C":
				for k, v := range e.Args {
					if _, ok := v.(json.Number); !ok {
						t.Errorf("%s: counter %s: %s is %v", name, *e.Name, k, v)
					}
				}
			case "i":
				if !slices.Contains([]string{"g", "p", "t"}, e.S) {
					t.Errorf("%s: instant %s has scope %q", name, *e.Name, e.S)
				}
			default:
				t.Fatalf("%s: an event of kind %q", name, e.Ph)
			}
		}
		if kinds["X"] == 0 || kinds["C"] == 0 || kinds["M"] == 0 {
			t.Errorf("%s: %v", name, kinds)
		}
	}
}

// TestTraceProcessor asks Perfetto itself, where its trace_processor is installed.
func TestTraceProcessor(t *testing.T) {
	tool, err := exec.LookPath("trace_processor_shell")
	if err != nil {
		if tool, err = exec.LookPath("trace_processor"); err != nil {
			t.Skip("no trace_processor_shell or trace_processor on PATH (https://perfetto.dev/docs/analysis/trace-processor): the format is checked by rules only")
		}
	}
	path := filepath.Join(t.TempDir(), "faults.json")
	var out bytes.Buffer
	if err := Chrome(&out, bytes.NewReader(slewing(t))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	const query = "select count(*) from slice where name = 'fault batch'; select name, value from stats where value > 0 and severity != 'info';"
	script := filepath.Join(t.TempDir(), "query.sql")
	if err := os.WriteFile(script, []byte(query), 0o644); err != nil {
		t.Fatal(err)
	}
	answer, err := exec.Command(tool, "-q", script, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, answer)
	}
	if !strings.Contains(string(answer), "3000") || strings.Contains(string(answer), "json_") || strings.Contains(string(answer), "slice_drop") {
		t.Errorf("%s", answer)
	}
}

// TestPprofTool asks `go tool pprof` itself.
func TestPprofTool(t *testing.T) {
	short.Skip(t) // where the go command has to build it first
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go on PATH, and so no go tool pprof")
	}
	r, err := analyse.Read(bytes.NewReader(slewing(t)))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Pprof(&out, r); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "faults.pb.gz")
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for index, want := range map[string][]string{
		"faults": {"Type: faults", "of 3000", "vectorized_elementwise_kernel<8, FillFunctor<BFloat16>"},
		"bytes":  {"Type: bytes", "11.72MB"},
		"stall":  {"Type: stall"},
	} {
		cmd := exec.Command(tool, "tool", "pprof", "-top", "-sample_index="+index, path)
		cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
		answer, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", index, err, answer)
		}
		for _, w := range want {
			if !strings.Contains(string(answer), w) {
				t.Errorf("%s: no %q in\n%s", index, w, answer)
			}
		}
	}
}
