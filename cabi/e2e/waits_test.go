package e2e

import (
	"strconv"
	"strings"
	"testing"
)

// TestWaitsForWork: an operation that has not finished is no deadlock, however long it takes. The kernels sleep, so that this
// takes time and no processor.
func TestWaitsForWork(t *testing.T) {
	t.Parallel()
	job := program(t, "waits")
	for _, c := range []struct{ name, engine, mode, seconds, says string }{
		{"launches", "explicit", "launches", "22", "a launch waits for memory that is in use"},
		{"allocations", "explicit", "small", "12", "an allocation waits for memory that is in use"},
		{"launches managed", "managed", "launches", "22", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := mustRun(t, explicitly("PENSTOCK_ENGINE="+c.engine), job, c.mode, c.seconds)
			if strings.Contains(r.stderr, "failed") || c.says != "" && strings.Count(r.stderr, c.says) != 1 {
				t.Errorf("want one warning %q, and no failure:\n%s", c.says, r.stderr)
			}
		})
	}
}

// TestWaitsInVain: where nothing that runs can help, whoever waits is told so before long.
func TestWaitsInVain(t *testing.T) {
	t.Parallel()
	job := program(t, "waits")
	t.Run("the context ends", func(t *testing.T) {
		t.Parallel()
		r := mustRun(t, explicitly("STUB_ABORT=0"), job, "ended", "3")
		if code, _, _ := strings.Cut(r.line(t, "RESULT"), " "); code != "700" {
			t.Errorf("the launch that waited: %s\n%s", r.stdout, r.stderr)
		}
		if strings.Contains(r.stderr, watchdog) {
			t.Errorf("told by the watchdog only:\n%s", r.stderr)
		}
	})
	// The machine refuses all pinned memory.
	t.Run("no host memory", func(t *testing.T) {
		t.Parallel()
		r := mustRun(t, explicitly("STUB_FAIL=cuMemHostRegister:1+"), job, "full")
		if n, err := strconv.Atoi(strings.Fields(r.line(t, "ALLOCATED"))[0]); err != nil || n == 0 || !strings.Contains(r.stdout, "out of memory") {
			t.Errorf("small allocations: %s\n%s", r.stdout, r.stderr)
		}
		if code := r.line(t, "RESULT"); code != "2" || !strings.Contains(r.stderr, "cannot grow") {
			t.Errorf("the launch that waited: %s\n%s", r.stdout, r.stderr)
		}
	})
}

// TestFullBudgets: what may be allocated can be used, for it leaves room to exchange things.
func TestFullBudgets(t *testing.T) {
	t.Parallel()
	mustRun(t, explicitly("PENSTOCK_HOST_BUDGET=64MiB"), program(t, "waits"), "fill")
}

// TestPinningIsTriedAgain: one moment in which memory cannot be pinned does not end a job.
func TestPinningIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := mustRun(t, explicitly("STUB_FAIL=cuMemHostRegister:1"), program(t, "explicit"), "train")
	if all, _ := explicitStats(t, r); all["failure"] != nil || !strings.Contains(r.stderr, "cannot grow: it is tried again") {
		t.Errorf("%v\n%s", all, r.stderr)
	}
}
