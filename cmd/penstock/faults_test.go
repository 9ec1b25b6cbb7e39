package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/trace"
)

const faultBase = 0x7f0000000000

// faultRecording writes a small recording: two kernels on two allocations, n
// faults of the first, and as many bytes evicted as came in.
func faultRecording(t *testing.T, name string, n int, change func(h *trace.Header)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	h := trace.Header{Source: "penstock", Command: "python train.py", GPU: "NVIDIA H200", Policy: "naive", BudgetBytes: 3 << 30, Started: time.Unix(1_800_000_000, 0)}
	if change != nil {
		change(&h)
	}
	w, err := trace.Create(path, h, trace.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Duration(0)
	add := func(e trace.Event) {
		at += 100 * time.Microsecond
		e.Time = at
		if err := w.Append(&e); err != nil {
			t.Fatal(err)
		}
	}
	add(trace.Event{Kind: trace.KindMark, Name: "clock 1800000000000000000"})
	add(trace.Event{Kind: trace.KindAlloc, Alloc: 1, Address: faultBase, Bytes: 64 << 20, Name: "model.py:12 forward < train.py:40 main"})
	add(trace.Event{Kind: trace.KindAlloc, Alloc: 2, Address: faultBase + 64<<20, Bytes: 2 << 20})
	add(trace.Event{Kind: trace.KindFunction, Function: 1, Name: "gemm<a|b>\x1b[31m"})
	add(trace.Event{Kind: trace.KindFunction, Function: 2, Name: "=relu_backward"})
	for i := range n {
		page := uint64(faultBase + i%32*(2<<20))
		add(trace.Event{Kind: trace.KindLaunch, Function: 1, Duration: -1, Accesses: []trace.Access{{Alloc: 1}}})
		add(trace.Event{Kind: trace.KindFault, Address: page, GPU: 1, Mode: trace.AccessRead, Batch: uint32(i)})
		add(trace.Event{Kind: trace.KindMigration, Address: page, Bytes: 2 << 20, Duration: 50000, To: trace.SideDevice, Cause: trace.CauseCoherence, GPU: 1})
		add(trace.Event{Kind: trace.KindProgress, Alloc: uint64(2*i + 1)})
		add(trace.Event{Kind: trace.KindLaunch, Function: 2, Duration: -1, Accesses: []trace.Access{{Alloc: 2}}})
		add(trace.Event{Kind: trace.KindMigration, Address: page, Bytes: 2 << 20, Duration: 50000, Cause: trace.CauseEviction, GPU: 1})
		add(trace.Event{Kind: trace.KindProgress, Alloc: uint64(2*i + 2)})
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFaultsReport(t *testing.T) {
	path := faultRecording(t, "run.pstrace", 40, nil)
	status, stdout, stderr := command(t, "faults", "report", path)
	for _, want := range []string{"GPU faults                            40", "first touch", `gemm<a|b>\x1b[31m`, "model.py:12 forward", "80 MiB", "coherence fault"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if status != 0 || stderr != "" || strings.Contains(stdout, "\x1b") {
		t.Errorf("status %d, %q", status, stderr)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"--view", "kernels", "--format", "csv"}, []string{"kernel,launches,gpu_page_faults,", "'=relu_backward,40,0,", "gemm<a|b>"}},
		{[]string{"--view", "um_total_sum", "--format", "csv"}, []string{"total_htod_migration_size,total_dtoh_migration_size", "83886080,83886080,0,40,0x7f0000000000"}},
		{[]string{"--view", "kernels", "--format", "md"}, []string{`gemm&lt;a\|b>`}},
		{[]string{"--view", "all"}, []string{"How the driver gathered faults", "Faults by address and time", "What happened over time"}},
		{[]string{"--format", "html"}, []string{"<!doctype html>", "gemm&lt;a|b&gt;", "<path class=\"faults\"", "<rect class=\"h"}},
	} {
		status, stdout, stderr := command(t, append([]string{"faults", "report", path}, c.args...)...)
		for _, want := range c.want {
			if status != 0 || stderr != "" || !strings.Contains(stdout, want) {
				t.Errorf("%q: status %d, %q, no %q in\n%.3000s", c.args, status, stderr, want, stdout)
			}
		}
	}
	_, stdout, _ = command(t, "faults", "report", path, "--format", "json")
	var r struct {
		Summary struct {
			Faults   int64 `json:"faults"`
			H2DBytes int64 `json:"h2d_bytes"`
		} `json:"summary"`
		Attribution map[string]int64 `json:"attribution"`
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || r.Summary.Faults != 40 || r.Summary.H2DBytes != 80<<20 || r.Attribution["none"] != 0 {
		t.Errorf("%v %+v", err, r)
	}
	out := filepath.Join(t.TempDir(), "k.json")
	if status, stdout, stderr := command(t, "faults", "report", path, "--view", "kernels", "--format", "json", "--output", out); status != 0 || stdout+stderr != "" {
		t.Errorf("status %d, %q %q", status, stdout, stderr)
	}
	if text, err := os.ReadFile(out); err != nil || !json.Valid(text) {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestFaultsExplainAndDiff(t *testing.T) {
	naive := faultRecording(t, "naive.pstrace", 80, nil)
	better := faultRecording(t, "better.pstrace", 8, func(h *trace.Header) { h.Policy = "penstock" })
	_, stdout, _ := command(t, "faults", "explain", naive)
	for _, want := range []string{"The GPU faulted 80 times", "never predicted", "penstock run --policy penstock", "Most of all, the kernel gemm", "model.py:12 forward", "each byte crossed the bus 2.5 times", "The driver itself evicted 160 MiB"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	status, stdout, stderr := command(t, "faults", "explain", naive, "--json")
	var x struct {
		Findings []struct{ What, Do string } `json:"findings"`
	}
	if err := json.Unmarshal([]byte(stdout), &x); err != nil || status != 0 || stderr != "" || len(x.Findings) < 4 {
		t.Errorf("%v %+v", err, x)
	}
	_, stdout, _ = command(t, "faults", "diff", naive, better)
	for _, want := range []string{"GPU faults: ", "never predicted", "-90.0 %", "Faults by kernel"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	_, stdout, _ = command(t, "faults", "diff", naive, naive)
	if !strings.Contains(stdout, "80 in both") {
		t.Errorf("%s", stdout)
	}
}

func TestFaultsExport(t *testing.T) {
	path := faultRecording(t, "run.pstrace", 10, nil)
	torch := filepath.Join(t.TempDir(), "torch.json")
	if err := os.WriteFile(torch, []byte(`{"schemaVersion": 1, "traceEvents": [{"name": "aten::mm", "ph": "X", "ts": 1.5, "dur": 2, "pid": 1, "tid": 1}], "baseTimeNanoseconds": 1799999999000000000}`), 0o644); err != nil {
		t.Fatal(err)
	}
	type events struct {
		TraceEvents []struct {
			Name, Ph string
			TS       float64
		} `json:"traceEvents"`
		Base int64 `json:"baseTimeNanoseconds"`
	}
	read := func(args ...string) events {
		t.Helper()
		status, stdout, stderr := command(t, append([]string{"faults", "export", path}, args...)...)
		var e events
		if err := json.Unmarshal([]byte(stdout), &e); status != 0 || stderr != "" || err != nil {
			t.Fatalf("%q: status %d, %q, %v", args, status, stderr, err)
		}
		return e
	}
	kernel := func(e events) float64 {
		t.Helper()
		for _, x := range e.TraceEvents {
			if strings.HasPrefix(x.Name, "gemm") && x.Ph == "X" {
				return x.TS
			}
		}
		t.Fatal("no kernel")
		return 0
	}
	// The first kernel was launched 500 us after the clock mark's time, which is 100 us.
	alone := read("--format", "chrome")
	if at := kernel(alone) + float64(alone.Base)/1e3; at < 1.8e15 || at > 1.8e15+1000 {
		t.Errorf("the kernel is at %f us since 1970", at)
	}
	both := read("--format", "chrome", "--merge", torch)
	if at := kernel(both); at < 1e6 || at > 1e6+1000 || both.Base != 1799999999000000000 || both.TraceEvents[0].Name != "aten::mm" {
		t.Errorf("merged: the kernel is at %f us, base %d", at, both.Base)
	}
	_, lines, _ := command(t, "faults", "export", path, "--format", "jsonl")
	if n := strings.Count(lines, `"kind":"fault"`); n != 10 || !json.Valid([]byte(strings.SplitN(lines, "\n", 2)[0])) {
		t.Errorf("%d faults in\n%s", n, lines)
	}
	_, table, _ := command(t, "faults", "export", path, "--format", "csv")
	if !strings.HasPrefix(table, "kind,time_ns,") || strings.Count(table, "\n") != 31 {
		t.Errorf("%s", table)
	}
	_, text, _ := command(t, "faults", "export", path, "--format", "prometheus")
	if !strings.Contains(text, `penstock_gpu_page_faults_total{cause="first touch"} 10`) || !strings.Contains(text, `penstock_migrated_bytes_total{direction="HtoD",reason="coherence fault"} 2.097152e+07`) {
		t.Errorf("%s", text)
	}
	profile := filepath.Join(t.TempDir(), "p.pb.gz")
	if status, _, stderr := command(t, "faults", "export", path, "--format", "pprof", "--output", profile); status != 0 {
		t.Errorf("%s", stderr)
	}
	if b, err := os.ReadFile(profile); err != nil || len(b) < 100 || b[0] != 0x1f {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// A damaged recording gives what it has, and says so.
func TestFaultsDamaged(t *testing.T) {
	path := faultRecording(t, "run.pstrace", 40, nil)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:len(b)-10], 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"report", path}, {"explain", path}, {"export", path, "--format", "jsonl"}} {
		status, stdout, stderr := command(t, append([]string{"faults"}, args...)...)
		if status != 0 || !strings.Contains(stderr, "intact part") || stdout == "" {
			t.Errorf("%q: status %d, %q", args, status, stderr)
		}
	}
}

func TestFaultsRefuse(t *testing.T) {
	path := faultRecording(t, "run.pstrace", 1, nil)
	other := filepath.Join(t.TempDir(), "other.txt")
	if err := os.WriteFile(other, []byte("hello, this is no recording"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"name a recording", []string{"faults", "report"}},
		{"one recording at a time", []string{"faults", "explain", path, path}},
		{"no such file", []string{"faults", "report", path + "x"}},
		{"is a folder", []string{"faults", "report", filepath.Dir(path)}},
		{"is a folder", []string{"faults", "export", filepath.Dir(path), "--format", "csv"}},
		{"is not a recording: make one with", []string{"faults", "explain", other}},
		{"is not a recording: make one with", []string{"faults", "export", other, "--format", "csv"}},
		{`"kernel" is unknown: choose among all, summary`, []string{"faults", "report", path, "--view", "kernel"}},
		{`"xml" is unknown`, []string{"faults", "report", path, "--format", "xml"}},
		{"is for one view", []string{"faults", "report", path, "--format", "csv"}},
		{"make the folder", []string{"faults", "report", path, "--output", "/nowhere/x"}},
		{"name two recordings", []string{"faults", "diff", path}},
		{"choose one of chrome", []string{"faults", "export", path}},
		{"goes with --format chrome", []string{"faults", "export", path, "--format", "csv", "--merge", other}},
		{"has no traceEvents", []string{"faults", "export", path, "--format", "chrome", "--merge", other}},
		{"no command to record", []string{"faults", "record"}},
		{"is not a process id", []string{"faults", "record", "--pid", "me"}},
		{"cannot be listened to", []string{"faults", "record", "--pid", "1073741823", "--output", filepath.Join(t.TempDir(), "x.pstrace")}},
		{"leave \"ls\" out", []string{"faults", "record", "--pid", "1", "ls"}},
		{"goes with --pid", []string{"faults", "record", "--seconds", "3", "ls"}},
		{"write seconds above 0", []string{"faults", "record", "--pid", "1", "--seconds", "-3"}},
		{"--stacks needs Penstock", []string{"faults", "record", "--stacks", "--output", filepath.Join(t.TempDir(), "x.pstrace"), "--", "ls"}},
		{"give that too", []string{"faults", "record", "--cgroup", "/x", "--", "ls"}},
		{"no control group /no/such", []string{"faults", "record", "--system", "--cgroup", "/no/such", "--output", filepath.Join(t.TempDir(), "x.pstrace")}},
		{"unknown command", []string{"faults", "nonsense"}},
	} {
		refused(t, []string{c.want}, c.args...)
	}
}

// The recorded command's status is the command's, and silence is explained.
func TestFaultsRecordRuns(t *testing.T) {
	libs := t.TempDir()
	for _, n := range []string{engineLibrary, hookLibrary} {
		if err := os.WriteFile(filepath.Join(libs, n), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PENSTOCK_LIB", libs)
	t.Setenv("LD_PRELOAD", "")
	got := -1
	exitRecorded = func(status int) { got = status }
	defer func() { exitRecorded = os.Exit }()
	old := filepath.Join(t.TempDir(), "old.pstrace")
	if err := os.WriteFile(old, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, _, stderr := command(t, "faults", "record", "--output", old, "--", "sh", "-c", "exit 7")
	if status != 0 || got != 7 || !strings.Contains(stderr, "nothing was recorded: the program allocated no managed memory") {
		t.Errorf("status %d, exit %d, %q", status, got, stderr)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("an old recording passes for a new one")
	}
	if command(t, "faults", "record", "--output", old, "--", "sh", "-c", "kill -9 $$"); got != 128+9 {
		t.Errorf("exit %d of a killed command", got)
	}

	// A command that cannot run costs no recording, and a pipe or device is not removed.
	write(t, old, "x", 0o644)
	refused(t, []string{"no such file"}, "faults", "record", "--output", old, "--", "./nonsense")
	refused(t, []string{"not a size"}, "faults", "record", "--output", old, "--budget", "much", "--", "ls")
	if _, err := os.Stat(old); err != nil {
		t.Error(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, []string{"--output", "no regular file"}, "faults", "record", "--output", pipe, "--", "ls")
	if _, err := os.Stat(pipe); err != nil {
		t.Error(err)
	}
}

func TestFaultsTopOnce(t *testing.T) {
	path := faultRecording(t, "run.pstrace", 40_000, nil)
	status, stdout, stderr := command(t, "faults", "top", path, "--batch", "--count", "1")
	if status != 0 || stderr != "" || !strings.Contains(stdout, "40,000 faults in all") {
		t.Errorf("status %d, %q, %s", status, stderr, stdout)
	}
}

// What is served is what Prometheus takes, on the loopback only.
func TestServe(t *testing.T) {
	path := faultRecording(t, "run.pstrace", 5, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Skip(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w, err := watched(ctx, []string{path}, "", false)
	if err != nil {
		t.Fatal(err)
	}
	<-w.Done()
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, l, w) }()
	get := func(page string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + l.Addr().String() + page)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	if status, text := get("/metrics"); status != 200 || !strings.Contains(text, `penstock_gpu_page_faults_total{cause="first touch"} 5`) {
		t.Errorf("%d\n%.1000s", status, text)
	}
	if status, _ := get("/else"); status != 404 {
		t.Errorf("%d", status)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	refused(t, []string{"not on this machine's loopback"}, "serve", path, "--listen", "0.0.0.0:9464")
	refused(t, []string{"not on this machine's loopback"}, "serve", path, "--listen", ":9464")
	refused(t, []string{"is not an address"}, "serve", path, "--listen", "here")
	refused(t, []string{"name one thing to watch"}, "serve")
	refused(t, []string{"name one thing to watch"}, "faults", "top", "--batch", "--pid", "1", path)
	refused(t, []string{"needs a terminal"}, "faults", "top", path)
	refused(t, []string{"from 0.1 to 3600"}, "faults", "top", path, "--batch", "--interval", "0")
	if status, text, _ := command(t, "faults", "top", path, "--batch"); status != 0 || !strings.Contains(text, "5 faults in all") {
		t.Errorf("%d\n%s", status, text)
	}
}

// A command is recorded by what its environment preloads.
func TestFaultsRecordPlan(t *testing.T) {
	libs := t.TempDir()
	for _, n := range []string{engineLibrary, hookLibrary} {
		if err := os.WriteFile(filepath.Join(libs, n), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(t.TempDir(), "f.pstrace")
	f := recordFlags{output: out}
	plan, err := f.plan([]string{"ls", "-l"}, []string{"PATH=/bin:/usr/bin", "PENSTOCK_LIB=" + libs, "LD_PRELOAD=/other.so"}, &strings.Builder{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"PENSTOCK_OBSERVE=1", "PENSTOCK_TRACE=" + out, "LD_PRELOAD=" + filepath.Join(libs, hookLibrary) + ":/other.so"} {
		if !slices.Contains(plan.env, want) {
			t.Errorf("no %s in %q", want, plan.env)
		}
	}
	if filepath.Base(plan.path) != "ls" || len(plan.argv) != 2 {
		t.Errorf("%+v", plan)
	}
}

// TestFaultsRecordPlanTakesTheManagedEngine: under a budget, where the environment names none.
func TestFaultsRecordPlanTakesTheManagedEngine(t *testing.T) {
	i := newInstallation(t)
	f := recordFlags{output: filepath.Join(t.TempDir(), "f.pstrace"), budget: "1GiB"}
	for named, want := range map[string]string{"": "managed", "explicit": "explicit"} {
		plan, err := f.plan([]string{"ls"}, []string{"PATH=/bin:/usr/bin", "LD_LIBRARY_PATH=" + i.libcuda, "PENSTOCK_LIB=" + filepath.Join(i.root, "lib"), "PENSTOCK_ENGINE=" + named}, &strings.Builder{})
		if err != nil {
			t.Fatal(err)
		}
		if got := (&runEnvironment{plan.env}).get("PENSTOCK_ENGINE"); got != want {
			t.Errorf("engine %q is named, and %q recorded", named, got)
		}
	}
}
