package testlogs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

// Load loads a log for a test in any package.
func Load(t testing.TB, name string) *trace.Trace {
	t.Helper()
	root := "."
	for up := root; len(up) < 30; up = filepath.Join("..", up) {
		if _, err := os.Stat(filepath.Join(up, "go.mod")); err == nil {
			root = up
			break
		}
	}
	path := filepath.Join(root, "..", "shared", "traces", name+".tsv.gz")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no shared launch logs on this machine: %v", err)
	}
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}
