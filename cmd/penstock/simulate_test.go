package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/replay"
	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

func TestSimulateBadInput(t *testing.T) {
	fakeReplays(t, func(context.Context, *trace.Trace, replay.Options) (replay.Result, error) {
		t.Error("bad input reached the simulation")
		return replay.Result{}, nil
	})
	path := shipped(t)
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, data, 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	truncated := write("cut.tsv.gz", testdata.GPT2M[:len(testdata.GPT2M)/2])
	corrupt := append([]byte(nil), testdata.GPT2M...)
	corrupt[len(corrupt)/3] ^= 0xff
	tr, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	recording := filepath.Join(dir, "whole.pstrace")
	if err := tr.WriteFile(recording); err != nil {
		t.Fatal(err)
	}
	recorded, err := os.ReadFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	small := traceFile(t, "small.tsv", smallLog)
	for _, c := range []struct {
		name  string
		args  []string
		wants []string
	}{
		{"policy", []string{"--trace", path, "--ratio", "2", "--policy", "magic"}, []string{`unknown policy "magic"`, "naive, lru, deepum, penstock, oracle"}},
		{"engine", []string{"--trace", path, "--ratio", "2", "--engine", "steam"}, []string{`unknown engine "steam"`, "managed, explicit"}},
		{"explicit", []string{"--trace", path, "--ratio", "2", "--engine", "explicit", "--policy", "naive"}, []string{"no policy naive", "--engine managed"}},
		{"gpu", []string{"--trace", path, "--ratio", "2", "--gpu", "abacus"}, []string{`"abacus"`, "h200"}},
		{"bus text", []string{"--trace", path, "--ratio", "2", "--engine", "explicit", "--policy", "oracle", "--bus", "55,wide"}, []string{`--bus: "wide"`, "GB/s"}},
		{"bus one way", []string{"--trace", path, "--ratio", "2", "--engine", "explicit", "--policy", "oracle", "--bus", "55"}, []string{`--bus: "55"`, "55,55"}},
		{"bus of none", []string{"--trace", path, "--ratio", "2", "--engine", "explicit", "--policy", "oracle", "--bus", "0,55"}, []string{`--bus: "0"`}},
		{"bus of the engine", []string{"--trace", path, "--ratio", "2", "--engine", "explicit", "--bus", "55,55"}, []string{"--bus", "--policy oracle"}},
		{"replay text", []string{"--trace", path, "--ratio", "2", "--policy", "oracle", "--replay", "maybe"}, []string{`--replay: "maybe"`, "on or off"}},
		{"replay of a policy", []string{"--trace", path, "--ratio", "2", "--policy", "penstock", "--replay", "on"}, []string{"--replay", "penstock has none", "--policy oracle"}},
		{"replay of an engine", []string{"--trace", path, "--ratio", "2", "--engine", "explicit", "--policy", "lru", "--replay", "on"}, []string{"--replay", "lru has none", "--policy oracle"}},
		{"launch cost text", []string{"--trace", path, "--ratio", "2", "--launch-cost", "dear"}, []string{`--launch-cost: "dear"`, "20us"}},
		{"launch cost zero", []string{"--trace", path, "--ratio", "2", "--launch-cost", "0"}, []string{`--launch-cost: "0"`}},
		{"launch cost years", []string{"--trace", path, "--ratio", "2", "--launch-cost", "9000h"}, []string{`--launch-cost: "9000h"`}},
		{"iterations text", []string{"--trace", path, "--ratio", "2", "--iterations", "all"}, []string{`--iterations: "all"`, "1 to 1000"}},
		{"iterations none", []string{"--trace", path, "--ratio", "2", "--iterations", "0"}, []string{`--iterations: "0"`}},
		{"iterations that differ", []string{"--trace", write("odd.tsv", []byte("A\t0\t8\nN\t0\t1\t_Z\nM\titer0\nK\t0\t(nil)\t0\t1\t1\t1\t1\t1\t1\t0+0\nM\tend\nT\t0\t5\nS\n")), "--ratio", "1", "--iterations", "3"}, []string{"--iterations 3", "1 full iterations"}},
		{"ratio 0", []string{"--trace", path, "--ratio", "0"}, []string{"ratio 0 is impossible", "at least 1"}},
		{"ratio negative", []string{"--trace", path, "--ratio", "-2"}, []string{"ratio -2 is impossible"}},
		{"ratio below 1", []string{"--trace", path, "--ratio", "0.99"}, []string{"ratio 0.99 is impossible"}},
		{"ratio NaN", []string{"--trace", path, "--ratio", "NaN"}, []string{"ratio NaN is impossible"}},
		{"ratio Inf", []string{"--trace", path, "--ratio", "Inf"}, []string{"ratio Inf is impossible"}},
		{"ratio overflow", []string{"--trace", path, "--ratio", "1e999"}, []string{"ratio 1e999 is impossible"}},
		{"ratio text", []string{"--trace", path, "--ratio", "half"}, []string{`"half" is not a number`}},
		{"ratio huge", []string{"--trace", path, "--ratio", "1e300"}, []string{"kernel", "bytes"}},
		{"both", []string{"--trace", path, "--ratio", "2", "--budget", "3GiB"}, []string{"give one of them"}},
		{"neither", []string{"--trace", path}, []string{"--ratio", "--budget"}},
		{"budget text", []string{"--trace", path, "--budget", "lots"}, []string{`--budget: "lots" is not a size`}},
		{"budget negative", []string{"--trace", path, "--budget", "-3GiB"}, []string{"negative"}},
		{"budget zero", []string{"--trace", path, "--budget", "0"}, []string{"0 bytes"}},
		{"budget above the card", []string{"--trace", path, "--budget", "1TiB"}, []string{"above the memory of h200", "1099511627776 bytes"}},
		{"budget below a launch", []string{"--trace", small, "--budget", "62914559"}, []string{"kernel _Zbig", "62914560 bytes", "--budget 62914560", "at most 1.66"}},
		{"ratio below a launch", []string{"--trace", small, "--ratio", "1.67"}, []string{"kernel _Zbig", "62914560 bytes"}},
		{"no trace", []string{"--ratio", "2"}, []string{"--trace FILE"}},
		{"missing", []string{"--trace", filepath.Join(dir, "none"), "--ratio", "2"}, []string{"cannot read trace", "no such file"}},
		{"folder", []string{"--trace", dir, "--ratio", "2"}, []string{"is a folder"}},
		{"not a trace", []string{"--trace", write("notes.txt", []byte("hello\n")), "--ratio", "2"}, []string{"notes.txt", "not a trace"}},
		{"empty", []string{"--trace", write("empty", nil), "--ratio", "2"}, []string{"not a trace"}},
		{"truncated log", []string{"--trace", truncated, "--ratio", "2"}, []string{"cut.tsv.gz", "truncated", "byte", "--accept-damaged"}},
		{"corrupt log", []string{"--trace", write("bad.tsv.gz", corrupt), "--ratio", "2"}, []string{"bad.tsv.gz", "byte"}},
		{"truncated recording", []string{"--trace", write("cut.pstrace", recorded[:len(recorded)-40]), "--ratio", "2"}, []string{"truncated at byte", "--accept-damaged"}},
		{"headless recording", []string{"--trace", write("head.pstrace", recorded[:10]), "--ratio", "2"}, []string{"truncated at byte 0", "record it again"}},
		{"no iterations", []string{"--trace", write("flat.tsv", []byte("A\t0\t8\nN\t0\t1\t_Z\nK\t-1\t(nil)\t0\t1\t1\t1\t1\t1\t1\t0+0\n")), "--ratio", "1"}, []string{"no full iteration"}},
		{"no durations", []string{"--trace", write("untimed.tsv", []byte("A\t0\t8\nN\t0\t1\t_Z\nM\titer0\nK\t-1\t(nil)\t0\t1\t1\t1\t1\t1\t1\t0+0\nM\tend\n")), "--ratio", "1"}, []string{"how long its kernels took", "penstock run --trace"}},
		{"no launches", []string{"--trace", write("idle.tsv", []byte("A\t0\t8\nM\titer0\nM\tend\n")), "--ratio", "2"}, []string{"no launch"}},
		{"inconsistent", []string{"--trace", write("wrong.tsv", []byte("A\t0\t8\nF\t1\n")), "--ratio", "2"}, []string{"event 1", "not live"}},
	} {
		t.Run(c.name, func(t *testing.T) { refused(t, c.wants, append([]string{"simulate"}, c.args...)...) })
	}
}

func TestSimulate(t *testing.T) {
	var got replay.Options
	fakeReplays(t, func(ctx context.Context, tr *trace.Trace, o replay.Options) (replay.Result, error) {
		got = o
		return plausible(ctx, tr, o)
	})
	path := shipped(t)
	status, stdout, stderr := command(t, "simulate", "--trace", path, "--ratio", "2")
	if status != 0 || stderr != "" {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	if got.Policy != "penstock" || got.Engine != "managed" || got.Profile.Name != "h200" || got.Ratio != 2 || got.BudgetBytes != 0 || got.Timeline || got.LaunchCost != replay.DefaultLaunchCost {
		t.Errorf("options %+v", got)
	}
	for _, want := range []string{"gpt2m under penstock on h200", "simulated", "3 GiB of 5.9 GiB peak live (2.00x)", "0.150 s: 0.050 s computing, 0.100 s stalled", "durations            recorded", "99.5 %"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in:\n%s", want, stdout)
		}
	}
	// What a policy does not do is not printed as zero.
	if _, stdout, _ := command(t, "simulate", "--trace", path, "--ratio", "2x", "--policy", "naive"); !strings.Contains(stdout, "does not predict") {
		t.Errorf("naive:\n%s", stdout)
	}

	status, stdout, stderr = command(t, "simulate", "--trace", path, "--budget", "3GiB", "--policy", "oracle", "--engine", "explicit", "--gpu", "v100-32g-pcie3", "--json")
	if status != 0 || stderr != "" || got.BudgetBytes != 3<<30 || got.Profile.Name != "v100-32g-pcie3" || got.Engine != "explicit" {
		t.Errorf("status %d, stderr %q, budget %d, gpu %s, engine %s", status, stderr, got.BudgetBytes, got.Profile.Name, got.Engine)
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(stdout), &fields); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	for _, name := range []string{"trace", "policy", "engine", "gpu", "budget_bytes", "peak_live_bytes", "compute_seconds", "iteration_seconds",
		"stall_seconds", "h2d_bytes", "d2h_bytes", "faults", "prediction_hit_rate", "launch_cost_seconds", "durations"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("no %s in %s", name, stdout)
		}
	}
	if fields["simulated"] != true || fields["budget_bytes"] != float64(3<<30) {
		t.Errorf("%s", stdout)
	}
}

// A damaged trace can be used on request, and that is said.
func TestSimulateAcceptDamaged(t *testing.T) {
	fakeReplays(t, plausible)
	cut := filepath.Join(t.TempDir(), "cut.tsv.gz")
	if err := os.WriteFile(cut, testdata.GPT2M[:len(testdata.GPT2M)-100], 0o644); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := command(t, "simulate", "--trace", cut, "--ratio", "2", "--accept-damaged")
	if status != 0 || !strings.Contains(stderr, "intact events") || !strings.Contains(stdout, "cut under penstock") {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}

// The real simulation, at its cheapest.
func TestSimulateForReal(t *testing.T) {
	path := shipped(t)
	status, stdout, stderr := command(t, "simulate", "--trace", path, "--ratio", "2", "--policy", "oracle", "--engine", "explicit", "--json")
	if status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r replay.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	// HARDWARE: the bare computing of an iteration takes 0.048 s, and half the
	// memory cannot be had for free.
	if r.ComputeSeconds < 0.04 || r.ComputeSeconds > 0.06 || r.IterationSeconds < r.ComputeSeconds || r.H2DBytes == 0 || !r.Simulated {
		t.Errorf("%+v", r)
	}
}

// A recording of Penstock's own has neither durations nor marks: both are found.
func TestSimulateRecording(t *testing.T) {
	log, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	recording, _ := testlogs.Record(log, testlogs.H200)
	path := filepath.Join(t.TempDir(), "run.pstrace")
	if err := recording.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	args := []string{"simulate", "--trace", path, "--ratio", "2", "--policy", "oracle", "--engine", "explicit"}
	status, stdout, stderr := command(t, append(args, "--json")...)
	if status != 0 || !strings.Contains(stderr, "run has no marks: 2 iterations were found, of 3841 launches") || !strings.Contains(stderr, "durations of run are estimated") {
		t.Fatalf("status %d: %s", status, stderr)
	}
	var r replay.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	if r.ComputeSeconds < 0.047 || r.ComputeSeconds > 0.049 || r.IterationSeconds < r.ComputeSeconds || r.Durations != trace.DurationsEstimated {
		t.Errorf("%+v", r)
	}
	if _, stdout, _ := command(t, args...); !strings.Contains(stdout, "durations            estimated") {
		t.Errorf("%s", stdout)
	}

	recording.Events = slices.DeleteFunc(recording.Events, func(e trace.Event) bool { return e.Kind == trace.KindProgress })
	recording.Estimate = nil
	silent := filepath.Join(t.TempDir(), "silent.pstrace")
	if err := recording.WriteFile(silent); err != nil {
		t.Fatal(err)
	}
	refused(t, []string{"silent does not say how long its kernels took"}, "simulate", "--trace", silent, "--ratio", "2")
}

// layeredLog is a launch log of iterations with layers, each an expensive launch and a cheap one whose output the backward pass reads.
func layeredLog(layers, iterations int) string {
	var log strings.Builder
	timings, tensors := "", 1
	launch := func(function, nanoseconds int, operands ...string) {
		n := strings.Count(timings, "T\t")
		fmt.Fprintf(&log, "K\t%d\t(nil)\t%d\t1\t1\t1\t1\t1\t1\t%s\n", n, function, strings.Join(operands, "\t"))
		timings += fmt.Sprintf("T\t%d\t%d\n", n, nanoseconds)
	}
	log.WriteString("N\t1\t2\tnvjet\nN\t2\t2\t_ZN2at6native29vectorized_elementwise_kernelILi4EEvv\nN\t3\t3\tbackward_atomic\nA\t0\t4194304\n")
	for i := range iterations {
		fmt.Fprintf(&log, "M\titer%d\n", i)
		last, first := 0, tensors
		for range layers {
			fmt.Fprintf(&log, "A\t%d\t33554432\nA\t%d\t33554432\n", tensors, tensors+1)
			launch(1, 200000, fmt.Sprintf("w%d+0", tensors), fmt.Sprintf("r%d+0", last))
			launch(2, 10000, fmt.Sprintf("w%d+0", tensors+1), fmt.Sprintf("r%d+0", tensors))
			last, tensors = tensors+1, tensors+2
		}
		for at := tensors - 2; at >= first; at -= 2 {
			launch(3, 100000, "b0+0", fmt.Sprintf("r%d+0", at), fmt.Sprintf("r%d+0", at+1))
			fmt.Fprintf(&log, "F\t%d\nF\t%d\n", at, at+1)
		}
	}
	return log.String() + "M\tend\n" + timings + "S\n"
}

// TestSimulateReplay: what is made again is told, in text and in JSON.
func TestSimulateReplay(t *testing.T) {
	args := []string{"simulate", "--trace", traceFile(t, "layered.tsv", layeredLog(8, 4)), "--ratio", "2", "--policy", "oracle", "--engine", "explicit", "--replay=on"}
	status, stdout, stderr := command(t, append(args, "--json")...)
	var r replay.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || status != 0 {
		t.Fatalf("status %d, %v: %s%s", status, err, stdout, stderr)
	}
	a := r.Replay
	if a == nil || r.Policy != replay.PolicyOracleReplay || a.Roles != replay.RolesRecorded || a.Launches == 0 || len(a.Functions) != 1 || a.Bytes == 0 || a.Rejected > 0 {
		t.Fatalf("%+v", r)
	}
	for _, key := range []string{`"roles"`, `"launches"`, `"bytes"`, `"seconds"`, `"functions"`, `"swap_seconds"`, `"rejected_plans"`} {
		if !strings.Contains(stdout, key) {
			t.Errorf("%s is not in the JSON", key)
		}
	}
	_, stdout, _ = command(t, args...)
	for _, want := range []string{"under oracle with replay", "made again", "without replay", "roles of launches    recorded", "vectorized_elementwise_kernel", "no GPU was used"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in:\n%s", want, stdout)
		}
	}
}
