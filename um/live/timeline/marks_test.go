package timeline

import (
	"slices"
	"testing"
	"time"
)

// job launches operations of one stream and finishes them so many launches later, one a microsecond.
type job struct {
	Timeline
	seq   uint64
	delay uint64
}

func (j *job) launch(period int64, name string, n int) {
	for range n {
		j.seq++
		j.Launched(0, j.seq, name, int64(j.seq), period)
		if j.seq > j.delay {
			j.Done(0, j.seq-j.delay, time.Duration(j.seq)*us)
		}
	}
}

const optimizerKernel = "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataE"

// An iteration begins behind the optimizer, whatever else it launches, and marks have the time at which the GPU came there.
func TestMarksOfAnOptimizer(t *testing.T) {
	for _, delay := range []uint64{0, 10, 150} {
		j := &job{delay: delay}
		for range 4 {
			j.launch(0, "gemm", 100)
			j.launch(0, optimizerKernel, 3)
			j.launch(0, "fill", betweenForeach) // the optimizer goes on behind it
			j.launch(0, optimizerKernel, 2)
		}
		j.launch(0, "gemm", 300)
		each := 100 + 3 + betweenForeach + 2
		var want []Mark
		for i := range 4 {
			at := func(seq int) time.Duration { return time.Duration(uint64(seq)+delay) * us }
			want = append(want, Mark{Optimizer, at(i*each + 101)}, Mark{Iteration, at((i+1)*each + 1)})
		}
		slices.SortFunc(j.marks.set, func(a, b Mark) int { return int(a.At - b.At) })
		if !slices.Equal(j.marks.set, want) {
			t.Errorf("with the GPU %d launches behind: %v, want %v", delay, j.marks.set, want)
		}
		if len(j.marks.waiting) > 1 {
			t.Errorf("%d marks wait", len(j.marks.waiting))
		}
	}
}

// Without kernels of an optimizer the length of an iteration is all that is known.
func TestMarksOfAPeriod(t *testing.T) {
	j := &job{delay: 5}
	j.launch(0, "gemm", 30)
	j.launch(7, "gemm", 3*steadyOps) // a part of an iteration, at first
	if len(j.marks.set) == 0 {
		t.Error("what is the same again for so long is not marked")
	}
	j.launch(100, "gemm", 50)
	j.launch(96, "gemm", 150) // about the same
	begins := time.Duration(30+3*steadyOps+1) * us
	want := []Mark{{Iteration, begins + 105*us}}
	if !slices.Equal(j.marks.set, want) {
		t.Errorf("%v, want %v", j.marks.set, want)
	}
	j.launch(40, "gemm", 99) // another shape: what was marked stays
	want = append(want, Mark{Iteration, begins + (100+96+5)*us}, Mark{Iteration, begins + (200+steadyOps+5)*us})
	if !slices.Equal(j.marks.set, want) {
		t.Errorf("%v, want %v", j.marks.set, want)
	}
}

func TestMarksAreBounded(t *testing.T) {
	l := &Timeline{}
	for i := range int64(mostMarks) + 10 {
		l.Launched(0, uint64(i), "", i+1, 1)
		if i > mostMarks/2 {
			l.Done(0, uint64(i), time.Duration(i))
		} else {
			l.marks.waiting = l.marks.waiting[:0] // else each is looked at a billion times
			l.marks.set = append(l.marks.set, Mark{Iteration, 0})
		}
	}
	if n := len(l.marks.set) + len(l.marks.waiting); n != mostMarks {
		t.Errorf("%d marks, at most are %d", n, mostMarks)
	}
}
