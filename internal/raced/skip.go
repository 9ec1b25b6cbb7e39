package raced

import "testing"

// Skip skips such a test.
func Skip(t testing.TB) {
	t.Helper()
	if On {
		t.Skip("one thread only: slow under the race detector, and nothing to find; its package is tested without it too")
	}
}
