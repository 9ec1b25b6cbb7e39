package schedule

import (
	"reflect"
	"testing"

	"github.com/penstock-gpu/penstock/testdata"
	"github.com/penstock-gpu/penstock/trace"
)

func shipped(t *testing.T) *trace.Trace {
	t.Helper()
	log, err := trace.Parse(testdata.GPT2MName, testdata.GPT2M)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// TestCut: the parts are an iteration, in order, and what backward makes for the update is as large as the weights.
func TestCut(t *testing.T) {
	log := shipped(t)
	c, err := Cut(log)
	if err != nil {
		t.Fatal(err)
	}
	all := log.Iterations()
	last := all[len(all)-1]
	if got, want := count(c.forward)+count(c.backward)+count(c.update), count(log.Events[last.First:last.End]); got != want || count(c.forward) == 0 || count(c.update) == 0 {
		t.Errorf("%d, %d and %d operations, want %d in all", count(c.forward), count(c.backward), count(c.update), want)
	}
	var weights, gradients int64
	touched := map[uint64]bool{}
	for _, e := range c.forward {
		for _, a := range e.Accesses {
			touched[a.Alloc] = true
		}
	}
	for _, e := range c.stays {
		if touched[e.Alloc] {
			weights += e.Bytes
		}
	}
	for _, e := range c.backward {
		if e.Kind == trace.KindAlloc && c.gradient[e.Alloc] {
			gradients += e.Bytes
		}
	}
	if gradients < weights*9/10 || gradients > weights*11/10 {
		t.Errorf("%d bytes of weights, %d of gradients", weights, gradients)
	}
	if _, err := Cut(&trace.Trace{}); err == nil {
		t.Error("nothing was taken apart")
	}
}

// TestSchedules: each is valid, says what its iterations run, is the same again, and leaves nothing behind but what stays.
func TestSchedules(t *testing.T) {
	log := shipped(t)
	for _, name := range Names() {
		made, programs, err := New(name, log)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all := made.Iterations()
		if len(all) != len(programs) || len(all) < 12 {
			t.Errorf("%s: %d iterations, %d programs", name, len(all), len(programs))
		}
		var live, atFirst int64
		sizes := map[uint64]int64{}
		for i, e := range made.Events {
			if i == all[0].First {
				atFirst = live
			}
			switch e.Kind {
			case trace.KindAlloc:
				live += e.Bytes
				sizes[e.Alloc] = e.Bytes
			case trace.KindFree:
				live -= sizes[e.Alloc]
			}
		}
		if live != atFirst || live == 0 {
			t.Errorf("%s: %d bytes are left, %d stay", name, live, atFirst)
		}
	}
	one, _, _ := New("layer-drop", log)
	if two, _, _ := New("layer-drop", log); !reflect.DeepEqual(one, two) {
		t.Error("not the same again")
	}
	if _, _, err := New("nothing", log); err == nil {
		t.Error("there is no such schedule")
	}
}
