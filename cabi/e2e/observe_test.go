package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// A program that knows nothing of Penstock is recorded: every managed
// allocation, every launch with what it names, and how far streams got. Faults
// cannot be seen on the stub, and the recording says so.
func TestObserve(t *testing.T) {
	t.Parallel()
	plain := program(t, "plain")
	path := filepath.Join(t.TempDir(), "run.pstrace")
	env := []string{"PENSTOCK_OBSERVE=1", "PENSTOCK_LIB=" + buildDir, "PENSTOCK_TRACE=" + path}
	r := mustRun(t, env, plain)
	if r.stdout != "done\n" || !strings.Contains(r.stderr, "penstock: recorded to "+path+" (faults could not be seen)") {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if tr.Header.Process == 0 || tr.Header.ClockNanos == 0 || !strings.HasSuffix(tr.Header.Command, "plain") {
		t.Errorf("%+v", tr.Header)
	}
	var launches, named, allocs, frees, done uint64
	lacks := ""
	for _, e := range tr.Events {
		switch e.Kind {
		case trace.KindAlloc:
			allocs++
		case trace.KindFree:
			frees++
		case trace.KindLaunch:
			launches++
			named += uint64(len(e.Accesses))
		case trace.KindProgress:
			done = e.Alloc
		case trace.KindMark:
			lacks += e.Name + "\n"
		}
	}
	if allocs != 2 || frees != 2 || launches != 41 || named != 41 {
		t.Errorf("%d allocations, %d frees, %d launches that name %d, want 2, 2, 41, 41", allocs, frees, launches, named)
	}
	if done < 30 || done > launches {
		t.Errorf("the last progress is of operation %d of %d", done, launches)
	}
	if !strings.Contains(lacks, "lacks GPU fault events unavailable") || strings.Count(lacks, "clock ") < 2 {
		t.Errorf("marks:\n%s", lacks)
	}

	// A second process of the same job has a file of its own.
	mustRun(t, env, plain)
	if files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "run.*.pstrace")); err != nil || len(files) != 1 {
		t.Errorf("%v %v", files, err)
	}
	// So has a rank, at once.
	mustRun(t, append([]string{"RANK=1", "WORLD_SIZE=2"}, env...), plain)
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), "run.rank1.pstrace")); err != nil {
		t.Error(err)
	}
	// Without the request nothing is loaded.
	if r := mustRun(t, []string{"PENSTOCK_LIB=" + buildDir}, plain); r.stdout != "done\n" || r.stderr != "" {
		t.Errorf("%s%s", r.stdout, r.stderr)
	}
	// A request that cannot be met does not keep the program from running.
	for want, env := range map[string][]string{
		"PENSTOCK_TRACE names no file": {"PENSTOCK_OBSERVE=1", "PENSTOCK_LIB=" + buildDir},
		"nothing is recorded":          {"PENSTOCK_OBSERVE=1", "PENSTOCK_LIB=/nowhere", "PENSTOCK_TRACE=" + path},
		"not a directory":              {"PENSTOCK_OBSERVE=1", "PENSTOCK_LIB=" + buildDir, "PENSTOCK_TRACE=" + filepath.Join(path, "x", "y")},
	} {
		if r := mustRun(t, env, plain); r.stdout != "done\n" || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("want %q: %s%s", want, r.stdout, r.stderr)
		}
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// A launch is recorded at the time of the program's call. Before a function's first
// launch goes to the driver the hook looks its parameters up, which takes long on a
// real driver too, and the ring is read later still: neither may make a launch
// appear after the faults that it causes.
func TestLaunchesAreStampedBeforeTheLookup(t *testing.T) {
	t.Parallel()
	const lookup = 600 * time.Millisecond
	path := filepath.Join(t.TempDir(), "run.pstrace")
	mustRun(t, []string{"PENSTOCK_OBSERVE=1", "PENSTOCK_LIB=" + buildDir, "PENSTOCK_TRACE=" + path,
		fmt.Sprintf("STUB_LOOKUP_US=%d", lookup.Microseconds())}, program(t, "plain"))
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var allocated time.Duration
	var launches []time.Duration
	for _, e := range tr.Events {
		switch e.Kind {
		case trace.KindAlloc:
			allocated = e.Time
		case trace.KindLaunch:
			launches = append(launches, e.Time)
		}
	}
	if len(launches) != 41 {
		t.Fatalf("%d launches", len(launches))
	}
	if first := launches[0] - allocated; first < 0 || first > lookup/2 {
		t.Errorf("the first launch is stamped %s after the allocation before it: the look-up of %s is in it", first, lookup)
	}
	if rest := launches[1] - launches[0]; rest < lookup {
		t.Errorf("the second launch is %s after the first, which had a look-up of %s", rest, lookup)
	}
	if !slices.IsSorted(launches) {
		t.Errorf("not in order of time: %v", launches)
	}
}

// In plain memory allocations are recorded although they do not enter the engine,
// and penstock_record leaves out a part of the run.
func TestAllocationsInPlainMemory(t *testing.T) {
	t.Parallel()
	need(t)
	path := filepath.Join(t.TempDir(), "run.pstrace")
	mustRun(t, append(slices.Clone(inMemory), "PENSTOCK_TRACE="+path), program(t, "small"), "recorded")
	tr, err := trace.Load(path) // which looks that every free is of a live allocation
	if err != nil {
		t.Fatal(err)
	}
	allocs, frees := map[int64]int{}, 0
	last := time.Duration(-1)
	for _, e := range tr.Events {
		switch e.Kind {
		case trace.KindAlloc:
			allocs[e.Bytes>>20]++
		case trace.KindFree:
			frees++
		default:
			continue
		}
		if e.Time < last {
			t.Fatalf("event at %v after %v", e.Time, last)
		}
		last = e.Time
	}
	if allocs[1] != 2 || allocs[2] != 100 || allocs[3] != 0 || allocs[4] != 0 || frees != 102 {
		t.Errorf("allocations by MiB %v, %d frees", allocs, frees)
	}
}

// Nothing is lost and no call out of its thread's order when several threads fill the log faster than it is read.
func TestRecordManyCalls(t *testing.T) {
	t.Parallel()
	need(t)
	const threads, turns = 3, 60000
	path := filepath.Join(t.TempDir(), "run.pstrace")
	var tr *trace.Trace
	for range 3 { // a reader that gets no core for long is given up, and the recording says so
		mustRun(t, append(slices.Clone(inMemory), "PENSTOCK_TRACE="+path), program(t, "small"), "busy")
		var err error
		if tr, err = trace.Load(path); err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(tr.Events, func(e trace.Event) bool { return e.Kind == trace.KindLost }) {
			break
		}
	}
	type thread struct {
		turn  int
		alloc uint64 // the live one, 0 when there is none
	}
	of := map[uint64]*thread{} // by stream
	owner := map[uint64]*thread{}
	last := time.Duration(-1)
	for _, e := range tr.Events {
		x := of[e.Stream]
		switch e.Kind {
		case trace.KindAlloc:
			if x == nil {
				x = &thread{}
				of[e.Stream] = x
			}
			if x.alloc != 0 {
				t.Fatalf("allocation %d comes before the free of %d, its thread's last", e.Alloc, x.alloc)
			}
			owner[e.Alloc], x.alloc = x, e.Alloc
			if want := int64(1 + x.turn%40); e.Bytes/512/threads != want {
				t.Fatalf("allocation %d of its thread has %d bytes", x.turn, e.Bytes)
			}
		case trace.KindFree:
			x = owner[e.Alloc]
			delete(owner, e.Alloc)
			if x.alloc != e.Alloc {
				t.Fatalf("turn %d of a thread frees allocation %d, and has %d", x.turn, e.Alloc, x.alloc)
			}
			x.alloc = 0
			x.turn++
		case trace.KindLost:
			t.Fatalf("lost %d: %s", e.Bytes, e.Name)
		default:
			continue
		}
		if e.Time < last {
			t.Fatalf("event at %v after %v", e.Time, last)
		}
		last = e.Time
	}
	for _, x := range of {
		if x.turn != turns {
			t.Errorf("a thread has %d turns in the recording, want %d", x.turn, turns)
		}
	}
	if len(of) != threads {
		t.Errorf("%d threads, want %d", len(of), threads)
	}
}

// A call that waits for room in the log when the recording is switched off is not lost: it is in the part that is left out.
func TestSwitchedOffWhileFull(t *testing.T) {
	t.Parallel()
	need(t)
	path := filepath.Join(t.TempDir(), "run.pstrace")
	mustRun(t, append(slices.Clone(inMemory), "PENSTOCK_TRACE="+path), program(t, "small"), "switched")
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range tr.Events {
		if e.Kind == trace.KindLost {
			t.Fatalf("lost %d: %s", e.Bytes, e.Name)
		}
	}
}

// Recording by turns while memory comes and goes: half of the launches are in the
// recording, every allocation is, and the values are right.
func TestRecordByTurns(t *testing.T) {
	t.Parallel()
	need(t)
	path := filepath.Join(t.TempDir(), "run.pstrace")
	mustRun(t, append(slices.Clone(budgets), "PENSTOCK_TRACE="+path), program(t, "small"), "turns")
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	launches, allocs, named := 0, 0, 0
	for _, e := range tr.Events {
		switch e.Kind {
		case trace.KindLaunch:
			launches++
			named += len(e.Accesses)
		case trace.KindAlloc:
			allocs++
		}
	}
	if launches != 30*24 || named != launches || allocs != 24 {
		t.Errorf("%d launches that name %d, %d allocations, want %d, as many, 24", launches, named, allocs, 30*24)
	}
}

// What is no kernel is recorded by its own name, and what is only captured is not recorded.
func TestRecordGraphsAndCollectives(t *testing.T) {
	t.Parallel()
	need(t)
	sharedLibrary(t, "libnccl.so.2", "../hooktest/testdata/fake_nccl.c")
	for _, c := range []struct {
		job  string
		want map[string]int
	}{
		{"graphs", map[string]int{"CUDA graph": 5}},
		{"nccl", map[string]int{"ncclAllReduce": 3, "ncclGroupEnd": 3}},
	} {
		path := filepath.Join(t.TempDir(), "run.pstrace")
		mustRun(t, explicitly("PENSTOCK_POLICY=lru", "PENSTOCK_TRACE="+path), program(t, "explicit"), c.job)
		tr, err := trace.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		names, got := map[uint32]string{}, map[string]int{}
		for _, e := range tr.Events {
			switch e.Kind {
			case trace.KindFunction:
				names[e.Function] = e.Name
			case trace.KindLaunch:
				got[names[e.Function]]++
			}
		}
		for name, n := range c.want {
			if got[name] != n {
				t.Errorf("%s: %d of %s, want %d: %v", c.job, got[name], name, n, got)
			}
		}
	}
}

// With PENSTOCK_STACKS an allocation is recorded with the Python frames that
// asked for it, also from threads that come at the same time. Frames of PyTorch,
// of Penstock and of contextlib are left out, which are told by where these lie: a program
// in folders of the same names keeps its own.
func TestAllocationSites(t *testing.T) {
	t.Parallel()
	need(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	text, err := os.ReadFile("testdata/site.py")
	if err != nil {
		t.Fatal(err)
	}
	packages, program := t.TempDir(), filepath.Join(t.TempDir(), "penstock", "torch", "contextlib.py", "site.py")
	for file, text := range map[string]string{
		program: string(text),
		filepath.Join(packages, "torch", "__init__.py"):    "def call(f): f()\n",
		filepath.Join(packages, "penstock", "__init__.py"): "def call(f): f()\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	packages = "PYTHONPATH=" + packages
	path := filepath.Join(t.TempDir(), "run.pstrace")
	mustRun(t, []string{packages, "PENSTOCK_TRACE=" + path, "PENSTOCK_STACKS=1"}, python, program)
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var sites []string
	for _, e := range tr.Events {
		if e.Kind == trace.KindAlloc {
			sites = append(sites, e.Name)
		}
	}
	const file = "contextlib.py/site.py"
	const first = file + ":21 inner < " + file + ":26 <lambda> < " + file + ":26 managed < " + file + ":31 outer < " + file + ":35 <module>"
	if len(sites) != 9 || sites[0] != first {
		t.Errorf("%q, want %q first", sites, first)
	}
	for _, s := range sites[1:] {
		if !strings.HasPrefix(s, file+":21 inner < ") {
			t.Errorf("from a thread: %q", s)
		}
	}
	plain := filepath.Join(t.TempDir(), "plain.pstrace")
	mustRun(t, []string{packages, "PENSTOCK_TRACE=" + plain}, python, program)
	if tr, err = trace.Load(plain); err != nil {
		t.Fatal(err)
	}
	for _, e := range tr.Events {
		if e.Kind == trace.KindAlloc && e.Name != "" {
			t.Errorf("nobody asked for %q", e.Name)
		}
	}
}
