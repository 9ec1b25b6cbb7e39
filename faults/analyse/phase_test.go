package analyse

import (
	"strings"
	"testing"
	"time"

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
			var p phases
			var got []Phase
			iterations := 0
			for _, n := range names {
				before := p.iteration
				p.launch(phaseOf(n))
				iterations += p.iteration - before
				got = append(got, p.now)
			}
			wrong, all := 0, 0
			for i := 1; i < len(starts)-1; i++ { // the first also makes the optimizer's state
				first, last := -1, -1
				for k := starts[i]; k < starts[i+1]; k++ {
					if strings.Contains(names[k], "nll_loss_backward") && first < 0 {
						first = k
					}
					if phaseOf(names[k]) == Backward || strings.Contains(names[k], "sum_and_scatter") { // of the embedding
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
	var p phases
	run := func(n int, told Phase) {
		for range n {
			p.launch(told)
		}
	}
	for range 3 {
		run(20, PhaseUnknown)
		run(5, Forward)
		if p.now != Forward {
			t.Fatalf("%v in the forward pass", p.now)
		}
		for range 10 {
			run(1, Backward)
			run(60, PhaseUnknown)
			run(1, Forward) // recomputed
			run(60, PhaseUnknown)
		}
		if p.now != Backward {
			t.Fatalf("%v after recomputation", p.now)
		}
		run(afterBackward, PhaseUnknown)
	}
	if p.iteration != 2 {
		t.Errorf("%d iterations over", p.iteration)
	}
}

// Memory of an allocation that was freed has a new life with the next one there,
// and what runs still on the old one finds it.
func TestNewOwner(t *testing.T) {
	s := begin(trace.Header{})
	s.alloc(0, 1, base, 2<<20, "old")
	s.function(1, "k")
	s.launch(1, 1, 0, 1)
	s.fault(10, base)
	s.move(20, 50, base, 2<<20, trace.SideDevice, trace.CauseCoherence)
	s.move(2000, 50, base, 2<<20, trace.SideHost, trace.CauseUser)
	s.add(trace.Event{Kind: trace.KindFree, Time: us(3000), Alloc: 1})
	s.fault(3500, base) // the kernel runs still
	s.alloc(4000, 2, base, 2<<20, "new")
	s.launch(4001, 1, 0, 2)
	s.fault(5000, base+4096) // not evicted too early: nobody has used this before
	s.fault(5001, base+4096) // the same fault, not serviced yet
	s.done(6000, 0, 2)
	r := s.a.Report(true)
	checkSums(t, r)
	if r.cause(FirstTouch) != 3 || r.cause(EvictedEarly) != 1 {
		t.Errorf("%+v", r.Causes)
	}
	for _, a := range r.Allocations {
		if a.Faults != 2 {
			t.Errorf("%+v", a)
		}
	}
	if r.Summary.DistinctBytes != 2<<20 {
		t.Errorf("%d distinct bytes", r.Summary.DistinctBytes)
	}
}

// Faults that the driver merges are counted each, and once as serviced.
func TestMergedFaults(t *testing.T) {
	s := begin(trace.Header{})
	for i, at := range []uint64{base, base, base, base + 4096, base} {
		when := us(10)
		if i >= 3 {
			when += time.Duration(i) * 400
		}
		s.add(trace.Event{Kind: trace.KindFault, Time: when, Address: at, GPU: 1, Batch: 7})
	}
	r := s.a.Report(true)
	checkSums(t, r)
	if r.Summary.Faults != 5 || r.Summary.ServicedFaults != 3 || r.cause(FirstTouch) != 5 {
		t.Errorf("%+v %+v", r.Summary, r.Causes)
	}
}
