package livetest

import (
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// Memory is who serves a job.
type Memory interface {
	Malloc(bytes int64, stream uint64) (cuda.Ptr, error)
	Free(p cuda.Ptr) error
	Stats() stats.Stats
	Close() error
}

// Test is a test of who serves a job.
type Test struct {
	*testing.T
	Memory Memory
}

// Must fails at once where there is an error.
func (t *Test) Must(err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// MallocOn allocates so many bytes for work on a stream.
func (t *Test) MallocOn(bytes int64, stream uint64) cuda.Ptr {
	t.Helper()
	p, err := t.Memory.Malloc(bytes, stream)
	t.Must(err)
	return p
}

// Eventually waits for what the engine's threads bring about.
func (t *Test) Eventually(what string, holds func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(until) {
			t.Fatalf("not so after 20 s: %s\n%+v", what, t.Memory.Stats())
		}
	}
}
