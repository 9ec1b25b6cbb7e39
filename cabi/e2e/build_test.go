package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// buildDir holds the three libraries and the programs; each is built once.
var buildDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	buildDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// readSources makes a cached result depend on what the compilers read, which the
// go command does not see: the engine is built as a program of its own. It is called
// in a test, as the go command does not see what TestMain reads.
func readSources() error {
	return filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		switch name := filepath.Base(path); {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(name, ".") && name != ".." || name == "build" || name == "bench"):
			return filepath.SkipDir
		case d.Type().IsRegular() && slices.Contains([]string{".go", ".c", ".h", ".def", ".map", ".py"}, filepath.Ext(name)) && !strings.HasSuffix(name, "_test.go"):
			_, err = os.ReadFile(path)
		}
		return err
	})
}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// libraries builds the stub driver, the hook and the engine.
var libraries = sync.OnceValue(func() error {
	if err := readSources(); err != nil {
		return err
	}
	if err := command("make", "-s", "-C", "../stub", "OUT="+filepath.Join(buildDir, "libcuda.so.1"), "STUB_VERSION=13050"); err != nil {
		return err
	}
	if err := command("make", "-s", "-C", "../hook", "OUT="+filepath.Join(buildDir, "libpenstock_hook.so")); err != nil {
		return err
	}
	names, err := declared()
	if err != nil {
		return err
	}
	script := filepath.Join(buildDir, "exports.map")
	if err := os.WriteFile(script, []byte("{ global:\n"+strings.Join(names, ";\n")+";\nlocal: *; };\n"), 0o644); err != nil {
		return err
	}
	return command("go", "build", "-buildvcs=false", "-trimpath", "-buildmode=c-shared",
		"-ldflags", "-extldflags '-Wl,--version-script="+script+"'", "-o", filepath.Join(buildDir, "libpenstock.so"), "..")
})

// declared are the functions that penstock.h declares, sorted.
func declared() ([]string, error) {
	text, err := os.ReadFile("../penstock.h")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^[a-z][a-z_ ]*[ *](penstock_[a-z0-9_]+)\(`).FindAllSubmatch(text, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) == 0 {
		return nil, errors.New("penstock.h declares nothing")
	}
	slices.Sort(names)
	return names, nil
}

// need skips the test where the libraries cannot be built, and builds them.
func need(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("the hook supports Linux on x86-64 only")
	}
	for _, tool := range []string{"gcc", "make", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s: the libraries cannot be built", tool)
		}
	}
	if err := libraries(); err != nil {
		t.Fatal(err)
	}
}

var programs sync.Map // name: func() error

// program builds a program from testdata and returns its path.
func program(t *testing.T, name string) string {
	t.Helper()
	need(t)
	path := filepath.Join(buildDir, name)
	build, _ := programs.LoadOrStore(name, sync.OnceValue(func() error {
		return command("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unused-variable", "-O1", "-g",
			"-o", path, filepath.Join("testdata", name+".c"), "-ldl", "-pthread")
	}))
	if err := build.(func() error)(); err != nil {
		t.Fatal(err)
	}
	return path
}

// budgets are the same everywhere: a job of three and a half times the device.
var budgets = []string{"PENSTOCK_BUDGET=64MiB", "PENSTOCK_HOST_BUDGET=512MiB", "PENSTOCK_MANAGED_LIMIT=1GiB"}

// environment is the test's own, without what would disturb, with the libraries found. The engine is the managed one where a
// test does not name another. Later entries win.
func environment(extra ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PENSTOCK_") || strings.HasPrefix(kv, "STUB_") || strings.HasPrefix(kv, "LD_")
	})
	const dirtyHeap = "MALLOC_PERTURB_=165" // malloc gives out memory that is full of something: nothing passes because it was zeros
	env = append(env, "PENSTOCK_TOP=0", "PENSTOCK_ENGINE=managed", "LD_LIBRARY_PATH="+buildDir, "LD_PRELOAD="+filepath.Join(buildDir, "libpenstock_hook.so"), dirtyHeap, "STUB_SCRIBBLE=1")
	return append(append(env, budgets...), extra...)
}

// result is how a program ended.
type result struct {
	code           int
	stdout, stderr string
}

// line is the rest of the line of stdout that starts with a word.
func (r result) line(t *testing.T, word string) string {
	t.Helper()
	for l := range strings.Lines(r.stdout) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(l), word+" "); ok {
			return rest
		}
	}
	t.Fatalf("no %s in the output:\n%s\n%s", word, r.stdout, r.stderr)
	return ""
}

// run runs a program to its end; one that hangs or is killed fails the test.
func run(t *testing.T, env []string, name string, args ...string) result {
	t.Helper()
	const limit = 5 * time.Minute // the longest takes 15 s alone, of the CPU, and may sleep for 90 s
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = environment(env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		t.Fatalf("%s %v: still running after %s\n%s%s", filepath.Base(name), args, limit, r.stdout, r.stderr)
	case err != nil && !errors.As(err, &exit), r.code < 0:
		t.Fatalf("%s %v: %v\n%s%s", filepath.Base(name), args, err, r.stdout, r.stderr)
	}
	return r
}

// mustRun is run for programs that have to end well.
func mustRun(t *testing.T, env []string, name string, args ...string) result {
	t.Helper()
	r := run(t, env, name, args...)
	if r.code != 0 {
		t.Fatalf("%s %v: exit status %d\n%s%s", filepath.Base(name), args, r.code, r.stdout, r.stderr)
	}
	return r
}
