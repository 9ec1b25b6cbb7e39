package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// explicitEngine is its environment: new device memory is full of rubbish, an
// access to what is not mapped ends the process and says so, and one lock is
// around the driver as in libcuda.
var explicitEngine = []string{"PENSTOCK_ENGINE=explicit", "PENSTOCK_HOST_BUDGET=256MiB", "STUB_SCRIBBLE=1", "STUB_ABORT=1", "STUB_API_LOCK=1"}

func explicitly(env ...string) []string {
	return append(explicitEngine[:len(explicitEngine):len(explicitEngine)], env...)
}

// explicitStats are the engine's own numbers.
func explicitStats(t *testing.T, r result) (all, own map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.line(t, "STATS")), &all); err != nil {
		t.Fatal(err)
	}
	own, ok := all["explicit"].(map[string]any)
	if !ok {
		t.Fatalf("no numbers of the explicit engine: %v", all)
	}
	return all, own
}

// TestExplicitTraining: a job of three times the budget under every policy.
func TestExplicitTraining(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	for _, policy := range []string{"penstock", "lru"} {
		t.Run(policy, func(t *testing.T) {
			r := mustRun(t, explicitly("PENSTOCK_POLICY="+policy), job, "train")
			all, own := explicitStats(t, r)
			if all["failure"] != nil || own["fresh_ranges"].(float64) == 0 {
				t.Errorf("%v", all)
			}
		})
	}
	// The loop of the managed engine's tests: threads, side streams, a fork, frees with work queued, both budgets filled.
	t.Run("threads", func(t *testing.T) {
		r := mustRun(t, explicitly("PENSTOCK_HOST_BUDGET=512MiB"), program(t, "train"))
		if text := r.line(t, "OOM"); !outOfMemory.MatchString(text) {
			t.Errorf("out of memory is reported as %q, want what was asked for and both budgets", text)
		}
	})
}

// TestExplicitSafety: each of the rules that keep launches off memory that is not there. See explicit.c.
func TestExplicitSafety(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	sharedLibrary(t, "libnccl.so.2", "../hooktest/testdata/fake_nccl.c")
	linked := sharedLibrary(t, "liblinked.so", "testdata/library.c", "-DLINKED", filepath.Join(buildDir, "libcuda.so.1"))
	getproc := sharedLibrary(t, "libgetproc.so", "testdata/library.c")
	// What has not been used for longest leaves, so that the job can send a tensor away.
	for _, c := range []struct {
		args []string
		env  []string
	}{
		{args: []string{"hosttables"}},
		{args: []string{"devicetables"}},
		{args: []string{"streams"}},
		{args: []string{"tails"}},
		{args: []string{"copies"}},
		{args: []string{"nevernamed"}},
		{args: []string{"freed"}, env: []string{"STUB_COPY_MBPS=600"}},
		{args: []string{"recordstream"}},
		{args: []string{"graphs"}},
		{args: []string{"nccl"}},
		{args: []string{"handedon", linked, getproc}},
		{args: []string{"race"}, env: []string{"PENSTOCK_POLICY=penstock"}},
	} {
		t.Run(c.args[0], func(t *testing.T) {
			r := mustRun(t, explicitly(append([]string{"PENSTOCK_POLICY=lru"}, c.env...)...), job, c.args...)
			if all, _ := explicitStats(t, r); all["failure"] != nil || all["dropped_records"] != 0.0 {
				t.Errorf("%v", all)
			}
			if strings.Contains(r.stderr, "waited long") {
				t.Errorf("a launch waited for what could not come:\n%s", r.stderr)
			}
		})
	}
}
