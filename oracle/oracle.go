package oracle

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// Run computes the bound for a trace. A launch that does not fit the budget by
// itself is a [*BudgetError].
func Run(t *trace.Trace, o Options) (Result, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Result{}, err
	}
	p, err := newProgram(t, o)
	if err != nil {
		return Result{}, err
	}
	tunes := tunings(o)
	if o.Quick {
		tunes = tunes[:1]
	}
	results, errs := make([]Result, len(tunes)), make([]error, len(tunes))
	// The plans share nothing but the program, which they only read.
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	began, tried := time.Now(), 0
	for i, tune := range tunes {
		slots <- struct{}{} // once they are all taken, others have ended
		if o.Patience > 0 && i >= cap(slots) && time.Since(began) > o.Patience {
			break
		}
		tried++
		group.Go(func() {
			defer func() {
				if bug := recover(); bug != nil { // where a running job asks, it must not end by it
					errs[i] = fmt.Errorf("oracle: plan %s: %v: this is a bug", tune.name, bug)
				}
				<-slots
			}()
			results[i], errs[i] = try(p, o, tune)
		})
	}
	group.Wait()
	best := 0
	for i := range tried {
		if errs[i] != nil {
			return Result{}, errs[i]
		}
		if results[i].IterationSeconds < results[best].IterationSeconds {
			best = i
		}
	}
	return results[best], nil
}

// try executes one plan.
func try(p *program, o Options, tune tuning) (Result, error) {
	s := newScheduler(p, newPlan(p, o.BudgetBytes, tune), o, tune.turns)
	if err := s.run(); err != nil {
		return Result{}, fmt.Errorf("%w (plan %s)", err, tune.name)
	}
	r := s.result()
	r.Plan = tune.name
	return r, physical(r, o)
}

// physical fails when a result is better than the device and the bus allow.
func physical(r Result, o Options) error {
	in, out := float64(r.H2DBytes)/o.H2DBytesPerSecond, float64(r.D2HBytes)/o.D2HBytesPerSecond
	least := max(r.ComputeSeconds, in, out)
	if o.DuplexBytesPerSecond == 0 {
		least = max(least, in+out)
	} else {
		// Together the directions carry the duplex rate at most, or one of them its own.
		together := max(o.DuplexBytesPerSecond, o.H2DBytesPerSecond, o.D2HBytesPerSecond)
		least = max(least, float64(r.H2DBytes+r.D2HBytes)/together)
	}
	if r.IterationSeconds < least*(1-1e-9)-1e-9 {
		return fmt.Errorf("oracle: plan %s takes %g s, the hardware needs %g: this is a bug", r.Plan, r.IterationSeconds, least)
	}
	return nil
}

// tunings are the plans tried. Where copies in both directions slow each
// other, the plans are also tried with the directions taking turns: a copy that
// nobody waits for yet then takes nothing from one that a launch waits for.
func tunings(o Options) []tuning {
	var all []tuning
	for _, reserve := range []float64{0, 0.005, 0.01, 0.02, 0.04, 0.08} {
		for _, tail := range []float64{1, 0.5} {
			t := tuning{
				name:         fmt.Sprintf("reserve %g %%, tail %g", reserve*100, tail),
				reserveBytes: int64(reserve * float64(o.BudgetBytes)),
				tailWeight:   tail,
				turns:        o.DuplexBytesPerSecond == 0,
			}
			all = append(all, t)
			if !t.turns && o.DuplexBytesPerSecond/2 < max(o.H2DBytesPerSecond, o.D2HBytesPerSecond) {
				t.name, t.turns = t.name+", directions in turn", true
				all = append(all, t)
			}
		}
	}
	return all
}
