// Package cudastub gives tests the real driver binding on the test double of
// cabi/stub, within the test's own process. Streams are threads, memory is
// memory, and an access to an unmapped address kills the process: what passes
// here has really moved its bytes.
//
// Each Open has a driver of its own, with nothing allocated: the library is
// built once per test binary and loaded from a new copy each time. It is never
// unloaded. The environment of stub.h (STUB_FAIL and the like) is read from the
// process; give it to Open, which sets it for the duration of the test. Tests
// that do so cannot run in parallel. Where there is no C compiler the test is
// skipped.
//
// A test that starts its own binary again gives it the built library in
// CUDASTUB_LIBRARY (see Library), which spares it the compiler.
//
// The double's own functions are methods of Driver: what it counts, what fails.
package cudastub

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdint.h>
// #include <stdlib.h>
// static uint64_t count(void *f, const char *name) { return ((uint64_t (*)(const char *))f)(name); }
// static void reset(void *f) { ((void (*)(void))f)(); }
// static void fail(void *f, const char *spec) { ((void (*)(const char *))f)(spec); }
// static uint64_t resident(void *f, uint64_t p, size_t n) { return ((uint64_t (*)(uint64_t, size_t))f)(p, n); }
import "C"

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/penstock-gpu/penstock/cuda"
)

// build compiles the double.
var build = sync.OnceValues(func() ([]byte, error) {
	if built := os.Getenv(libraryVariable); built != "" {
		return os.ReadFile(built)
	}
	source, err := findSource()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "cudastub")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	library := filepath.Join(dir, "libcuda.so.1")
	if err := readSources(source); err != nil {
		return nil, err
	}
	if out, err := exec.Command("make", "-s", "-C", source, "OUT="+library, "CFLAGS=-O1 -g").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make -C %s: %w\n%s", source, err, out)
	}
	return os.ReadFile(library)
})

// findSource is the double's folder in the repository, in which every test has its working directory.
func findSource() (string, error) {
	for up := "."; len(up) < 64; up = filepath.Join("..", up) {
		source := filepath.Join(up, "cabi", "stub")
		if _, err := os.Stat(source); err == nil {
			return filepath.Abs(source)
		}
	}
	return "", errors.New("the source of the stub driver cannot be found")
}

// readSources makes a cached test result depend on what only the compiler reads.
func readSources(folder string) error {
	for _, pattern := range []string{"*", "../hook/*.h", "../hook/*.def"} {
		files, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			if _, err := os.ReadFile(f); err != nil {
				return err
			}
		}
	}
	return nil
}

const libraryVariable = "CUDASTUB_LIBRARY"

// Library is the environment entry that spares a child process of the test the
// building. It is gone at the end of the test.
func (d *Driver) Library() string { return libraryVariable + "=" + d.path }

// Driver is the binding on a test double of its own.
type Driver struct {
	*cuda.Native
	t      testing.TB
	path   string // of the loaded copy
	handle unsafe.Pointer
	module cuda.Module
}

// Open is a fresh driver, its context current on the calling thread, which
// stays the test's own. env are settings such as "STUB_TOTAL_BYTES=268435456".
func Open(t testing.TB, env ...string) *Driver {
	t.Helper()
	for _, tool := range []string{"make", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s: the stub driver cannot be built", tool)
		}
	}
	image, err := build()
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	library := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(library, image, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := cuda.OpenNative(cuda.Options{Library: library})
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	if err := d.BindThread(); err != nil {
		t.Fatal(err)
	}
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	handle := C.dlopen(name, C.RTLD_NOW|C.RTLD_NOLOAD)
	if handle == nil {
		t.Fatal("the stub driver is not loaded")
	}
	return &Driver{Native: d, t: t, path: library, handle: handle}
}

func (d *Driver) symbol(name string) unsafe.Pointer {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	p := C.dlsym(d.handle, s)
	if p == nil {
		d.t.Fatalf("the stub driver has no %s", name)
	}
	return p
}

// Count is a counter of stub.h by name. An unknown name is 0.
func (d *Driver) Count(name string) int64 {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return int64(C.count(d.symbol("stub_count"), s))
}

// ResetCounts sets the counters to 0 and the peaks to the present.
func (d *Driver) ResetCounts() { C.reset(d.symbol("stub_reset_counts")) }

// Fail says what fails from now on, as STUB_FAIL does: "cuMemCreate:3" is the
// third creation from here; "" is nothing.
func (d *Driver) Fail(spec string) {
	s := C.CString(spec)
	defer C.free(unsafe.Pointer(s))
	C.fail(d.symbol("stub_fail"), s)
}

// Resident is how much of a range is in device memory.
func (d *Driver) Resident(r cuda.Range) int64 {
	return int64(C.resident(d.symbol("stub_resident_bytes"), C.uint64_t(r.Base), C.size_t(r.Bytes)))
}

// Function is one of the double's kernels, such as "touch_add".
func (d *Driver) Function(name string) cuda.Function {
	d.t.Helper()
	var err error
	if d.module == 0 {
		if d.module, err = d.LoadModule([]byte("any image has every kernel")); err != nil {
			d.t.Fatal(err)
		}
	}
	f, err := d.ModuleFunction(d.module, name)
	if err != nil {
		d.t.Fatal(err)
	}
	return f
}
