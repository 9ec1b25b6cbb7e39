package trace_test

import (
	"slices"
	"strconv"
	"testing"

	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
)

// job is a training job of layers, with marks if asked for; the functions of its start-up,
// its iterations and its end are told apart by number.
func job(iterations int, marks bool) *trace.Trace {
	t := &trace.Trace{}
	var next uint64
	add := func(e trace.Event) { t.Events = append(t.Events, e) }
	alloc := func() uint64 {
		next++
		add(trace.Event{Kind: trace.KindAlloc, Alloc: next, Bytes: 1 << 20})
		return next
	}
	mark := func(name string) {
		if marks {
			add(trace.Event{Kind: trace.KindMark, Name: name})
		}
	}
	for f := range uint32(40) {
		add(trace.Event{Kind: trace.KindFunction, Function: f, Name: "f"})
	}
	launch := func(f uint32, ids ...uint64) {
		e := trace.Event{Kind: trace.KindLaunch, Function: f}
		for _, id := range ids {
			e.Accesses = append(e.Accesses, trace.Access{Alloc: id})
		}
		add(e)
	}
	for f := range uint32(9) {
		launch(f, alloc())
	}
	for n := range iterations {
		mark("iter" + strconv.Itoa(n))
		launch(20)
		var kept []uint64
		for range 30 {
			id := alloc()
			kept = append(kept, id)
			launch(21, id)
			launch(22, id)
		}
		for _, id := range kept {
			launch(23, id)
			launch(24, id)
			add(trace.Event{Kind: trace.KindFree, Alloc: id})
		}
		launch(25)
	}
	mark(trace.MarkEnd)
	for f := range uint32(7) {
		launch(30 + f)
	}
	return t
}

func TestMarkIterations(t *testing.T) {
	tr := job(4, false)
	if !tr.MarkIterations() {
		t.Fatal("no iterations")
	}
	if err := tr.Validate(); err != nil {
		t.Fatal(err)
	}
	want := job(4, true).Iterations()
	if got := tr.Iterations(); len(got) != 4 && len(got) != 3 {
		t.Errorf("%d iterations, want %d", len(got), len(want))
	}
	for _, r := range tr.Iterations() {
		var launches, births int
		for _, e := range tr.Events[r.First:r.End] {
			switch e.Kind {
			case trace.KindLaunch:
				launches++
			case trace.KindAlloc:
				births++
			}
		}
		if launches != 122 || births != 30 {
			t.Errorf("%s: %d launches and %d allocations", r.Name, launches, births)
		}
	}
	if _, err := tr.Repeat(9); err != nil {
		t.Error(err)
	}

	marked := job(4, true)
	events := slices.Clone(marked.Events)
	if !marked.MarkIterations() || len(marked.Events) != len(events) {
		t.Error("marks were put into a trace that has them")
	}
	for _, n := range []int{0, 1} {
		if tr := job(n, false); tr.MarkIterations() {
			t.Errorf("iterations in a job of %d: %v", n, tr.Iterations())
		}
	}
}

// TestMarkIterationsOfLogs: marks that are taken out of a log come back where they were.
func TestMarkIterationsOfLogs(t *testing.T) {
	for _, name := range []string{"gpt2m", "resnet152", "moe"} {
		log := testlogs.Load(t, name)
		places := func(t *trace.Trace) (at []int) {
			ops := 0
			for _, e := range t.Events {
				switch {
				case e.Kind == trace.KindLaunch || e.Kind == trace.KindCopy:
					ops++
				case e.Kind == trace.KindMark && (e.Name == trace.MarkEnd || e.Name[:4] == "iter"):
					at = append(at, ops)
				}
			}
			return at
		}
		want := places(log)[1:] // the first iteration launches other kernels
		bare := *log
		bare.Events = slices.DeleteFunc(slices.Clone(log.Events), func(e trace.Event) bool { return e.Kind == trace.KindMark })
		if !bare.MarkIterations() {
			t.Fatal(name)
		}
		if got := places(&bare); !slices.Equal(got, want) {
			t.Errorf("%s: marks at operations %v, want %v", name, got, want)
		}
	}
}
