// Package testlogs gives tests the launch logs of real training runs that lie
// beside the repository on development machines. They are too large to be part of
// it, and nothing but tests may use them. A test that asks for one is skipped,
// with the reason, where they are missing.
package testlogs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

// Load loads a log for a test in a package one folder below the root.
func Load(t testing.TB, name string) *trace.Trace {
	t.Helper()
	path := filepath.Join("..", "..", "shared", "traces", name+".tsv.gz")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no shared launch logs on this machine: %v", err)
	}
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}
