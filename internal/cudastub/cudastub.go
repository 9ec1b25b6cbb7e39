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
package cudastub

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

	"github.com/penstock-gpu/penstock/cuda"
)

// build compiles the double.
var build = sync.OnceValues(func() ([]byte, error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return nil, errors.New("the source of the stub driver cannot be found")
	}
	dir, err := os.MkdirTemp("", "cudastub")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	library := filepath.Join(dir, "libcuda.so.1")
	source := filepath.Join(filepath.Dir(here), "..", "..", "cabi", "stub")
	if out, err := exec.Command("make", "-s", "-C", source, "OUT="+library).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make -C %s: %w\n%s", source, err, out)
	}
	return os.ReadFile(library)
})

// Open is a fresh driver, its context current on the calling thread, which
// stays the test's own. env are settings such as "STUB_TOTAL_BYTES=268435456".
func Open(t testing.TB, env ...string) *cuda.Native {
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
	return d
}
