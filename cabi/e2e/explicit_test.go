package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-gpu/penstock/internal/short"
)

// explicitEngine is its environment: new device memory is full of rubbish, an
// access to what is not mapped ends the process and says so, and one lock is
// around the driver as in libcuda.
var explicitEngine = []string{"PENSTOCK_ENGINE=explicit", "PENSTOCK_HOST_BUDGET=256MiB", "STUB_SCRIBBLE=1", "STUB_ABORT=1", "STUB_API_LOCK=1"}

func explicitly(env ...string) []string {
	return append(explicitEngine[:len(explicitEngine):len(explicitEngine)], env...)
}

// explicitStats are the engine's own numbers.
func explicitStats(t *testing.T, r result) (all, own map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.line(t, "STATS")), &all); err != nil {
		t.Fatal(err)
	}
	own, ok := all["explicit"].(map[string]any)
	if !ok {
		t.Fatalf("no numbers of the explicit engine: %v", all)
	}
	return all, own
}

// TestExplicitTraining: a job of three times the budget under every policy.
func TestExplicitTraining(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	for _, policy := range []string{"penstock", "lru"}[:short.Of(2, 1)] {
		t.Run(policy, func(t *testing.T) {
			r := mustRun(t, explicitly("PENSTOCK_POLICY="+policy), job, "train")
			all, own := explicitStats(t, r)
			if all["failure"] != nil || own["fresh_ranges"].(float64) == 0 || own["front_allocs"].(float64) == 0 || own["plain_bytes"].(float64) <= 0 {
				t.Errorf("%v", all)
			}
			seconds := own["worker_seconds"].(map[string]any)
			for part, calls := range map[string][]string{"in_begin": {"in_unmap", "in_create", "in_map", "in_access", "in_copy"}, "out_finish": {"out_unmap"}} {
				sum := 0.0
				for _, call := range calls {
					if spent, ok := seconds[call].(float64); !ok || spent <= 0 {
						t.Errorf("%s takes %v s", call, seconds[call])
					} else {
						sum += spent
					}
				}
				if whole := seconds[part].(float64); sum > whole {
					t.Errorf("the calls of %s take %g s of its %g", part, sum, whole)
				}
			}
		})
	}
}

// TestExplicitLengths: a job of which no iteration has the sizes of another, in half of what the largest needs.
func TestExplicitLengths(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	for _, env := range []string{"PENSTOCK_VERIFY=1", "PENSTOCK_REPLAY=on"}[:short.Of(2, 1)] {
		t.Run(env, func(t *testing.T) {
			r := mustRun(t, explicitly("PENSTOCK_BUDGET=192MiB", "PENSTOCK_HOST_BUDGET=768MiB", env), job, "lengths")
			all, own := explicitStats(t, r)
			if packed := own["packed_allocs"].(float64); packed < 10 {
				t.Errorf("only %.0f allocations have shared a range: %v", packed, own)
			}
			if all["failure"] != nil || all["d2h_bytes"].(float64) == 0 {
				t.Errorf("%v", all)
			}
		})
	}
}

// oracle is what the report has of it.
type oracle struct {
	Measured float64 `json:"oracle_iteration_seconds"`
	Seconds  float64 `json:"oracle_seconds"`
	Share    float64 `json:"oracle_share"`
	Bus      string  `json:"oracle_bus"`
	Why      string  `json:"oracle_why"`
	Timed    int     `json:"timed_launches"`
	InMemory float64 `json:"in_memory_share_estimated"`
}

// withOracle runs the job in a mode to its end; cmd is the command that simulates the oracle.
func withOracle(t *testing.T, cmd, mode string) (oracle, result) {
	t.Helper()
	report := filepath.Join(t.TempDir(), "report.json")
	r := mustRun(t, explicitly("PENSTOCK_REPORT="+report, "PENSTOCK_COMMAND="+cmd), program(t, "explicit"), mode)
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Explicit oracle `json:"explicit"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s.Explicit, r
}

// penstock is the command, which simulates the oracle that the library asks for.
var penstock = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir, "penstock")
	return path, command("go", "build", "-buildvcs=false", "-trimpath", "-o", path, "../../cmd/penstock")
})

// TestExplicitOracle: the report and the verdict have what an oracle would have made of a job that
// repeats, or why not.
func TestExplicitOracle(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	cmd, err := penstock()
	if err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[string]string{"train": "% of the speed of an oracle", "frozen": "oracle"} {
		if mode != "train" && testing.Short() {
			continue
		}
		x, r := withOracle(t, cmd, mode)
		for range 2 { // a busy machine leaves few launches undisturbed
			if strings.Contains(x.Why, "too few") {
				x, r = withOracle(t, cmd, mode)
			}
		}
		switch {
		case strings.Contains(x.Why, "more than"), strings.Contains(x.Why, "too few"): // a machine that is too busy for that
			t.Skip(x.Why)
		case x.Why == "" && (x.Seconds <= 0 || x.Measured <= 0 || x.Share <= 0 || x.Bus == "" || x.Timed == 0 || x.InMemory <= 0), x.Why != "" && x.Share != 0, mode == "train" && x.Why != "":
			t.Errorf("%s: %+v", mode, x)
		}
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %q is not said:\n%s", mode, want, r.stderr)
		}
		t.Logf("%s: %+v", mode, x)
	}
	// One that was not started by penstock run leaves it to others.
	report := filepath.Join(t.TempDir(), "report.json")
	r := mustRun(t, explicitly("PENSTOCK_REPORT="+report), job, "train")
	for range 2 { // as above
		if strings.Contains(r.stderr, "too few") {
			r = mustRun(t, explicitly("PENSTOCK_REPORT="+report), job, "train")
		}
	}
	if strings.Contains(r.stderr, "too few") {
		t.Skip(r.stderr)
	}
	if !strings.Contains(r.stderr, "not compared with an oracle: `penstock run` does it") {
		t.Errorf("nothing is said of how to get a bound:\n%s", r.stderr)
	}
	if r := mustRun(t, []string{"LD_PRELOAD="}, cmd, "report", "bound", report); !strings.Contains(r.stdout, "% of the speed of an oracle") {
		t.Errorf("penstock report bound says:\n%s%s", r.stdout, r.stderr)
	}
}

// TestExplicitClean: what has not changed since it came leaves without a copy, and what has does not.
func TestExplicitClean(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	for _, c := range []struct {
		name, env string
	}{
		{"penstock", "PENSTOCK_POLICY=penstock"},
		{"lru", "PENSTOCK_POLICY=lru"},
		{"verified", "PENSTOCK_VERIFY=1"},
		{"little host memory", "PENSTOCK_HOST_BUDGET=182MiB"}, // some 130 MiB are away, and 32 are kept for the exchange
	}[:short.Of(4, 1)] {
		t.Run(c.name, func(t *testing.T) {
			all, own := explicitStats(t, mustRun(t, explicitly(c.env), job, "frozen"))
			if clean, copied := own["clean_bytes"].(float64), all["d2h_bytes"].(float64); clean < copied/8 || copied == 0 {
				t.Errorf("%.0f bytes left without a copy, %.0f by one; waited for space %.3f s of %.3f", clean, copied, all["space_stall_seconds"], all["stall_seconds"])
			}
			if need, peak := own["host_need_bytes"].(float64), own["host_peak_bytes"].(float64); need <= 0 || need > peak || peak > all["host_budget_bytes"].(float64) {
				t.Errorf("%.0f bytes of host memory needed, %.0f in use, a budget of %v", need, peak, all["host_budget_bytes"])
			}
		})
	}
}

// TestExplicitPacks: small allocations that are born and die together share ranges, and have the right contents
// when what was learned of them no longer holds, too.
func TestExplicitPacks(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	for _, env := range []string{"PENSTOCK_POLICY=penstock", "PENSTOCK_POLICY=lru", "PENSTOCK_VERIFY=1"}[:short.Of(3, 1)] {
		t.Run(env, func(t *testing.T) {
			for n := range *chaosSeeds {
				all, own := explicitStats(t, mustRun(t, explicitly(env), job, "layers", fmt.Sprint(*chaosFirst+n)))
				packs, packed, copied := own["packs"].(float64), own["packed_allocs"].(float64), all["d2h_bytes"].(float64)
				if packs < 12 || packed < 3*packs || copied == 0 {
					t.Errorf("%.0f allocations in %.0f packs, %.0f bytes have left", packed, packs, copied)
				}
			}
		})
	}
}

// TestExplicitBorrows: allocations that are gone at once use dead memory of larger sizes, and have the right contents
// when they turn out to stay and leave the device, too.
func TestExplicitBorrows(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	for _, env := range []string{"PENSTOCK_POLICY=penstock", "PENSTOCK_POLICY=lru", "PENSTOCK_VERIFY=1"}[:short.Of(3, 1)] {
		t.Run(env, func(t *testing.T) {
			for n := range *chaosSeeds {
				all, own := explicitStats(t, mustRun(t, explicitly("PENSTOCK_BUDGET=96MiB", env), job, "workspaces", fmt.Sprint(*chaosFirst+n)))
				if borrowed, copied := own["borrowed_ranges"].(float64), all["d2h_bytes"].(float64); borrowed < 4 || copied == 0 {
					t.Errorf("%.0f ranges have been borrowed, %.0f bytes have left", borrowed, copied)
				}
			}
		})
	}
}

// TestExplicitFaults: the job goes on with right values, or ends and says why. It never hangs.
func TestExplicitFaults(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	for _, c := range []struct {
		name, fail string
		env        []string
		goesOn     bool   // to its end
		mayGoOn    bool   // or not
		says       string // on stderr, in any case
		long       bool
	}{
		{name: "one chunk", fail: "cuMemCreate:9", goesOn: true, says: "less memory than the budget"},
		{name: "most chunks", long: true, fail: "cuMemCreate:9+", goesOn: true, says: "less memory than the budget"},
		{name: "plain memory", fail: "cuMemCreate:1+", says: "CUDA_ERROR_OUT_OF_MEMORY"},
		{name: "a smaller card", env: []string{"STUB_TOTAL_BYTES=50331648"}, goesOn: false, says: "above the card"},
		{name: "mapping", fail: "cuMemMap:20", says: "mapping 4194304 bytes"},
		{name: "access", fail: "cuMemSetAccess:20", says: "setting access to 4194304 bytes"},
		{name: "unmapping", fail: "cuMemUnmap:5", says: "unmapping"},
		{name: "starting a copy", fail: "cuMemcpyAsync:60", says: "copying 4194304 bytes"},
		{name: "a copy on its way", fail: "copy:60", says: "214"},                                              // CUDA_ERROR_ECC_UNCORRECTABLE, of the job's call or the engine's
		{name: "marking a copy", fail: "cuStreamWriteValue32:40", mayGoOn: true, says: "cuStreamWriteValue32"}, // or reporting an operation
		{name: "waiting for a copy", fail: "cuStreamWaitValue32", goesOn: true, says: "operations now run one at a time"},
		{name: "pinning", long: true, fail: "cuMemHostRegister", says: "cannot grow"},
		{name: "host memory", env: []string{"PENSTOCK_HOST_BUDGET=96MiB"}, says: "host budget"},
		{name: "a wrong byte", fail: "flip:30+", env: []string{"PENSTOCK_VERIFY=1"}, says: "last named by vec_add came back different from what left"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long {
				short.Skip(t)
			}
			r := run(t, explicitly(append([]string{"STUB_FAIL=" + c.fail}, c.env...)...), job, "train")
			said := r.stdout + r.stderr
			if (r.code == 0) != c.goesOn && !c.mayGoOn || strings.Contains(said, "word ") {
				t.Fatalf("exit status %d\n%s", r.code, said)
			}
			if !strings.Contains(said, c.says) {
				t.Errorf("%q is not said:\n%s", c.says, said)
			}
			if strings.Contains(said, "goroutine") {
				t.Errorf("a stack trace:\n%s", said)
			}
		})
	}
}

// TestExplicitCrowded: where plain memory leaves no room for a launch, the launch is refused at once and the message names it.
func TestExplicitCrowded(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	r := mustRun(t, explicitly(), job, "crowded")
	if !regexp.MustCompile(`touch_add touches 96 MiB, and of the device budget of 64 MiB plain memory takes 6\d(\.\d)? MiB: give --budget 1[56]\dMiB or more`).MatchString(r.stderr) {
		t.Errorf("the launch, its bytes and the smallest budget are not said:\n%s", r.stderr)
	}
}

// watchdog is what the engine says when its patience with moves has ended, after 20 s: what ends sooner is not told by a clock, as a
// busy machine takes longer for everything.
const watchdog = "without any move being possible"

// TestExplicitIllegal: what ends the context ends the job, at once and by the driver's own error, also where a launch waits for memory.
func TestExplicitIllegal(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	for _, mode := range []string{"illegal", "illegalbehind", "illegalalone", "illegal"}[:short.Of(4, 3)] {
		r := mustRun(t, explicitly("STUB_ABORT=0"), job, mode)
		if strings.Contains(r.stderr, watchdog) {
			t.Errorf("%s: told by the watchdog only\n%s", mode, r.stderr)
		}
		if !strings.Contains(r.stderr, "memory that is not mapped") || !strings.Contains(r.stderr, "--engine managed") {
			t.Errorf("%s: the verdict does not say what an illegal access can mean:\n%s", mode, r.stderr)
		}
		if strings.Contains(r.stderr, "one at a time") {
			t.Errorf("the driver's refusal is taken for what it cannot do:\n%s", r.stderr)
		}
	}
}

// TestExplicitVerified: a job that is all right passes verification, and its moves were checked.
func TestExplicitVerified(t *testing.T) {
	t.Parallel()
	mustRun(t, explicitly("PENSTOCK_VERIFY=1"), program(t, "explicit"), "train")
}

// TestExplicitBadEnvironment: one line that names what is wrong and what to do.
func TestExplicitBadEnvironment(t *testing.T) {
	t.Parallel()
	small := program(t, "small")
	for _, c := range []struct {
		env  []string
		want []string
	}{
		{[]string{"PENSTOCK_HOST_BUDGET=900TiB"}, []string{"host budget of", "more than can be pinned", "give --host-budget"}},
		{[]string{"PENSTOCK_HOST_BUDGET=1MiB"}, []string{"host budget of 1048576 bytes is too small", "at least"}},
		{[]string{"STUB_VMM=0"}, []string{"virtual memory management", "use --engine managed"}},
		{[]string{"PENSTOCK_BUDGET=1MiB"}, []string{"budget of 1048576 bytes is too small", "at least"}},
		{[]string{"LD_PRELOAD="}, []string{"launch hook", "penstock run"}},
		{[]string{"STUB_FAIL=cuMemAddressReserve"}, []string{"address space", "CUDA_ERROR_OUT_OF_MEMORY"}},
		{[]string{"STUB_FAIL=cuMemHostAlloc"}, []string{"cuMemHostAlloc", "CUDA_ERROR_OUT_OF_MEMORY"}},
		{[]string{"STUB_FAIL=cuModuleLoad"}, []string{"device code of the explicit engine"}},
		{[]string{"PENSTOCK_ENGINE=managed", "PENSTOCK_VERIFY=1"}, []string{"PENSTOCK_VERIFY", "--engine explicit"}},
	} {
		t.Run(strings.Join(c.env, " "), func(t *testing.T) {
			r := run(t, explicitly(c.env...), small, "init")
			if r.code != 3 || r.stdout == "" || strings.Contains(r.stdout, "\n") || strings.Contains(r.stderr, "goroutine") {
				t.Fatalf("exit status %d, want 3 and one line:\n%s%s", r.code, r.stdout, r.stderr)
			}
			for _, w := range c.want {
				if !strings.Contains(r.stdout, w) {
					t.Errorf("the reason is %q, without %q", r.stdout, w)
				}
			}
		})
	}
}

// TestExplicitSafety: each of the rules that keep launches off memory that is not there. See explicit.c.
func TestExplicitSafety(t *testing.T) {
	t.Parallel()
	job := program(t, "explicit")
	sharedLibrary(t, "libnccl.so.2", "../hooktest/testdata/fake_nccl.c")
	linked := sharedLibrary(t, "liblinked.so", "testdata/library.c", "-DLINKED", filepath.Join(buildDir, "libcuda.so.1"))
	getproc := sharedLibrary(t, "libgetproc.so", "testdata/library.c")
	// What has not been used for longest leaves, so that the job can send a tensor away.
	for _, c := range []struct {
		args []string
		env  []string
	}{
		{args: []string{"devicetables"}},
		{args: []string{"plaintables"}},
		{args: []string{"follow"}},
		{args: []string{"streams"}},
		{args: []string{"released"}},
		{args: []string{"tails"}},
		{args: []string{"copies"}},
		{args: []string{"nevernamed"}},
		{args: []string{"attributes"}},
		{args: []string{"globals"}},
		{args: []string{"manyaddresses"}},
		{args: []string{"textures"}},
		{args: []string{"freed"}, env: []string{"STUB_COPY_MBPS=1500"}},
		{args: []string{"recordstream"}},
		{args: []string{"graphs"}},
		{args: []string{"graphpool"}},
		{args: []string{"graphasks"}},
		{args: []string{"unknownnodes"}},
		{args: []string{"graphtables"}},
		{args: []string{"nccl"}},
		{args: []string{"ncclunlisted"}},
		{args: []string{"ncclhandles"}},
		{args: []string{"handedon", linked, getproc}},
		{args: []string{"race"}, env: []string{"PENSTOCK_POLICY=penstock"}},
		// Each of these is like one above: not in short.
		{args: []string{"hosttables"}},
		{args: []string{"foreigntables"}},
		{args: []string{"manystreams"}},
		{args: []string{"ownstreams"}},
		{args: []string{"graphglobals"}},
		{args: []string{"globals"}, env: []string{"PENSTOCK_POLICY=penstock"}}, // where uses are foretold that never come
	}[:short.Of(30, 24)] {
		t.Run(c.args[0], func(t *testing.T) {
			t.Parallel()
			r := mustRun(t, explicitly(append([]string{"PENSTOCK_POLICY=lru"}, c.env...)...), job, c.args...)
			if all, _ := explicitStats(t, r); all["failure"] != nil || all["dropped_records"] != 0.0 {
				t.Errorf("%v", all)
			}
			if strings.Contains(r.stderr, "waits for memory") {
				t.Errorf("a launch waited for what could not come:\n%s", r.stderr)
			}
		})
	}
}

// TestExplicitSandbox: tables of addresses are found where the memory of processes cannot be asked for.
func TestExplicitSandbox(t *testing.T) {
	t.Parallel()
	sandbox, job := program(t, "noreadv"), program(t, "explicit")
	for _, mode := range []string{"graphtables", "globals", "graphglobals"}[:short.Of(3, 1)] {
		t.Run(mode, func(t *testing.T) { mustRun(t, explicitly("PENSTOCK_POLICY=lru"), sandbox, job, mode) })
	}
}

// TestExplicitReplay: what kernels made whose launches can be issued again is dropped and made again, without a copy in either direction
// once they are trusted, and is what it was whatever becomes of what it was made of.
func TestExplicitReplay(t *testing.T) {
	t.Parallel()
	r := run(t, explicitly("PENSTOCK_REPLAY=on"), program(t, "replay"))
	if r.code != 0 {
		t.Fatalf("exit status %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	numbers := func(line string) (all, own map[string]any) {
		if err := json.Unmarshal([]byte(r.line(t, line)), &all); err != nil {
			t.Fatal(err)
		}
		return all, all["explicit"].(map[string]any)
	}
	before, ownBefore := numbers("ROUNDS")
	after, own := numbers("STEADY")
	for _, bytes := range []string{"fetched_bytes", "evicted_bytes"} {
		if after[bytes] != before[bytes] {
			t.Errorf("%s: %v, then %v", bytes, before[bytes], after[bytes])
		}
	}
	if own["made"].(float64) <= ownBefore["made"].(float64) || own["dropped"].(float64) <= ownBefore["dropped"].(float64) {
		t.Errorf("nothing is made again: %v, then %v", ownBefore, own)
	}
	if _, own = numbers("STATS"); own["guard_waits"].(float64) == 0 || own["unmade"].(float64) != 0 {
		t.Errorf("%v", own)
	}
}

// TestExplicitGraphParts: a graph that names more than the budget is launched in parts, and does the same.
func TestExplicitGraphParts(t *testing.T) {
	t.Parallel()
	job := program(t, "graphs")
	for _, mode := range []string{"parts", "captured", "many", "set", "small", "streams", "nested", "threads", "whole"}[:short.Of(9, 2)] {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			env := []string{"PENSTOCK_POLICY=penstock"}
			if mode == "many" { // parts of 64 MiB
				env = append(env, "PENSTOCK_BUDGET=512MiB", "PENSTOCK_HOST_BUDGET=1GiB")
			}
			r := mustRun(t, explicitly(env...), job, mode)
			all, _ := explicitStats(t, r)
			if all["failure"] != nil || all["dropped_records"] != 0.0 {
				t.Errorf("%v", all)
			}
			if oversize := all["oversize_launches"] != 0.0; oversize != (mode == "whole" || mode == "nested" || mode == "streams") {
				t.Errorf("launches of more than the budget: %v", all["oversize_launches"])
			}
		})
	}
}
