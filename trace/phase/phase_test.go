package phase

import (
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
)

// TestPhasesOfRealTraining gives the kernels of real training runs, without marks,
// and compares each launch's phase with what the log says otherwise: an iteration
// goes forward until the loss goes backward, and the optimizer's part begins
// behind the last kernel of the backward pass.
func TestPhasesOfRealTraining(t *testing.T) {
	for _, name := range []string{"gpt2m", "gpt2l", "llama1b", "llama1b-lr", "moe", "resnet152"} {
		t.Run(name, func(t *testing.T) {
			log := testlogs.Load(t, name)
			functions := map[uint32]string{}
			var names []string // of launches
			var starts []int   // of iterations
			for _, e := range log.Events {
				switch e.Kind {
				case trace.KindFunction:
					functions[e.Function] = strings.ToLower(e.Name)
				case trace.KindLaunch:
					names = append(names, functions[e.Function])
				case trace.KindMark:
					if strings.HasPrefix(e.Name, "iter") || e.Name == trace.MarkEnd {
						starts = append(starts, len(names))
					}
				}
			}
			var p Tracker
			var got []Phase
			iterations := 0
			for _, n := range names {
				before := p.Iteration
				p.Launch(Of(n))
				iterations += p.Iteration - before
				got = append(got, p.Now)
			}
			wrong, all := 0, 0
			for i := 1; i < len(starts)-1; i++ { // the first also makes the optimizer's state
				first, last := -1, -1
				for k := starts[i]; k < starts[i+1]; k++ {
					if strings.Contains(names[k], "nll_loss_backward") && first < 0 {
						first = k
					}
					if Of(names[k]) == Backward || strings.Contains(names[k], "sum_and_scatter") { // of the embedding
						last = k
					}
				}
				if first < 0 {
					t.Fatal("the log has no backward pass of a loss")
				}
				for k := starts[i]; k < starts[i+1]; k++ {
					want := Forward
					switch {
					case k > last:
						want = Optimizer
					case k >= first:
						want = Backward
					}
					all++
					if got[k] != want {
						wrong++
					}
				}
			}
			t.Logf("%d of %d launches in another phase", wrong, all)
			if wrong*50 > all {
				t.Errorf("%d of %d launches are in the wrong phase", wrong, all)
			}
			if want := len(starts) - 2; iterations != want {
				t.Errorf("%d ends of iterations seen, want %d", iterations, want)
			}
		})
	}
}

// An optimizer whose kernels tell nothing: the next forward pass is recognised
// all the same, and recomputation within a backward pass is not taken for one.
func TestPhasesWithoutAnOptimizersName(t *testing.T) {
	var p Tracker
	run := func(n int, told Phase) {
		for range n {
			p.Launch(told)
		}
	}
	for range 3 {
		run(20, Unknown)
		run(5, Forward)
		if p.Now != Forward {
			t.Fatalf("%v in the forward pass", p.Now)
		}
		for range 10 {
			run(1, Backward)
			run(60, Unknown)
			run(1, Forward) // recomputed
			run(60, Unknown)
		}
		if p.Now != Backward {
			t.Fatalf("%v after recomputation", p.Now)
		}
		run(afterBackward, Unknown)
	}
	if p.Iteration != 2 {
		t.Errorf("%d iterations over", p.Iteration)
	}
}
