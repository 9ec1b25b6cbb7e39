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

// TestMarkDiffering: iterations of which no two are alike are found, and the later half of them is judged.
func TestMarkDiffering(t *testing.T) {
	for name, shared := range map[string]int{"bert-buckets": 60, "bert-text": 60, "gpt2l-lengths": 50, "graph": 27, "resnet-sizes": 55, "speech": 80} {
		recording, err := trace.Load("../testdata/traces/changing/" + name + ".pstrace")
		if err != nil {
			t.Fatal(err)
		}
		if recording.MarkIterations() || !recording.MarkDiffering() {
			t.Errorf("%s: no iterations, or alike ones", name)
			continue
		}
		if err := recording.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// Ten were recorded. They begin with what comes once in each, so that the last one has no end.
		all := recording.Iterations()
		if judged, n := recording.Judged(); len(all) != 9 || n != 5 || judged.First != all[4].First || judged.End != all[8].End {
			t.Errorf("%s: %d iterations, %d judged, events %d to %d", name, len(all), n, judged.First, judged.End)
		}
		launches := map[uint32]int{}
		for _, r := range all {
			seen := map[uint32]bool{}
			for _, e := range recording.Events[r.First:r.End] {
				if e.Kind == trace.KindLaunch && !seen[e.Function] {
					seen[e.Function] = true
					launches[e.Function]++
				}
			}
		}
		in := 0
		for _, n := range launches {
			if n == len(all) {
				in++
			}
		}
		if in < shared {
			t.Errorf("%s: %d functions are launched in every iteration, want %d", name, in, shared)
		}
	}
}

// varying is a job of which no two iterations are alike: they have more layers each time, or fewer, and one launches other functions.
func varying(layers ...int) *trace.Trace {
	t := &trace.Trace{}
	id := uint64(0)
	launch := func(f uint32, of ...uint64) {
		e := trace.Event{Kind: trace.KindLaunch, Function: f}
		for _, id := range of {
			e.Accesses = append(e.Accesses, trace.Access{Alloc: id})
		}
		t.Events = append(t.Events, e)
	}
	for i, n := range layers {
		var kept []uint64
		for range n {
			id++
			kept = append(kept, id)
			t.Events = append(t.Events, trace.Event{Kind: trace.KindAlloc, Alloc: id, Bytes: int64(n) << 20})
			launch(uint32(1+i%2), id)
			launch(3, id)
		}
		launch(4)
		for _, id := range kept {
			launch(5, id)
			t.Events = append(t.Events, trace.Event{Kind: trace.KindFree, Alloc: id})
		}
		for range 12 {
			launch(6)
		}
		launch(7)
	}
	return t
}

func TestMarkDifferingWhereFewestAreLive(t *testing.T) {
	job := varying(20, 23, 19, 22, 25, 20)
	if job.MarkIterations() || !job.MarkDiffering() {
		t.Fatal("no iterations, or alike ones")
	}
	all := job.Iterations()
	if len(all) != 5 || job.Events[all[0].First].Function != 7 { // not 4, in the middle of it
		t.Errorf("%d iterations, the first begins with %+v", len(all), job.Events[all[0].First])
	}
	for _, layers := range [][]int{nil, {20}, {20, 23}} {
		if job := varying(layers...); job.MarkDiffering() || job.Differ {
			t.Errorf("%v: %d iterations", layers, len(job.Iterations()))
		}
	}
}
