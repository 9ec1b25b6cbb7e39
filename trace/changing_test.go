package trace_test

import (
	"path/filepath"
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

// TestChangingRecordings: the recordings of jobs whose shapes change are whole, and what they launch on is live.
func TestChangingRecordings(t *testing.T) {
	paths, err := filepath.Glob("../testdata/traces/changing/*.pstrace")
	if err != nil || len(paths) != 6 {
		t.Fatalf("%v: %v", paths, err)
	}
	for _, path := range paths {
		recording, err := trace.Load(path)
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(path), err)
			continue
		}
		live, launches := map[uint64]bool{}, 0
		for i, e := range recording.Events {
			switch e.Kind {
			case trace.KindAlloc:
				live[e.Alloc] = true
			case trace.KindFree:
				delete(live, e.Alloc)
			case trace.KindLaunch:
				launches++
				for _, a := range e.Accesses {
					if !live[a.Alloc] {
						t.Fatalf("%s: event %d: allocation %d is not live", filepath.Base(path), i, a.Alloc)
					}
				}
			}
		}
		if launches < 500 {
			t.Errorf("%s: %d launches", filepath.Base(path), launches)
		}
	}
}
