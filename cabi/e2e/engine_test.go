package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		{"no budget given", "explicit engine chosen", "explicit", []string{"PENSTOCK_BUDGET="}},
		{"no virtual memory", "managed engine chosen: this card or driver has no virtual memory management", "managed", []string{"STUB_VMM=0"}},
		{"no hook", "managed engine chosen: the launch hook is not loaded", "managed", []string{"LD_PRELOAD="}},
		{"policy of the other", "managed engine chosen: policy deepum is of the managed engine", "managed", []string{"PENSTOCK_POLICY=deepum"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "report.json")
			r := mustRun(t, append([]string{"PENSTOCK_ENGINE=auto", "PENSTOCK_REPORT=" + report}, c.env...), small, "pools")
			// At the start, and in the verdict.
			if strings.Count(r.stderr, "engine chosen") != 2 || strings.Count(r.stderr, "penstock: "+c.says) != 2 {
				t.Errorf("said, want %q at the start and at the end:\n%s", c.says, r.stderr)
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
