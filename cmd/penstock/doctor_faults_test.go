package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/faults"
)

// Each way of seeing faults has its own answer, and its own reason against it.
func TestDoctorFaults(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(m *fakeMachine)
		works  string // the ways that work
		why    string
	}{
		{"healthy", func(*fakeMachine) {}, "faults pid system", ""},
		{"no event queue", func(m *fakeMachine) {
			m.eventErr = &faults.Unavailable{Why: "the node is missing", WhatToDo: "run nvidia-modprobe"}
		}, "system", "fault events: the node is missing"},
		{"no tracing", func(m *fakeMachine) {
			m.traceErr = &faults.Unavailable{Why: "only descendants can be listened to", WhatToDo: "run as root"}
		}, "faults system", "other processes: only descendants"},
		{"no hook", func(m *fakeMachine) { m.libErr[hookLibrary] = errors.New("it does not exist") }, "pid system", "hook library: it does not exist"},
		{"WSL", func(m *fakeMachine) { m.isWSL = true }, "", "WSL"},
	} {
		m := healthy()
		c.change(m)
		d := diagnose(context.Background(), m)
		var works []string
		var why string
		for _, f := range d.Faults {
			if f.Works != d.works(f.For) || f.Works != (f.Why == "") {
				t.Errorf("%s: %+v", c.name, f)
			}
			if f.Works {
				works = append(works, f.For)
			} else {
				why += f.Why + "\n"
			}
		}
		if got := strings.Join(works, " "); got != c.works || !strings.Contains(why, c.why) {
			t.Errorf("%s: %q works, want %q; %s", c.name, got, c.works, why)
		}
		if d.works("managed") != d.ManagedEngine || d.works("engine") != (d.ManagedEngine || d.ExplicitEngine) {
			t.Errorf("%s: the engine's answer differs", c.name)
		}
		var text strings.Builder
		if err := writeDiagnosis(&text, d, false); err != nil || strings.Count(text.String(), "see faults here") != 3 {
			t.Errorf("%s: %v\n%s", c.name, err, text.String())
		}
	}
	m := healthy()
	m.driver = "610.10"
	if c := checkLayout(m); c.Status != checkWarn || !strings.Contains(c.Found, "has not been compared") {
		t.Errorf("%+v", c)
	}
	refused(t, []string{`"me" is unknown: choose one of engine, explicit, managed, faults, pid, system`}, "doctor", "--for", "me")
}
