package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/replay"
)

func demoProfileForTest(t *testing.T) sim.Profile {
	t.Helper()
	p, err := sim.ProfileByName(demoProfile)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDemo(t *testing.T) {
	fakeReplays(t, plausible)
	t.Chdir(t.TempDir())
	status, stdout, stderr := command(t, "demo")
	if status != 0 {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	for _, want := range []string{"simulated NVIDIA H200", "1.25x", "1.5x", "2x", "3x", "naive", "lru", "deepum", "penstock", "penstock (explicit)", "bound", "bound with replay (explicit)", "does a part of that", "no GPU was used", "demo.html"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in:\n%s", want, stdout)
		}
	}
	if strings.Contains(stderr+stdout, "\r") || strings.Contains(stderr+stdout, "\x1b") || !strings.Contains(stderr, "32/32 ") {
		t.Errorf("no terminal, so plain lines: %q", stderr)
	}
	page, err := os.ReadFile("demo.html")
	if err != nil || !strings.Contains(string(page), "<svg") || strings.Contains(string(page), "src=\"http") {
		t.Errorf("page of %d bytes, %v", len(page), err)
	}
}

func TestDemoPage(t *testing.T) {
	fakeReplays(t, plausible)
	refused(t, []string{"--html", "make the folder"}, "demo", "--html", filepath.Join(t.TempDir(), "no", "such.html"))
	refused(t, []string{"--html", "is a folder"}, "demo", "--html", t.TempDir())

	// A page that cannot be rendered leaves the old one, and the table is shown all the same.
	real := writeHTML
	defer func() { writeHTML = real }()
	writeHTML = func(w io.Writer, _ string, results []replay.Result) error {
		if len(results) != 32 || results[0].Timeline == nil {
			t.Errorf("%d results, timeline %v", len(results), results[0].Timeline)
		}
		io.WriteString(w, "half a p")
		return errors.New("no ink")
	}
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := command(t, "demo", "--html", path)
	if status != statusInternal || !strings.Contains(stderr, "no ink") || !strings.Contains(stdout, "penstock runs at") {
		t.Errorf("status %d, stderr %q", status, stderr)
	}
	if old, _ := os.ReadFile(path); string(old) != "old" {
		t.Errorf("the old page is now %q", old)
	}
}
