package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

// TestEngineChoice: PENSTOCK_ENGINE=auto takes the explicit engine where it can
// run, and says which it took and why.
func TestEngineChoice(t *testing.T) {
	t.Parallel()
	small := program(t, "small")
	for _, c := range []struct {
		name, says, engine string
		env                []string
	}{
		{"everything is there", "explicit engine chosen: this machine has all that it needs", "explicit", nil},
		{"by default", "explicit engine chosen: this machine has all that it needs", "explicit", []string{"PENSTOCK_ENGINE="}},
		{"no budget given", "explicit engine chosen", "explicit", []string{"PENSTOCK_BUDGET="}},
		{"no virtual memory", "managed engine chosen: this card or driver has no virtual memory management", "managed", []string{"STUB_VMM=0"}},
		{"no hook", "managed engine chosen: the launch hook is not loaded", "managed", []string{"LD_PRELOAD="}},
		{"replay of the other", "managed engine chosen: policy deepum is of the managed engine", "managed", []string{"PENSTOCK_POLICY=deepum", "PENSTOCK_REPLAY=on"}},
		{"policy of the other", "managed engine chosen: policy deepum is of the managed engine", "managed", []string{"PENSTOCK_POLICY=deepum"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "report.json")
			r := mustRun(t, append([]string{"PENSTOCK_ENGINE=auto", "PENSTOCK_REPORT=" + report}, c.env...), small, "pools")
			// At the start, and in the verdict.
			if strings.Count(r.stderr, "engine chosen") != 2 || strings.Count(r.stderr, "penstock: "+c.says) != 2 {
				t.Errorf("said, want %q at the start and at the end:\n%s", c.says, r.stderr)
			}
			if asked, said := slices.Contains(c.env, "PENSTOCK_REPLAY=on"), strings.Contains(r.stderr, "nothing is made again"); asked != said {
				t.Errorf("that nothing is made again is said: %t\n%s", said, r.stderr)
			}
			text, err := os.ReadFile(report)
			if err != nil {
				t.Fatal(err)
			}
			var s struct {
				Engine string `json:"engine"`
				Why    string `json:"engine_why"`
				Budget int64  `json:"budget_bytes"`
			}
			if err := json.Unmarshal(text, &s); err != nil {
				t.Fatal(err)
			}
			if s.Engine != c.engine || s.Why == "" || !strings.Contains(r.stderr, s.Why) || s.Budget <= 0 {
				t.Errorf("the report has engine %q because %q, budget %d", s.Engine, s.Why, s.Budget)
			}
		})
	}
	// Asked for by name it is not replaced.
	for _, env := range []string{"STUB_VMM=0", "PENSTOCK_POLICY=naive"} {
		r := run(t, []string{"PENSTOCK_ENGINE=explicit", env}, small, "init")
		if r.code != 3 || !strings.Contains(r.stdout, "the explicit engine cannot run; use --") || strings.Contains(r.stdout, "\n") {
			t.Errorf("%s: exit status %d, %q, want one line\n%s", env, r.code, r.stdout, r.stderr)
		}
	}
}

// TestExplicitTrain runs the training loop in C under the explicit engine: right
// values, a report of its own, and a recording whose moves add up to the report's.
func TestExplicitTrain(t *testing.T) {
	t.Parallel()
	train := program(t, "train")
	dir := t.TempDir()
	report, recording := filepath.Join(dir, "report.json"), filepath.Join(dir, "run.pstrace")
	// The loop of the managed engine's tests: threads, side streams, a fork, frees with work queued, both budgets filled.
	r := mustRun(t, explicitly("PENSTOCK_HOST_BUDGET=512MiB", "PENSTOCK_REPORT="+report, "PENSTOCK_TRACE="+recording), train)
	if text := r.line(t, "OOM"); !outOfMemory.MatchString(text) {
		t.Errorf("out of memory is reported as %q, want what was asked for and both budgets", text)
	}
	if !strings.Contains(r.stderr, "(explicit engine, penstock policy)") || !strings.Contains(r.stderr, "GB/s while copying") {
		t.Errorf("the verdict is not the explicit engine's:\n%s", r.stderr)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		In       int64            `json:"h2d_bytes"`
		Out      int64            `json:"d2h_bytes"`
		Failure  string           `json:"failure"`
		Explicit *json.RawMessage `json:"explicit"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if s.In == 0 || s.Out == 0 || s.Failure != "" || s.Explicit == nil {
		t.Errorf("the report: %s", text)
	}
	tr, err := trace.Load(recording)
	if err != nil {
		t.Fatal(err)
	}
	if !tr.EstimateDurations() || tr.Estimate.Progress == 0 || tr.Estimate.Unknown > tr.Estimate.Operations/4 {
		t.Errorf("durations of the recording: %+v", tr.Estimate)
	}
	var in, out int64
	for _, e := range tr.Events {
		switch {
		case e.Kind != trace.KindMigration:
		case e.To == trace.SideHost:
			out += e.Bytes
		default:
			in += e.Bytes
		}
	}
	// A few moves may end after the report was taken.
	if in < s.In || in > s.In+budget || out < s.Out || out > s.Out+budget {
		t.Errorf("recorded are %d bytes to the device and %d to the host, reported %d and %d", in, out, s.In, s.Out)
	}
}
