package oracle

import (
	"fmt"
	"runtime"
	"sync"

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
	tunes := tunings(o.BudgetBytes)
	results, errs := make([]Result, len(tunes)), make([]error, len(tunes))
	// The plans share nothing but the program, which they only read.
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, tune := range tunes {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			results[i], errs[i] = try(p, o, tune)
		})
	}
	group.Wait()
	best := 0
	for i := range results {
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
	s := newScheduler(p, newPlan(p, o.BudgetBytes, tune), o)
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
	if !o.Duplex {
		least = max(least, in+out)
	}
	if r.IterationSeconds < least*(1-1e-9)-1e-9 {
		return fmt.Errorf("oracle: plan %s takes %g s, the hardware needs %g: this is a bug", r.Plan, r.IterationSeconds, least)
	}
	return nil
}

// tunings are the plans tried.
func tunings(budgetBytes int64) []tuning {
	var all []tuning
	for _, reserve := range []float64{0, 0.005, 0.01, 0.02, 0.04, 0.08} {
		for _, tail := range []float64{1, 0.5} {
			all = append(all, tuning{
				name:         fmt.Sprintf("reserve %g %%, tail %g", reserve*100, tail),
				reserveBytes: int64(reserve * float64(budgetBytes)),
				tailWeight:   tail,
			})
		}
	}
	return all
}
