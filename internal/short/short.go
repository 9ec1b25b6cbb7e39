// Package short says how hard tests try. `make test` runs them with go test's -short and
// ends within minutes; `make test-all`, which continuous integration runs too, leaves nothing out.
// A test that tries many seeds tries some of them in short; one that takes long and
// whose subject others touch in short is left out. What only one test looks at is never left out.
package short

import "testing"

// Of is how many seeds, files or cases a test tries: all, or in short a part.
func Of(all, short int) int {
	if testing.Short() {
		return short
	}
	return all
}

// Skip leaves a test out in short.
func Skip(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: make test-all runs it")
	}
}
