package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/internal/short"
)

// inMemory is a job that fits, without an engine.
var inMemory = []string{"PENSTOCK_ENGINE=none", "PENSTOCK_BUDGET=", "PENSTOCK_HOST_BUDGET=", "STUB_TOTAL_BYTES=1207959552"}

// TestInMemory runs a job that fits with the pool alone: planned, stitched, and both by one and several threads.
func TestInMemory(t *testing.T) {
	t.Parallel()
	job := program(t, "inmemory")
	for _, c := range []struct {
		name, how, threads string
		env                []string
		followed           bool
	}{
		{"planned", "train", "1", nil, true},
		{"planned, steadily", "steady", "1", nil, true},
		{"planned, threads", "train", "3", nil, false}, // whose requests mix differently each time
		{"stitched lazily", "train", "1", []string{"PENSTOCK_PLANNING=0", "PENSTOCK_STITCH=lazy", "PENSTOCK_STITCH_MIN=2MiB"}, false},
		{"not at all", "train", "2", []string{"PENSTOCK_PLANNING=0", "PENSTOCK_STITCH=none"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "planned, steadily" && c.name != "stitched lazily" {
				short.Skip(t)
			}
			r := mustRun(t, append(append([]string(nil), inMemory...), c.env...), job, c.how, c.threads)
			var s struct {
				Engine              string
				Planned             int64  `json:"planned_allocations"`
				Unplanned           int64  `json:"unplanned_allocations"`
				State               string `json:"plan_state"`
				AllocatedPeak       int64  `json:"allocated_peak_bytes"`
				ReservedPeak        int64  `json:"reserved_peak_bytes"`
				Reserved, Allocated int64
			}
			if err := json.Unmarshal([]byte(r.line(t, "STATS")), &s); err != nil {
				t.Fatal(err)
			}
			if s.Engine != "plain" || c.followed && (s.State != "followed" || s.Planned < 3*s.Unplanned) {
				t.Errorf("%+v: want the plain engine, and the plan followed: %t", s, c.followed)
			}
			if over := float64(s.ReservedPeak) / float64(s.AllocatedPeak); over > 1.5 && c.threads == "1" {
				t.Errorf("%d bytes reserved for %d", s.ReservedPeak, s.AllocatedPeak)
			}
			if text := r.line(t, "OOM"); !strings.Contains(text, "out of memory") || !strings.Contains(text, "budget") {
				t.Errorf("out of memory is reported as %q", text)
			}
			for _, bad := range []string{"at exit", "internal error", "panic"} {
				if strings.Contains(r.stderr, bad) {
					t.Errorf("stderr says %q:\n%s", bad, r.stderr)
				}
			}
		})
	}
}

// TestFront: what is served without entering the engine, from four threads.
func TestFront(t *testing.T) {
	t.Parallel()
	for _, threads := range []string{"1", "4"} {
		mustRun(t, inMemory, program(t, "inmemory"), "front", threads)
	}
}
