package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/internal/hostmem"
	"github.com/penstock-gpu/penstock/internal/ranks"
	"github.com/penstock-gpu/penstock/trace"
)

// TestRanks runs jobs of processes that live at the same time, as torchrun starts them, all with
// the same options: each has a report and a recording of its own and says who it is, and they share the host memory.
func TestRanks(t *testing.T) {
	t.Parallel()
	small := program(t, "small")
	of := func(rank int) string {
		return fmt.Sprintf("RANK=%d LOCAL_RANK=%d WORLD_SIZE=2 LOCAL_WORLD_SIZE=2", rank, rank)
	}
	for _, c := range []struct {
		name, engine string
		processes    map[string]string // what each has in its environment, by the label that it is to have
		share        int64             // it is to take one of so many of host memory; 0: what is asked for, 256 MiB
	}{
		{"torchrun, managed", "managed", map[string]string{"rank0": of(0), "rank1": of(1)}, 2},
		{"torchrun, auto", "auto", map[string]string{"rank0": of(0) + " PENSTOCK_HOST_BUDGET=256MiB", "rank1": of(1) + " PENSTOCK_HOST_BUDGET=256MiB"}, 0},
		{"torchrun with one", "managed", map[string]string{"": "RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1"}, 1},
		{"several hosts", "managed", map[string]string{"rank9": "RANK=9 WORLD_SIZE=16 LOCAL_WORLD_SIZE=8"}, 8},
		{"no rank", "managed", map[string]string{"gpu0": "PENSTOCK_WORKER=1"}, 1},
		{"nonsense", "managed", map[string]string{"": "RANK=first WORLD_SIZE=-2 LOCAL_WORLD_SIZE=many"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // one after the other each would wait for its turn among all tests
			dir := t.TempDir()
			report, recording := filepath.Join(dir, "r.json"), filepath.Join(dir, "t.pstrace")
			memory, err := hostmem.Available()
			if err != nil {
				t.Fatal(err)
			}
			var files []string
			t.Run("process", func(t *testing.T) {
				for label, env := range c.processes {
					files = append(files, ranks.Path("r.json", label), ranks.Path("t.pstrace", label))
					t.Run(label, func(t *testing.T) {
						t.Parallel()
						options := []string{"PENSTOCK_ENGINE=" + c.engine, "PENSTOCK_HOST_BUDGET=", "PENSTOCK_REPORT=" + report, "PENSTOCK_TRACE=" + recording, "PENSTOCK_LOG=error"}
						r := mustRun(t, append(options, strings.Fields(env)...), small, "pools")
						checkSpeaker(t, r, label)
						if c.engine == "auto" && !strings.Contains(r.stderr, "]: explicit engine chosen: this machine has all that it needs") {
							t.Errorf("the explicit engine was not chosen:\n%s", r.stderr)
						}
						checkRecording(t, ranks.Path(recording, label))
						least, most := int64(256<<20), int64(256<<20)
						if c.share > 0 { // most of it; other programs come and go meanwhile
							least, most = memory.AvailableBytes/c.share/4, memory.AvailableBytes/c.share
						}
						if budget := checkReport(t, ranks.Path(report, label), label); budget < least || budget > most {
							t.Errorf("it may take %d bytes of host memory, want %d to %d", budget, least, most)
						}
					})
				}
			})
			slices.Sort(files)
			var found []string
			entries, err := os.ReadDir(dir)
			for _, f := range entries {
				found = append(found, f.Name())
			}
			if err != nil || !slices.Equal(found, files) {
				t.Errorf("%q are there (%v), want %q", found, err, files)
			}
		})
	}
}

// checkSpeaker: every line says which process it is of.
func checkSpeaker(t *testing.T, r result, label string) {
	t.Helper()
	speaker := "penstock: "
	if label != "" {
		speaker = "penstock[" + label + "]: "
	}
	for line := range strings.Lines(r.stderr) {
		if !strings.HasPrefix(line, speaker) {
			t.Errorf("%q does not begin with %q", line, speaker)
		}
	}
	if r.stderr == "" {
		t.Error("there is no verdict")
	}
}

// checkReport says what the process may take of host memory.
func checkReport(t *testing.T, path, label string) (hostBudget int64) {
	t.Helper()
	var s struct {
		Process    string `json:"process"`
		HostBudget int64  `json:"host_budget_bytes"`
		Launches   int64  `json:"launches"`
	}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil || s.Process != label || s.Launches == 0 {
		t.Errorf("the report of %q: %v\n%s", label, err, text)
	}
	return s.HostBudget
}

func checkRecording(t *testing.T, path string) {
	t.Helper()
	tr, err := trace.Load(path)
	if err != nil {
		t.Error(err)
	} else if !slices.ContainsFunc(tr.Events, func(e trace.Event) bool { return e.Kind == trace.KindLaunch }) {
		t.Errorf("%d events in the recording, none a launch", len(tr.Events))
	}
}
