package main

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/trace"
)

// doctored runs the doctor on a machine that is made up.
func doctored(t *testing.T, m *fakeMachine, args ...string) (exit int, n jobNeeds, text string) {
	t.Helper()
	exitDoctor = func(code int) { exit = code }
	machine = m
	t.Cleanup(func() { exitDoctor, machine = os.Exit, realMachine{} })
	args = append([]string{"doctor"}, args...)
	status, text, stderr := command(t, args...)
	if status != 0 {
		t.Fatalf("%q: %s", args, stderr)
	}
	status, out, stderr := command(t, append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &n); status != 0 || err != nil {
		t.Fatalf("%q: %v, %s", args, err, stderr)
	}
	return exit, n, text
}

func TestDoctorOfAModel(t *testing.T) {
	for _, c := range []struct {
		args string
		each float64 // bytes a parameter
	}{
		{"", 8}, {"--dtype fp16", 8}, {"--dtype fp32", 16}, {"--dtype amp", 16}, {"--dtype bf16 --master-weights", 16},
		{"--optimizer sgd", 4}, {"--optimizer sgd-momentum", 6}, {"--dtype fp32 --optimizer sgd-momentum", 12},
		{"--optimizer adam8bit", 4 + 2*(1+4.0/256)}, {"--dtype fp32 --optimizer adam8bit", 8 + 2*(1+4.0/256)},
	} {
		args := append([]string{"--params", "8e9", "--budget", "24GiB"}, strings.Fields(c.args)...)
		exit, n, _ := doctored(t, healthy(), args...)
		var sum int64
		for _, p := range n.Parts {
			sum += p.Bytes
		}
		if want := int64(c.each * 8e9); n.PeakBytes != want || sum != want || n.PagedBytes < want || n.PagedBytes > want+2<<20 {
			t.Errorf("%s: %d bytes, %d in pages, want %d", c.args, n.PeakBytes, n.PagedBytes, want)
		}
		if math.Abs(n.GiBPerBillion-c.each*1e9/(1<<30)) > 0.001 {
			t.Errorf("%s: %v GiB for each 1 B", c.args, n.GiBPerBillion)
		}
		host := max(0, n.PagedBytes-24<<30)
		if n.HostBytes != host || host > 0 && n.WithMarginBytes != host+hostMargin {
			t.Errorf("%s: %d bytes of host memory, want %d", c.args, n.HostBytes, host)
		}
		if fits := n.WithMarginBytes <= 100<<30; n.Enough != fits || exit != map[bool]int{true: 0, false: 1}[fits] {
			t.Errorf("%s: %+v, status %d", c.args, n, exit)
		}
	}
	_, without, text := doctored(t, healthy(), "--params", "8B", "--budget", "24GiB")
	if !without.ActivationsUnknown || !strings.Contains(text, "activations, which depend on the batch") || !strings.Contains(without.Verdict, "if activations fit") || !strings.Contains(text, "7.5 GiB for each 1 B parameters") {
		t.Errorf("%s", text)
	}
	_, with, text := doctored(t, healthy(), "--params", "8B", "--budget", "24GiB", "--activations", "6GiB")
	if with.PeakBytes != without.PeakBytes+6<<30 || with.ActivationsUnknown || strings.Contains(text, "depend on the batch") {
		t.Errorf("%s", text)
	}
	// All of the card, unless a budget is given.
	if exit, n, _ := doctored(t, healthy(), "--params", "8B"); exit != 0 || n.BudgetBytes != 140<<30 || n.HostBytes != 0 || n.PinnedBytes != 0 || !strings.Contains(n.Verdict, "nothing has to leave") {
		t.Errorf("%+v", n)
	}
}

// Each machine with too little is told what it can do.
func TestDoctorOfAJobThatIsTooLarge(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *fakeMachine)
		args   string
		says   []string
		enough bool
	}{
		"little host memory": {func(m *fakeMachine) { m.pins.AvailableBytes = 40 << 30 }, "--params 8B --dtype fp32 --budget 24GiB",
			[]string{"host memory is too small: 96.2 GiB are needed, and 40 GiB", "--budget 82136MiB: the card has so much", "8B parameters, bf16, adamw would need 36.6 GiB", "8B parameters, bf16, adam8bit would need"}, false},
		"a smaller card as well": {func(m *fakeMachine) { m.pins.AvailableBytes, m.surveys[0].Info.TotalBytes = 40<<30, 24<<30 }, "--params 30B",
			[]string{"host memory is too small", "FSDP", "checkpointing"}, false},
		"several processes": {func(m *fakeMachine) { m.pins.Processes = 4 }, "--params 8B --budget 24GiB", []string{"and 25 GiB can be had"}, false},
		"no card":           {func(m *fakeMachine) { m.probeErr, m.surveys = &cuda.OpenError{What: "none"}, nil }, "--params 8B", []string{"no card was found here: give --budget"}, false},
		"no card, a budget": {func(m *fakeMachine) { m.probeErr, m.surveys = &cuda.OpenError{What: "none"}, nil }, "--params 8B --budget 24GiB", []string{"host memory is enough, but no card"}, false},
		"beyond the card":   {func(m *fakeMachine) {}, "--params 8B --budget 200GiB", []string{"more than the card has, 140 GiB", "--budget 143360MiB or less"}, false},
		"enough":            {func(m *fakeMachine) {}, "--params 8B --budget 24GiB", []string{"it can run here"}, true},
	} {
		m := healthy()
		c.change(m)
		_, n, text := doctored(t, m, strings.Fields(c.args)...)
		all := n.Verdict + "\n" + strings.Join(n.Do, "\n")
		for _, want := range c.says {
			if !strings.Contains(all, want) {
				t.Errorf("%s: %q is not in\n%s", name, want, all)
			}
		}
		if n.Enough != c.enough || n.Enough != (len(n.Do) == 0) && !strings.Contains(name, "no card") {
			t.Errorf("%s: enough %v, do %q", name, n.Enough, n.Do)
		}
		if !strings.Contains(strings.ToLower(text), n.Verdict[1:]) && !strings.Contains(text, n.Verdict[1:]) {
			t.Errorf("%s: the text says\n%s", name, text)
		}
	}
}

// What is advised is enough.
func TestDoctorsAdviceIsGood(t *testing.T) {
	m := healthy()
	m.pins.AvailableBytes = 40 << 30
	_, n, _ := doctored(t, m, "--params", "8B", "--dtype", "fp32", "--budget", "24GiB")
	budget := ""
	for _, d := range n.Do {
		if rest, ok := strings.CutPrefix(d, "give --budget "); ok {
			budget, _, _ = strings.Cut(rest, ":")
		}
	}
	if _, n, _ = doctored(t, m, "--params", "8B", "--dtype", "fp32", "--budget", budget); !n.Enough {
		t.Errorf("with --budget %s: %s", budget, n.Verdict)
	}
	if _, n, _ = doctored(t, m, "--params", "8B", "--budget", "24GiB"); !n.Enough {
		t.Errorf("in bf16: %s", n.Verdict)
	}
}

func TestDoctorOfARecording(t *testing.T) {
	in, err := shippedInput()
	if err != nil {
		t.Fatal(err)
	}
	exit, n, text := doctored(t, healthy(), "--job", shipped(t), "--budget", "3GiB", "--params", "355M")
	if exit != 0 || !n.Enough || n.PeakBytes != in.peakBytes || n.LeastBudgetBytes != in.largest.Bytes || n.PagedBytes < n.PeakBytes || n.PagedBytes > n.PeakBytes+n.PeakBytes/8 {
		t.Errorf("status %d, %+v", exit, n)
	}
	if n.HostBytes != n.PagedBytes-3<<30 || n.PinnedBytes < n.WithMarginBytes || n.PinnedBytes > n.WithMarginBytes+5<<30 || n.GiBPerBillion <= 0 || n.Parts != nil {
		t.Errorf("%+v", n)
	}
	for _, want := range []string{"smallest budget", "in host memory", "pinned, at most", "NVIDIA H200", "It can run here at this budget.\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if exit, n, _ := doctored(t, healthy(), "--job", shipped(t), "--budget", "100MiB"); exit != 1 || n.Enough || !strings.Contains(n.Verdict, "one launch touches") {
		t.Errorf("status %d, %+v", exit, n)
	}
}

func TestPagedPeak(t *testing.T) {
	e := func(kind trace.Kind, id uint64, bytes int64) trace.Event {
		return trace.Event{Kind: kind, Alloc: id, Bytes: bytes}
	}
	for _, c := range []struct {
		events []trace.Event
		want   int64
	}{
		{nil, 0},
		{[]trace.Event{e(trace.KindAlloc, 1, 100), e(trace.KindAlloc, 2, 1<<20), e(trace.KindFree, 2, 0), e(trace.KindAlloc, 3, 3<<20)}, 100 + 4<<20},
		{[]trace.Event{e(trace.KindAlloc, 1, math.MaxInt64), e(trace.KindAlloc, 2, math.MaxInt64)}, mostBytes},
	} {
		if got := pagedPeak(&trace.Trace{Events: c.events}); got != c.want {
			t.Errorf("%v: %d, want %d", c.events, got, c.want)
		}
	}
}

func TestParseParameters(t *testing.T) {
	for text, want := range map[string]int64{"8e9": 8e9, "8B": 8e9, "1.1b": 11e8, "350M": 35e7, " 7000 ": 7000, "0.5T": 5e11, "8000000000": 8e9} {
		if got, err := parseParameters(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "B", "eight", "-8e9", "0", "nan", "inf", "1e30", "0x10p5", "8 B parameters", "1_000", strings.Repeat("9", 100)} {
		if got, err := parseParameters(text); err == nil || strings.Count(err.Error(), "\n") > 0 || len(err.Error()) > 200 {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}

func TestDoctorOfAJobBadInput(t *testing.T) {
	machine = healthy()
	t.Cleanup(func() { machine = realMachine{} })
	refused(t, []string{"--params", "8B or 350M"}, "doctor", "--params", "many")
	refused(t, []string{"--dtype", "fp32, amp, bf16, fp16"}, "doctor", "--params", "8B", "--dtype", "int4")
	refused(t, []string{"--optimizer", "adamw, adam8bit"}, "doctor", "--params", "8B", "--optimizer", "lion")
	refused(t, []string{"--master-weights", "bf16 or fp16"}, "doctor", "--params", "8B", "--dtype", "amp", "--master-weights")
	refused(t, []string{"--activations", "is not a size"}, "doctor", "--params", "8B", "--activations", "some")
	refused(t, []string{"--activations", "any machine"}, "doctor", "--params", "8B", "--activations", "9000000TB")
	refused(t, []string{"--budget", "is not a size"}, "doctor", "--params", "8B", "--budget", "much")
	refused(t, []string{"--budget", "0 bytes"}, "doctor", "--params", "8B", "--budget", "0")
	refused(t, []string{"--budget is of a job"}, "doctor", "--budget", "24GiB")
	refused(t, []string{"--for asks about this machine"}, "doctor", "--params", "8B", "--for", "engine")
	refused(t, []string{"--dtype is in the recording"}, "doctor", "--job", shipped(t), "--dtype", "bf16")
	refused(t, []string{"no such file"}, "doctor", "--job", shipped(t)+"x")
	cut := shipped(t)
	if err := os.Truncate(cut, 100_000); err != nil {
		t.Fatal(err)
	}
	refused(t, []string{"truncated", "--accept-damaged"}, "doctor", "--job", cut)
	if _, n, _ := doctored(t, healthy(), "--job", cut, "--budget", "3GiB", "--accept-damaged"); n.PeakBytes == 0 {
		t.Errorf("%+v", n)
	}
	machine = healthy()
	m := healthy()
	m.pinErr = errors.New("no /proc")
	machine = m
	refused(t, []string{"how much host memory", "no /proc"}, "doctor", "--params", "8B")
}
