package timeline

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/trace/phase"
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

// Marks are where the first kernel of a phase was, at the time at which the GPU came there, however late.
func TestMarksOfPhases(t *testing.T) {
	for _, delay := range []uint64{0, 10, 150} {
		j := &job{delay: delay}
		j.launch(20, "gemm", 200) // loading, which repeats
		for range 3 {
			j.launch(0, "layer_norm_forward", 1)
			j.launch(0, "gemm", 99)
			j.launch(0, "nll_loss_backward", 1)
			j.launch(0, "", 50) // copies
			j.launch(0, "gemm", 100)
			j.launch(0, "multi_tensor_apply_kernel", 49)
		}
		j.launch(0, "layer_norm_forward", 200)
		var want []Mark
		at := func(seq int) time.Duration { return time.Duration(uint64(seq)+delay) * us }
		for i := range 3 {
			if i > 0 { // before the first backward a forward may be anything
				want = append(want, Mark{Begins(phase.Forward), at(i*300 + 201)})
			}
			want = append(want, Mark{Begins(phase.Backward), at(i*300 + 301)}, Mark{Begins(phase.Optimizer), at(i*300 + 452)})
		}
		want = append(want, Mark{Begins(phase.Forward), at(1101)})
		if !slices.Equal(j.marks.set, want) {
			t.Errorf("with the GPU %d launches behind: %v, want %v", delay, j.marks.set, want)
		}
	}
}

// Where names tell nothing the length of an iteration is all that is known.
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

// Real training jobs: the marks come once in each iteration, but for the forward pass of the first.
func TestMarksOfRealTraining(t *testing.T) {
	for _, name := range []string{"gpt2m", "gpt2l", "llama1b", "llama1b-lr", "moe", "resnet152"} {
		t.Run(name, func(t *testing.T) {
			j := &job{}
			functions := map[uint32]string{}
			log := testlogs.Load(t, name)
			for _, e := range log.Events {
				switch e.Kind {
				case trace.KindFunction:
					functions[e.Function] = e.Name
				case trace.KindLaunch:
					j.launch(0, functions[e.Function], 1)
				}
			}
			count := map[string]int{}
			for _, m := range j.marks.set {
				count[m.Name]++
			}
			n := len(log.Iterations())
			if len(count) != 3 || count[Begins(phase.Backward)] != n || count[Begins(phase.Optimizer)] != n || count[Begins(phase.Forward)] != n-1 {
				t.Errorf("%v in %d iterations", count, n)
			}
		})
	}
}
