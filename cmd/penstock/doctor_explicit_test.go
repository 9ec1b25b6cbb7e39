package main

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestDoctorExplicit(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(m *fakeMachine)
		why    string // "" when the engine can run
		check  string // one that tells more, and what it says
		says   string
	}{
		{"healthy", func(*fakeMachine) {}, "", "pinned memory", "100 GiB can be had"},
		{"no managed memory", func(m *fakeMachine) { m.surveys[0].Capabilities.ManagedMemory = false }, "", "managed memory", "Pascal"},
		{"no virtual memory", func(m *fakeMachine) { m.surveys[0].Capabilities.VirtualMemory = false }, "virtual memory management: ", "virtual memory", "explicit engine needs it"},
		{"no gates", func(m *fakeMachine) { m.surveys[0].Capabilities.StreamMemOps = false }, "stream memory operations: ", "stream gates", "newer driver"},
		{"no device code", func(m *fakeMachine) { m.surveys[0].Capabilities.Kernels = false }, "device code: ", "device code", "explicit engine needs it"},
		{"little memory", func(m *fakeMachine) {
			m.pins.AvailableBytes, m.pins.LimitedBy = 1<<29, "the memory limit of control group /job"
		},
			"pinned host memory: only 512 MiB", "pinned memory", "control group /job"},
		{"shared memory", func(m *fakeMachine) { m.pins.Processes = 8 }, "", "pinned memory", "100 GiB can be had (free memory); no limit on locked memory; 12.5 GiB for each of 8 processes"},
		{"too many share it", func(m *fakeMachine) { m.pins.Processes = 128 }, "pinned host memory: only 800 MiB of host memory can be pinned by each of 128 processes", "pinned memory", "free some"},
		{"memory unknown", func(m *fakeMachine) { m.pins, m.pinErr = pinningFacts{}, errors.New("no /proc") }, "pinned host memory: ", "pinned memory", "no /proc"},
		{"locked memory", func(m *fakeMachine) { m.pins.LockLimitBytes = 1 << 30 }, "", "pinned memory", "1 GiB, does not hold for the GPU driver"},
		{"no huge pages", func(m *fakeMachine) { m.pins.HugePages = "never" }, "", "huge pages", "twice as long"},
		{"huge pages unknown", func(m *fakeMachine) { m.pins.HugePages = "" }, "", "huge pages", "not known"},
		{"hook misses", func(m *fakeMachine) { m.tested = selfTestReport{} }, "launch hook: ", "launch hook", "another python3"},
		{"no driver", func(m *fakeMachine) { m.probeErr = errors.New("lost") }, "libcuda: lost", "libcuda", "lost"},
	} {
		m := healthy()
		c.change(m)
		d := diagnose(context.Background(), m)
		if d.ExplicitEngine != (c.why == "") || !strings.HasPrefix(d.WhyNotExplicit, c.why) || d.works("explicit") != d.ExplicitEngine {
			t.Errorf("%s: it can run: %v, because %q; want %q", c.name, d.ExplicitEngine, d.WhyNotExplicit, c.why)
		}
		if found := findCheck(t, d, c.check); !strings.Contains(found.Found+"\n"+found.Do, c.says) {
			t.Errorf("%s: %+v, want %q", c.name, found, c.says)
		}
		var text strings.Builder
		if err := writeDiagnosis(&text, d, false); err != nil || strings.Count(text.String(), "The explicit engine can") != 1 {
			t.Errorf("%s: %v\n%s", c.name, err, text.String())
		}
	}
	for text, want := range map[string]string{"always [madvise] never\n": "madvise", "[never]": "never", "always": "", "[always": ""} {
		if got := chosenWord(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
