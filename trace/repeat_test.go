package trace_test

import (
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/trace"
)

// A weight lives on, each iteration leaves one allocation to the next, and the end frees both.
const steadyLog = "A\t0\t4096\nN\t0\t1\t_Zstep\n" +
	"M\titer0\nA\t1\t512\nA\t2\t1024\nK\t0\t(nil)\t0\t1\t1\t1\t32\t1\t1\t0+0\t2+0\nF\t1\n" +
	"M\titer1\nA\t3\t512\nK\t1\t(nil)\t0\t1\t1\t1\t32\t1\t1\t0+0\t2+64\nF\t2\nA\t4\t1024\nF\t3\n" +
	"M\tend\nF\t4\nF\t0\nT\t0\t10\nT\t1\t20\nS\n"

func TestRepeat(t *testing.T) {
	tr, err := trace.Parse("steady.tsv", []byte(steadyLog))
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if same, err := tr.Repeat(n); same != tr || err != nil {
			t.Fatalf("%d iterations of a trace of two: %v", n, err)
		}
	}
	long, err := tr.Repeat(4)
	if err != nil {
		t.Fatal(err)
	}
	iterations := long.Iterations()
	if len(iterations) != 4 || long.PeakLiveBytes() != tr.PeakLiveBytes() {
		t.Fatalf("%d iterations, %d bytes at the peak of %d", len(iterations), long.PeakLiveBytes(), tr.PeakLiveBytes())
	}
	inherited := uint64(4)
	for _, r := range iterations[2:] {
		e := long.Events[r.First:r.End]
		if e[1].Accesses[0].Alloc != 0 || e[1].Accesses[1] != (trace.Access{Alloc: inherited, Offset: 64}) || e[2].Alloc != inherited || e[4].Alloc != e[0].Alloc {
			t.Errorf("%s: %+v", r.Name, e)
		}
		inherited = e[3].Alloc
	}
	if tail := long.Events[iterations[3].End:]; tail[1].Alloc != inherited || tail[2].Alloc != 0 {
		t.Errorf("at the end: %+v", tail)
	}
}

// A buffer of the beginning dies in the last iteration, and what an iteration makes lives until the end of the one after the next.
func TestRepeatOneOff(t *testing.T) {
	log := "A\t0\t4096\nA\t9\t4096\nN\t0\t1\t_Zstep\n"
	log += "M\titer0\nA\t1\t512\nM\titer1\nA\t2\t512\nM\titer2\nA\t3\t512\nK\t0\t(nil)\t0\t1\t1\t1\t32\t1\t1\t0+0\t2+0\nF\t1\nF\t9\n"
	tr, err := trace.Parse("one-off.tsv", []byte(log+"M\tend\nF\t2\nF\t3\nT\t0\t10\nS\n"))
	if err != nil {
		t.Fatal(err)
	}
	long, err := tr.Repeat(6)
	if err != nil {
		t.Fatal(err)
	}
	iterations := long.Iterations()
	born := []uint64{1, 2, 3}
	for _, r := range iterations[3:] {
		e := long.Events[r.First:r.End]
		if len(e) != 3 || e[2].Alloc != born[1] || e[1].Accesses[1].Alloc != born[2] {
			t.Errorf("%s after %v: %+v", r.Name, born, e)
		}
		born = append(born[1:], e[0].Alloc)
	}
	if tail := long.Events[iterations[5].End:]; tail[1].Alloc != born[1] || tail[2].Alloc != born[2] {
		t.Errorf("at the end: %+v", tail)
	}
}

func TestCannotRepeat(t *testing.T) {
	for name, log := range map[string]string{
		"1 full iterations":    "M\titer0\nM\tend\n",
		"different":            "M\titer0\nA\t0\t512\nF\t0\nM\titer1\nA\t1\t1024\nF\t1\nM\tend\n",
		"cannot follow itself": "A\t0\t512\nN\t0\t1\t_Zstep\nM\titer0\nM\titer1\nK\t0\t(nil)\t0\t1\t1\t1\t32\t1\t1\t0+0\nF\t0\nM\tend\n",
	} {
		tr, err := trace.Parse("odd.tsv", []byte(log+"S\n"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.Repeat(3); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
