package hooktest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// buildDir holds everything that the tests build. One for all tests: a library
// is built once.
var buildDir string

// sources reads what the compilers read, which the go command does not see, so that a
// cached result depends on it. In a test, as the go command does not see what TestMain reads.
var sources = sync.OnceValue(func() error {
	for _, root := range []string{"../hook", "../stub", "../../bench/probe", "testdata", "bench"} {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				_, err = os.ReadFile(path)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hooktest")
	if err != nil {
		fmt.Fprintln(os.Stderr, "hooktest:", err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

var built sync.Map // path: *sync.Once and error behind it

type build struct {
	once sync.Once
	err  error
}

// once runs make at most once for a path below buildDir and returns the path.
func once(t *testing.T, rel string, make func(path string) error) string {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the hook supports Linux on x86-64 only")
	}
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc: the hook cannot be built")
	}
	if err := sources(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(buildDir, rel)
	v, _ := built.LoadOrStore(path, &build{})
	b := v.(*build)
	b.once.Do(func() {
		if b.err = os.MkdirAll(filepath.Dir(path), 0o755); b.err == nil {
			b.err = make(path)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return path
}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// hook builds the hook at an optimisation level, "-O2" being what ships.
func hook(t *testing.T, level string) string {
	return once(t, filepath.Join("hook"+level, "libpenstock_hook.so"), func(path string) error {
		return command("make", "-s", "-C", "../hook", "OUT="+path, "CFLAGS="+level+" -g")
	})
}

// stub builds the stub driver of a CUDA version and returns the directory it is in.
func stub(t *testing.T, version string) string {
	return filepath.Dir(once(t, filepath.Join("stub"+version, "libcuda.so.1"), func(path string) error {
		return command("make", "-s", "-C", "../stub", "OUT="+path, "STUB_VERSION="+version)
	}))
}

// sanitized builds the hook and the stub driver with AddressSanitizer and UndefinedBehaviorSanitizer. It returns
// what to preload, the sanitizer being first, and the directory of the stub.
func sanitized(t *testing.T) (preload, stubDir string) {
	const flags = "CFLAGS=-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
	out, _ := exec.Command("gcc", "-print-file-name=libasan.so").Output()
	asan, err := filepath.EvalSymlinks(strings.TrimSpace(string(out)))
	if err != nil {
		t.Skip("gcc has no AddressSanitizer: ", err) // it then prints the bare name
	}
	h := once(t, "sanitized/libpenstock_hook.so", func(path string) error { return command("make", "-s", "-C", "../hook", "OUT="+path, flags) })
	s := once(t, "sanitized/libcuda.so.1", func(path string) error {
		return command("make", "-s", "-C", "../stub", "OUT="+path, "STUB_VERSION="+current, flags)
	})
	return asan + ":" + h, filepath.Dir(s)
}

var cflags = []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-O1", "-g"}

// compile builds a program or library from testdata.
func compile(t *testing.T, out, source string, args ...string) string {
	return once(t, out, func(path string) error {
		all := append(append([]string{}, cflags...), "-o", path, filepath.Join("testdata", source))
		return command("gcc", append(append(all, args...), "-ldl", "-pthread")...)
	})
}

func program(t *testing.T, name string) string {
	return compile(t, filepath.Join("bin", name), name+".c")
}

func sharedLibrary(t *testing.T, out, source string, args ...string) string {
	return compile(t, filepath.Join("lib", out), source, append([]string{"-shared", "-fPIC", "-Wl,-soname," + out}, args...)...)
}

// dirtyHeap has malloc give out memory that is full of something, so that no program passes because it was zeros.
const dirtyHeap = "MALLOC_PERTURB_=165"

const current = "13050" // CUDA version of the stub unless a test says otherwise

// run runs a command with the hook preloaded and the stub driver found, and
// fails the test when it fails or hangs.
func run(t *testing.T, hookPath, stubDir string, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+stubDir+":"+filepath.Join(buildDir, "lib"), dirtyHeap)
	if hookPath != "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+hookPath)
	}
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s %s: still running after two minutes\n%s", filepath.Base(name), strings.Join(args, " "), out)
	}
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out)
}
