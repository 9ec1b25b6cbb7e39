package e2e

import (
	"bufio"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	mib    = 1 << 20
	budget = 64 * mib
)

// card is smaller than the job, so that the stub itself evicts where faults
// come before the engine.
var card = "STUB_TOTAL_BYTES=" + strconv.Itoa(96*mib)

// documentedKeys are those that penstock.h names for penstock_stats.
func documentedKeys(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../penstock.h")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?s)was written\. Keys:(.*?)\*/`).FindSubmatch(text)
	if m == nil {
		t.Fatal("penstock.h does not list the keys of penstock_stats")
	}
	list := regexp.MustCompile(`\([^)]*\)`).ReplaceAllString(string(m[1]), "")
	keys := regexp.MustCompile(`[a-z0-9_]+`).FindAllString(list, -1)
	if len(keys) < 20 {
		t.Fatalf("only %q found", keys)
	}
	return keys
}

// numbers parses statistics and checks that every documented key is there.
func numbers(t *testing.T, text string) map[string]float64 {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	n := map[string]float64{}
	for k, v := range all {
		if f, ok := v.(float64); ok {
			n[k] = f
		}
	}
	for _, k := range documentedKeys(t) {
		switch _, ok := all[k]; {
		case !ok:
			t.Errorf("penstock.h documents %s, the statistics lack it", k)
		case k == "engine" && all[k] != "managed":
			t.Errorf("the engine is %v", all[k])
		}
	}
	return n
}

// checkStats checks statistics taken with the job's tensors live and its work done.
func checkStats(t *testing.T, policy, text string) {
	t.Helper()
	s := numbers(t, text)
	if s["resident_bytes"] > budget || s["resident_peak_bytes"] > budget || s["budget_bytes"] != budget {
		t.Errorf("%v bytes on the device, %v at most, of a budget of %v", s["resident_bytes"], s["resident_peak_bytes"], s["budget_bytes"])
	}
	if s["host_budget_bytes"] != 512*mib || s["device_total_bytes"] <= 0 {
		t.Errorf("host budget %v, device of %v bytes", s["host_budget_bytes"], s["device_total_bytes"])
	}
	if s["launches"] <= 0 || s["dropped_records"] != 0 || s["unhooked_symbols"] != 0 || s["opaque_launches"] != 0 {
		t.Errorf("%v launches seen, %v records lost, %v symbols not hooked, %v launches opaque", s["launches"], s["dropped_records"], s["unhooked_symbols"], s["opaque_launches"])
	}
	if s["faults"] != -1 {
		t.Errorf("%v faults on a machine where they cannot be seen, want -1", s["faults"])
	}
	moved := s["evictions"] > 0 && s["fetches"] > 0 && s["d2h_bytes"] > 0 && s["h2d_bytes"] > 0
	if asked := policy != "naive"; moved != asked {
		t.Errorf("%s: %v fetches and %v evictions of %v bytes", policy, s["fetches"], s["evictions"], s["d2h_bytes"])
	}
}

// checkEnd checks what penstock_close leaves: a verdict and a report, and no complaint.
func checkEnd(t *testing.T, policy string, r result, report string) {
	t.Helper()
	if strings.Count(r.stderr, "penstock: peak ") != 1 || !strings.Contains(r.stderr, policy+" policy") {
		t.Errorf("no verdict, or more than one:\n%s", r.stderr)
	}
	for _, bad := range []string{"at exit", "internal error", "failed", "panic"} {
		if strings.Contains(r.stderr, bad) {
			t.Errorf("stderr says %q:\n%s", bad, r.stderr)
		}
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal("no report:", err)
	}
	if s := numbers(t, string(text)); s["launches"] <= 0 {
		t.Errorf("the report has %v launches", s["launches"])
	}
}

var outOfMemory = regexp.MustCompile(`out of memory: 1 GiB asked for .*device budget is 64 MiB.*host budget 512 MiB`)

var policies = []string{"naive", "lru", "deepum", "penstock"}

// TestTrain runs a small training loop in C under every policy.
func TestTrain(t *testing.T) {
	t.Parallel()
	train := program(t, "train")
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "report.json")
			r := mustRun(t, []string{card, "PENSTOCK_POLICY=" + policy, "PENSTOCK_REPORT=" + report}, train)
			checkStats(t, policy, r.line(t, "STATS"))
			if text := r.line(t, "OOM"); !outOfMemory.MatchString(text) {
				t.Errorf("out of memory is reported as %q, want what was asked for and both budgets", text)
			}
			checkEnd(t, policy, r, report)
		})
	}
}

// TestLedger compares residency with the stub's, block by block and all along.
// Naive moves nothing and deepum fetches by tables that must be learned first:
// under them kernels fault, which nobody can see here.
func TestLedger(t *testing.T) {
	t.Parallel()
	ledger := program(t, "ledger")
	for _, policy := range []string{"lru", "penstock"} {
		t.Run(policy, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "report.json")
			r := mustRun(t, []string{"PENSTOCK_POLICY=" + policy, "PENSTOCK_REPORT=" + report}, ledger)
			checkStats(t, policy, r.line(t, "STATS"))
			checkEnd(t, policy, r, report)
		})
	}
}

// TestPython does the essentials from Python, which resolves by ctypes and forks by os.fork.
func TestPython(t *testing.T) {
	t.Parallel()
	need(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	helpers, err := filepath.Abs("../hooktest/testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "report.json")
			r := mustRun(t, []string{card, "PYTHONPATH=" + helpers, "PYTHONDONTWRITEBYTECODE=1", "PENSTOCK_POLICY=" + policy, "PENSTOCK_REPORT=" + report},
				"python3", "testdata/job.py")
			checkStats(t, policy, r.line(t, "STATS"))
			if text := r.line(t, "OOM"); !outOfMemory.MatchString(text) {
				t.Errorf("out of memory is reported as %q", text)
			}
			checkEnd(t, policy, r, report)
		})
	}
}

// TestExports compares the library's symbols with the header.
func TestExports(t *testing.T) {
	t.Parallel()
	need(t)
	want, err := declared()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(filepath.Join(buildDir, "libpenstock.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			got = append(got, s.Name)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("exported are %q,\npenstock.h declares %q", got, want)
	}
}

// TestSmallPrograms are those that only have to end well.
func TestSmallPrograms(t *testing.T) {
	t.Parallel()
	small := program(t, "small")
	for _, name := range []string{"init", "forkfirst", "pools", "ring"} {
		t.Run(name, func(t *testing.T) { mustRun(t, nil, small, name) })
	}
}

// TestTwoDevices: the engine serves the device that it starts with, also when it is asked for another one meanwhile.
func TestTwoDevices(t *testing.T) {
	t.Parallel()
	mustRun(t, []string{"STUB_PIN_US=200000"}, program(t, "small"), "devices")
}

// TestWithoutHook allocates and moves nothing ahead, and says why.
func TestWithoutHook(t *testing.T) {
	t.Parallel()
	r := mustRun(t, []string{"LD_PRELOAD="}, program(t, "small"), "pools")
	if !strings.Contains(r.stderr, "the launch hook is not loaded") || !strings.Contains(r.stderr, "penstock run") {
		t.Errorf("nothing is said about the missing hook:\n%s", r.stderr)
	}
}

// TestBadEnvironment: each is one line that names what is wrong and what to do.
func TestBadEnvironment(t *testing.T) {
	t.Parallel()
	small := program(t, "small")
	for _, c := range []struct {
		env  string
		want []string
	}{
		{"PENSTOCK_BUDGET=banana", []string{"PENSTOCK_BUDGET", "banana"}},
		{"PENSTOCK_BUDGET=16GiB", []string{"budget", "above the card"}},
		{"PENSTOCK_BUDGET=1MiB", []string{"budget", "too small", "at least"}},
		{"PENSTOCK_HOST_BUDGET=-3", []string{"PENSTOCK_HOST_BUDGET", "-3"}},
		{"PENSTOCK_MANAGED_LIMIT=1MiB", []string{"PENSTOCK_MANAGED_LIMIT", "raise"}},
		{"PENSTOCK_POLICY=clairvoyant", []string{"PENSTOCK_POLICY", "clairvoyant", "penstock"}},
		{"PENSTOCK_ENGINE=steam", []string{"PENSTOCK_ENGINE", "steam", "managed"}},
		{"PENSTOCK_BUGDET=64MiB", []string{"PENSTOCK_BUGDET", "did you mean PENSTOCK_BUDGET"}},
		{"PENSTOCK_STITCH=always", []string{"PENSTOCK_STITCH", "always", "eager"}},
		{"PENSTOCK_PLAN=/nonexistent/plan.json", []string{"PENSTOCK_PLAN", "/nonexistent/plan.json"}},
		{"PENSTOCK_LOG=loud", []string{"PENSTOCK_LOG", "loud"}},
		{"PENSTOCK_TRACE=/nonexistent/x.pstrace", []string{"/nonexistent/x.pstrace"}},
		{"STUB_CONCURRENT_MANAGED=0", []string{"WSL", "managed engine cannot run"}},
		{"STUB_FAIL=cuMemAllocManaged", []string{"managed arena", "CUDA_ERROR_OUT_OF_MEMORY"}},
		{"STUB_FAIL=cuMemHostAlloc", []string{"pinned memory", "CUDA_ERROR_OUT_OF_MEMORY"}},
	} {
		t.Run(c.env, func(t *testing.T) {
			r := run(t, []string{c.env}, small, "init")
			if r.code != 3 {
				t.Fatalf("exit status %d, want 3 (not started, and said so)\n%s%s", r.code, r.stdout, r.stderr)
			}
			if r.stdout == "" || strings.Contains(r.stdout, "\n") {
				t.Errorf("the reason is %q, want one line", r.stdout)
			}
			for _, w := range c.want {
				if !strings.Contains(r.stdout, w) {
					t.Errorf("the reason is %q, without %q", r.stdout, w)
				}
			}
			if strings.Contains(r.stderr, "goroutine") {
				t.Errorf("a stack trace:\n%s", r.stderr)
			}
		})
	}
}

// TestInjectedFailures: the job goes on, or ends with a clear error, with right values either way.
func TestInjectedFailures(t *testing.T) {
	t.Parallel()
	train := program(t, "train")
	for _, c := range []struct {
		name, fail string
		mayGoOn    bool   // to its end; else it ends with an error
		says       string // on stdout when it ends with an error
		logs       string // on stderr, in any case
	}{
		{"every plain allocation", "cuMemCreate", false, "CUDA_ERROR_OUT_OF_MEMORY", ""},
		{"one plain allocation", "cuMemCreate:2", true, "CUDA_ERROR_OUT_OF_MEMORY", ""},
		{"the arena", "cuMemAllocManaged", false, "managed arena", ""},
		{"the gate words", "cuMemHostAlloc", false, "pinned memory", ""},
		// An engine that has failed does not see work finish, so memory that several
		// streams used is not reused, and the job may run out of it.
		{"every prefetch", "cuMemPrefetch", true, "out of memory", "the engine has failed; the job goes on"},
		{"a later prefetch", "cuMemPrefetch:7", true, "out of memory", "the engine has failed; the job goes on"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, []string{card, "STUB_FAIL=" + c.fail}, train, "failing")
			if r.code != 3 && !(r.code == 0 && c.mayGoOn) {
				t.Fatalf("exit status %d\n%s%s", r.code, r.stdout, r.stderr)
			}
			if r.code == 3 && !strings.Contains(r.stdout, c.says) || !strings.Contains(r.stderr, c.logs) {
				t.Errorf("%q and %q are not said:\n%s%s", c.says, c.logs, r.stdout, r.stderr)
			}
			if strings.Contains(r.stderr, "goroutine") {
				t.Errorf("a stack trace:\n%s", r.stderr)
			}
		})
	}
}

// TestKilled kills a job while it moves memory. Files are looked for twice: what
// the process has open or mapped while it lives, and what lies in its TMPDIR after: its socket, which the next to look removes.
func TestKilled(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	cmd := exec.Command(program(t, "small"), "endless")
	cmd.Env = environment(card, "PENSTOCK_TOP=1", "XDG_RUNTIME_DIR=", "TMPDIR="+tmp, "PENSTOCK_LOG=error")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }) // the read below then ends, too
	defer watchdog.Stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Errorf("the job says %q: %v", line, err)
	}
	proc := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid))
	maps, err := os.ReadFile(filepath.Join(proc, "maps"))
	if err != nil {
		t.Error(err)
	}
	used := strings.Split(string(maps), "\n")
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil || len(maps) == 0 {
		t.Error("the process cannot be looked into:", err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(filepath.Join(proc, "fd", fd.Name())); err == nil {
			used = append(used, target)
		}
	}
	for _, u := range used {
		if strings.Contains(u, "/dev/shm") || strings.Contains(u, tmp) {
			t.Errorf("the job uses %s, which it cannot remove when killed", u)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed, as intended
	sockets := fmt.Sprint(tmp, "/penstock-", os.Geteuid())
	for folder, want := range map[string]string{tmp: filepath.Base(sockets), sockets: fmt.Sprint(cmd.Process.Pid, ".sock")} {
		if left, err := os.ReadDir(folder); err != nil || len(left) != 1 || left[0].Name() != want {
			t.Errorf("left behind in %s: %v %v", folder, left, err)
		}
	}
	command, err := penstock()
	if err != nil {
		t.Fatal(err)
	}
	run(t, []string{"LD_PRELOAD=", "XDG_RUNTIME_DIR=", "TMPDIR=" + tmp}, command, "top", "--batch", "-n", "1")
	if left, err := os.ReadDir(sockets); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
