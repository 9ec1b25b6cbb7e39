//go:build linux

package bpf

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const guestFolder = "../../kmod-patch/guest"

// TestGuest boots a Debian kernel under QEMU, loads stand-ins for nvidia-uvm of
// every layout and runs TestInGuest there against each.
func TestGuest(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a kernel, which takes a minute")
	}
	if os.Getenv("PENSTOCK_GUEST") != "" {
		t.Skip("this is the guest")
	}
	binary, penstock := filepath.Join(t.TempDir(), "guest.test"), filepath.Join(t.TempDir(), "penstock")
	build := exec.Command("go", "test", "-c", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // runs where there is nothing else
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the guest's test: %v\n%s", err, out)
	}
	build = exec.Command("go", "build", "-ldflags", "-extldflags '-Wl,-z,lazy'", "-o", penstock, "../../cmd/penstock")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building penstock for the guest: %v\n%s", err, out)
	}
	var out, problem bytes.Buffer
	run := exec.Command(filepath.Join(guestFolder, "run"), binary, penstock)
	run.Stdout, run.Stderr = &out, &problem
	begin := time.Now()
	err := run.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skipf("no guest on this machine: %s; kmod-patch/guest/setup installs what it takes", strings.TrimSpace(problem.String()))
	}
	text := out.String()
	if err != nil {
		t.Fatalf("the guest did not come to its end: %v\n%s\n%s", err, problem.String(), text)
	}
	ended := regexp.MustCompile(`guest: end (\S+), status (\d+)`).FindAllStringSubmatch(text, -1)
	for _, m := range ended {
		if m[2] != "0" {
			t.Errorf("stand-in %s failed in the guest", m[1])
		}
	}
	if passed := strings.Count(text, "--- PASS: TestInGuest "); len(ended) != guestModules || passed != guestModules {
		t.Errorf("%d of %d stand-ins were tested, %d passed", len(ended), guestModules, passed)
	}
	if !strings.Contains(text, "--- PASS: TestInGuest/command ") {
		t.Error("penstock faults record --system was not tried")
	}
	if t.Failed() {
		t.Log(text)
	}
	t.Logf("%d stand-ins in %v", len(ended), time.Since(begin).Round(time.Second))
}

// guestModules is how many stand-ins kmod-patch/guest/run builds.
const guestModules = 8
