package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/penstock-gpu/penstock/options"
	"github.com/penstock-gpu/penstock/replay"
	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

// command runs a command line in process.
func command(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = execute(append([]string{}, args...), &out, &errs)
	return status, out.String(), errs.String()
}

// refused checks for the one line and status 2 that bad input deserves.
func refused(t *testing.T, wants []string, args ...string) {
	t.Helper()
	status, stdout, stderr := command(t, args...)
	if status != statusUsage {
		t.Errorf("%q: status %d, want %d", args, status, statusUsage)
	}
	if stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "penstock: ") {
		t.Errorf("%q: stdout %q, stderr %q, want one line on stderr", args, stdout, stderr)
	}
	for _, w := range wants {
		if !strings.Contains(stderr, w) {
			t.Errorf("%q: stderr %q, want %q in it", args, stderr, w)
		}
	}
}

// replayer is what runReplay calls in a test.
type replayer func(ctx context.Context, t *trace.Trace, o replay.Options) (replay.Result, error)

// fakeReplays puts a replayer in the place of the simulation.
func fakeReplays(t *testing.T, f replayer) {
	t.Helper()
	real := runReplay
	runReplay = f
	t.Cleanup(func() { runReplay = real })
}

// plausible makes up a result: naive takes four times as long as penstock, the bound a tenth less.
func plausible(_ context.Context, t *trace.Trace, o replay.Options) (replay.Result, error) {
	peak := t.PeakLiveBytes()
	budget := o.BudgetBytes
	if budget == 0 {
		budget = int64(float64(peak) / o.Ratio)
	}
	over := float64(peak)/float64(budget) - 1
	slow := map[string]float64{replay.PolicyNaive: 4, replay.PolicyLRU: 2, replay.PolicyDeepUM: 1.5, replay.PolicyPenstock: 1, replay.PolicyOracle: 0.9}[o.Policy]
	if o.Engine == replay.EngineExplicit {
		slow = 0.5
	}
	o.Progress(1, 2)
	o.Progress(2, 2)
	stall := over * slow * 0.1
	r := replay.Result{
		Durations: t.Durations(),
		Trace:     t.Name, Policy: o.Policy, Engine: o.Engine, GPU: o.Profile.Name, BudgetBytes: budget, PeakLiveBytes: peak,
		ComputeSeconds: 0.05, IterationSeconds: 0.05 + stall, StallSeconds: stall, H2DBytes: int64(over * 1e9), D2HBytes: int64(over * 2e9), Simulated: true,
	}
	if o.Policy == replay.PolicyPenstock {
		r.PredictionHitRate = 0.995
	}
	if o.Replay {
		r.Policy, r.Replay = replay.PolicyOracleReplay, &replay.Again{Roles: replay.RolesInferred}
	}
	if o.Timeline {
		r.Timeline = []replay.Sample{{ResidentBytes: budget / 2, LiveBytes: budget / 2}, {Seconds: r.IterationSeconds, ResidentBytes: budget, LiveBytes: peak,
			H2DBytes: r.H2DBytes, D2HBytes: r.D2HBytes, StallSeconds: stall}}
	}
	return r, nil
}

// shipped writes the shipped trace to a file.
func shipped(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), testdata.GPT2MName)
	if err := os.WriteFile(path, testdata.GPT2M, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// traceFile writes a launch log with the given middle: two iterations.
func traceFile(t *testing.T, name, log string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(log), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// smallLog has a peak of 100 MiB and a launch, of kernel _Zbig, that touches 60.
const smallLog = "A\t0\t41943040\nA\t1\t20971520\nA\t2\t41943040\nN\t0\t1\t_Zbig\n" +
	"M\titer0\nK\t0\t(nil)\t0\t1\t1\t1\t1\t1\t1\t0+0\t1+0\nM\titer1\nK\t1\t(nil)\t0\t1\t1\t1\t1\t1\t1\t0+0\t1+0\nM\tend\nT\t0\t1000\nT\t1\t1000\n"

func TestCommandLine(t *testing.T) {
	refused(t, []string{`unknown command "simulat"`, "did you mean penstock simulate?"}, "simulat")
	refused(t, []string{`unknown command "explain"`, "did you mean penstock faults?"}, "explain")
	refused(t, []string{`unknown command "nonsense"`, "see penstock --help"}, "nonsense")
	refused(t, []string{`unknown command "nonsense"`, "see penstock --help"}, "help", "nonsense")
	refused(t, []string{`unknown command "nonsense"`}, "help", "faults", "nonsense")
	refused(t, []string{"unknown flag: --bogus", "penstock demo --help"}, "demo", "--bogus")
	refused(t, []string{"needs an argument", "penstock simulate --help"}, "simulate", "--ratio")
	refused(t, []string{`unexpected argument "extra"`}, "version", "extra")
	refused(t, []string{`unexpected argument "gpt2m.tsv.gz"`}, "simulate", "gpt2m.tsv.gz", "--ratio", "2")

	status, stdout, stderr := command(t)
	if status != 0 || stderr != "" {
		t.Errorf("no arguments: status %d, stderr %q", status, stderr)
	}
	if status, topic, stderr := command(t, "help", "faults", "export"); status != 0 || stderr != "" || !strings.Contains(topic, "penstock faults export FILE") {
		t.Errorf("help: status %d, stderr %q, %s", status, stderr, topic)
	}
	for _, c := range []string{"bench", "demo", "doctor", "measure", "run", "simulate", "version"} {
		if !strings.Contains(stdout, "\n  "+c) {
			t.Errorf("help does not mention %s", c)
		}
		if status, help, stderr := command(t, c, "--help"); status != 0 || stderr != "" || !strings.Contains(help, "Usage:") {
			t.Errorf("%s --help: status %d, stderr %q", c, status, stderr)
		}
	}
}

// Whatever goes wrong inside, the user sees one line and no stack.
func TestInternalFailures(t *testing.T) {
	path := shipped(t)
	for name, f := range map[string]replayer{
		"panic": func(context.Context, *trace.Trace, replay.Options) (replay.Result, error) { panic("boom\nhere") },
		"error": func(context.Context, *trace.Trace, replay.Options) (replay.Result, error) {
			return replay.Result{}, fmt.Errorf("boom here")
		},
		"nil deref": func(_ context.Context, _ *trace.Trace, o replay.Options) (replay.Result, error) {
			var r *replay.Result
			return *r, nil
		},
	} {
		fakeReplays(t, f)
		for _, args := range [][]string{{"simulate", "--trace", path, "--ratio", "2"}, {"bench", path}, {"demo", "--html", filepath.Join(t.TempDir(), "d.html")}} {
			status, _, stderr := command(t, args...)
			if status != statusInternal || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "internal error: replaying gpt2m") || strings.Contains(stderr, "goroutine") {
				t.Errorf("%s, %q: status %d, stderr %q", name, args, status, stderr)
			}
		}
	}
}

// The simulation may know better what is impossible: that is the user's to solve.
func TestReplayRefuses(t *testing.T) {
	fakeReplays(t, func(context.Context, *trace.Trace, replay.Options) (replay.Result, error) {
		return replay.Result{}, &replay.InputError{Text: "the trace is too strange: use another"}
	})
	refused(t, []string{"too strange"}, "simulate", "--trace", shipped(t), "--ratio", "2")
}

func TestInterrupted(t *testing.T) {
	fakeReplays(t, func(ctx context.Context, _ *trace.Trace, _ replay.Options) (replay.Result, error) {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Signal(os.Interrupt)
		}
		if err != nil {
			return replay.Result{}, err
		}
		<-ctx.Done()
		return replay.Result{}, fmt.Errorf("replay stopped: %w", ctx.Err())
	})
	status, _, stderr := command(t, "simulate", "--trace", shipped(t), "--ratio", "2")
	if status != statusInterrupted || stderr != "penstock: interrupted\n" {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
}

// Flags and the options table agree, both ways.
func TestFlagsAreInTheOptionsTable(t *testing.T) {
	root := newRootCommand()
	seen := map[string]bool{}
	all := root.Commands()
	for _, cmd := range root.Commands() {
		all = append(all, cmd.Commands()...)
	}
	for _, cmd := range all {
		if cmd.HasParent() && cmd.Parent().Name() == "completion" {
			continue
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || cmd.Name() == "completion" {
				return
			}
			seen[tableName(cmd)+" "+f.Name] = true
			o, ok := options.Lookup(tableName(cmd), f.Name)
			if !ok {
				t.Errorf("%s --%s is not in options.Table", tableName(cmd), f.Name)
			} else if o.Env == "" && f.Value.Type() == "string" && f.DefValue != o.Default {
				t.Errorf("%s --%s: default %q, the table says %q", cmd.Name(), f.Name, f.DefValue, o.Default)
			}
		})
	}
	for _, o := range options.Table {
		for _, c := range o.Commands {
			if !seen[c+" "+o.Flag] {
				t.Errorf("options.Table lists %s --%s, which does not exist", c, o.Flag)
			}
		}
	}
	if o, _ := options.Lookup("simulate", "policy"); !slices.Equal(o.Choices, replay.Policies()) {
		t.Errorf("policies in the table: %v, known: %v", o.Choices, replay.Policies())
	}
}
