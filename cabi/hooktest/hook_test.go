package hooktest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/internal/short"
)

// levels at which the hook must behave the same. The dlsym trap (an ordinary
// call where a jump is needed) shows at some of them only.
var levels = []string{"-O0", "-O2", "-O1", "-O3"}

// TestRoutes resolves a launch by every route and expects it in the ring.
func TestRoutes(t *testing.T) {
	t.Parallel()
	stubDir := stub(t, current)
	libcuda := filepath.Join(stubDir, "libcuda.so.1")
	routes := program(t, "routes")
	linked := compile(t, "bin/routes-linked", "routes.c", "-DLINKED", libcuda)
	counting := compile(t, "bin/routes-counting", "routes.c", "-DCOUNTING", "-rdynamic")
	sharedLibrary(t, "libcudart.so.99", "cudart.c")
	for _, level := range levels[:short.Of(4, 2)] {
		h := hook(t, level)
		for _, route := range []string{"dlsym", "default", "main", "getproc1", "getproc2", "runtime", "runtime-version", "runtime-linked"} {
			t.Run(route+level, func(t *testing.T) {
				if route == "runtime-linked" {
					sharedLibrary(t, "libuser.so", "user.c", filepath.Join(buildDir, "lib", "libcudart.so.99"))
				}
				run(t, h, stubDir, nil, routes, route)
			})
		}
		t.Run("callers"+level, func(t *testing.T) {
			sharedLibrary(t, "libuser.so", "user.c", filepath.Join(buildDir, "lib", "libcudart.so.99"))
			run(t, h, stubDir, nil, counting, "runtime-linked")
		})
		t.Run("elf"+level, func(t *testing.T) { run(t, h, stubDir, nil, linked, "elf") })
	}
}

// TestRuntimeBesideTheHook has a runtime that asks the driver past the hook: its
// answers are replaced where it gives them out.
func TestRuntimeBesideTheHook(t *testing.T) {
	t.Parallel()
	stubDir := stub(t, current)
	dir := filepath.Dir(compile(t, "bypass/libcudart.so.99", "cudart.c", "-DBYPASS", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.99",
		"-Wl,--no-as-needed", filepath.Join(stubDir, "libcuda.so.1")))
	for _, route := range []string{"runtime", "runtime-version"} {
		run(t, hook(t, "-O2"), stubDir, []string{"LD_LIBRARY_PATH=" + dir + ":" + stubDir}, program(t, "routes"), route)
	}
}

// TestCallerReplaced has a caller of one runtime unloaded, and a caller of another loaded in its place.
func TestCallerReplaced(t *testing.T) {
	t.Parallel()
	sharedLibrary(t, "libuser.so", "user.c", sharedLibrary(t, "libcudart.so.99", "cudart.c"))
	sharedLibrary(t, "libuser_refused.so", "user.c", sharedLibrary(t, "libcudart.so.98", "cudart.c", "-DREFUSING"))
	run(t, hook(t, "-O2"), stub(t, current), nil, program(t, "replaced"))
}

func TestReloaded(t *testing.T) {
	t.Parallel()
	sharedLibrary(t, "libnccl.so.2", "fake_nccl.c")
	sharedLibrary(t, "libcudart.so.99", "cudart.c")
	run(t, hook(t, "-O2"), stub(t, current), nil, program(t, "reloaded"))
}

// TestCallerOfDlsym is the dlsym trap: RTLD_NEXT and RTLD_DEFAULT answer relative
// to the library that asks, whatever the hook was compiled with.
func TestCallerOfDlsym(t *testing.T) {
	t.Parallel()
	first := sharedLibrary(t, "libfirst.so", "next.c", "-DFIRST")
	second := sharedLibrary(t, "libsecond.so", "next.c", "-DSECOND")
	sharedLibrary(t, "liblocal.so", "next.c", "-DLOCAL")
	next := compile(t, "bin/next", "next.c", "-Wl,--no-as-needed", first, second)
	run(t, "", "", nil, next) // how it is without the hook
	for _, level := range levels[:short.Of(4, 2)] {
		t.Run(level, func(t *testing.T) { run(t, hook(t, level), "", nil, next) })
	}
}

// late is for programs that begin as if nearly 2^32 operations had been recorded before.
var late = []string{"HOOKTEST_FIRST=4294967290"}

// cases are programs that say themselves what is wrong.
var cases = []struct {
	name, program string
	args, env     []string
	version       string
}{
	{name: "forward", program: "alone", args: []string{"forward"}},
	{name: "no driver", program: "alone", args: []string{"nodriver"}, version: "none"},
	{name: "old driver", program: "alone", args: []string{"old"}, version: "11080"},
	{name: "launch", program: "launch"},
	{name: "copies", program: "copies"},
	{name: "graph", program: "graph"},
	{name: "gate", program: "gate"},
	{name: "gate refused", program: "gate", args: []string{"refused"}, env: []string{"STUB_FAIL=cuStreamWaitValue32"}},
	{name: "strict", program: "strict"},
	{name: "timing", program: "timing"},
	{name: "timing after days", program: "timing", env: []string{"HOOKTEST_FIRST=3000000000"}},
	{name: "strict refused", program: "strict", args: []string{"refused"}, env: []string{"STUB_FAIL=cuStreamWaitValue32"}},
	{name: "strict copies", program: "strict_copies"},
	{name: "strict graph", program: "strict_graph"},
	{name: "record", program: "record"},
	{name: "dekker", program: "dekker"},
	{name: "ring", program: "ring"},
	{name: "threads", program: "threads"},
	{name: "fork", program: "forked"},
	{name: "contexts", program: "contexts"},
	{name: "unload", program: "unload"},
	{name: "indices", program: "longrun", args: []string{"indices"}},
	{name: "threads' indices", program: "longrun", args: []string{"threads"}},
	{name: "quiet", program: "longrun", args: []string{"quiet"}},
	{name: "unread", program: "longrun", args: []string{"unread"}},
	{name: "launch across the wrap", program: "launch", env: late},
	{name: "copies across the wrap", program: "copies", env: late},
	{name: "graph across the wrap", program: "graph", env: late},
	{name: "contexts across the wrap", program: "contexts", env: late},
	{name: "strict across the wrap", program: "strict", env: late},
	{name: "strict copies across the wrap", program: "strict_copies", env: late},
	{name: "strict graph across the wrap", program: "strict_graph", env: late},
	{name: "record across the wrap", program: "record", env: late},
	{name: "dekker across the wrap", program: "dekker", env: late},
	{name: "ring across the wrap", program: "ring", env: late},
}

func checkOutput(t *testing.T, name, out string) {
	t.Helper()
	if strings.HasSuffix(name, " refused") {
		// Never silent, and said once.
		if strings.Count(out, "cuStreamWaitValue32 failed (CUDA error 801)") != 1 {
			t.Errorf("stderr is %q, want one line about cuStreamWaitValue32", out)
		}
	} else if out != "" {
		t.Errorf("unexpected output: %s", out)
	}
}

func TestPrograms(t *testing.T) {
	t.Parallel()
	sharedLibrary(t, "libfuture.so", "future.c")
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.version == "" {
				c.version = current
			}
			stubDir := ""
			if c.version != "none" {
				stubDir = stub(t, c.version)
			}
			checkOutput(t, c.name, run(t, hook(t, "-O2"), stubDir, c.env, program(t, c.program), c.args...))
		})
	}
	// The hot paths once more as the compiler leaves them alone.
	for _, name := range []string{"launch", "gate", "graph", "strict"} {
		t.Run(name+" -O0", func(t *testing.T) { run(t, hook(t, "-O0"), stub(t, current), nil, program(t, name)) })
	}
}

// TestSanitized runs the programs with a hook and a driver in which every access, and
// what C leaves undefined, is checked.
func TestSanitized(t *testing.T) {
	short.Skip(t)
	t.Parallel()
	sharedLibrary(t, "libfuture.so", "future.c")
	preload, stubDir := sanitized(t)
	env := []string{"ASAN_OPTIONS=detect_leaks=0"} // names and layouts of functions are kept on purpose
	for _, c := range cases {
		if c.version == "" {
			t.Run(c.name, func(t *testing.T) {
				checkOutput(t, c.name, run(t, preload, stubDir, append(env, c.env...), program(t, c.program), c.args...))
			})
		}
	}
	t.Run("churn", func(t *testing.T) { run(t, preload, stubDir, env, program(t, "churn")) })
	fake := sharedLibrary(t, "libnccl.so.2", "fake_nccl.c")
	sharedLibrary(t, "libuses_nccl.so", "fake_nccl.c", "-DUSER", fake)
	t.Run("nccl", func(t *testing.T) { run(t, preload, stubDir, env, program(t, "nccl"), "dlsym") })
}

// TestNCCL: NCCL's calls, found in every way that programs find them, against a stand-in for the library.
func TestNCCL(t *testing.T) {
	t.Parallel()
	stubDir := stub(t, current)
	fake := sharedLibrary(t, "libnccl.so.2", "fake_nccl.c")
	sharedLibrary(t, "libuses_nccl.so", "fake_nccl.c", "-DUSER", fake)
	linked := compile(t, "bin/nccl-linked", "nccl.c", "-DLINKED", fake)
	for _, level := range []string{"-O0", "-O2"} {
		h := hook(t, level)
		for _, route := range []string{"dlsym", "local"} {
			t.Run(route+level, func(t *testing.T) { run(t, h, stubDir, nil, program(t, "nccl"), route) })
		}
		t.Run("linked"+level, func(t *testing.T) { run(t, h, stubDir, nil, linked, "linked") })
		t.Run("non-blocking"+level, func(t *testing.T) {
			if out := run(t, h, stubDir, nil, linked, "linked", "non-blocking"); strings.Count(out, "NCCL_COMM_BLOCKING=1") != 1 {
				t.Errorf("stderr is %q, want one line that says what to do", out)
			}
		})
	}
}

// TestStub checks the test double itself, without the hook.
func TestStub(t *testing.T) {
	t.Parallel()
	stubDir := stub(t, current)
	for _, c := range []struct {
		mode string
		env  []string
	}{
		{"memory", []string{"STUB_TOTAL_BYTES=" + "16777216"}},
		{"streams", nil},
		{"ended", nil},
		{"vmm", nil},
		{"vmm no access", []string{"STUB_SCRIBBLE=1"}},
		{"fail", []string{"STUB_FAIL=cuMemAlloc:2,cuMemAllocManaged"}},
	} {
		t.Run(c.mode, func(t *testing.T) { run(t, "", stubDir, c.env, program(t, "stub"), c.mode) })
	}
}

// TestHarmlessAlone preloads the hook into programs that have nothing to do with CUDA.
func TestHarmlessAlone(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"true"}, {"sh", "-c", "exit 0"}, {"python3", "-c", "import ctypes, json, ssl"}} {
		if _, err := exec.LookPath(args[0]); err != nil {
			continue
		}
		if out := run(t, hook(t, "-O2"), "", nil, args[0], args[1:]...); out != "" {
			t.Errorf("%s: unexpected output: %s", args[0], out)
		}
	}
}

// TestPython drives the stub through ctypes, with a pool of forked workers.
func TestPython(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	for _, script := range []string{"ctypes_launch.py", "workers.py"} {
		t.Run(script, func(t *testing.T) {
			run(t, hook(t, "-O2"), stub(t, current), nil, "python3", filepath.Join("testdata", script))
		})
	}
}

// TestBenchRuns keeps the microbenchmark from rotting; it measures nothing.
func TestBenchRuns(t *testing.T) {
	t.Parallel()
	bench := once(t, "bin/bench", func(path string) error {
		return command("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-O2", "-o", path, "bench/bench.c", "-ldl", "-pthread")
	})
	out := run(t, hook(t, "-O2"), stub(t, current), nil, bench, "2000")
	if !strings.Contains(out, "observe") || !strings.Contains(out, "strict") {
		t.Errorf("no result in %q", out)
	}
}
