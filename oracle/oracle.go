package oracle

import (
	"fmt"

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
	var best Result
	for _, tune := range tunings(o.BudgetBytes) {
		s := newScheduler(p, newPlan(p, o.BudgetBytes, tune), o)
		if err := s.run(); err != nil {
			return Result{}, fmt.Errorf("%w (plan %s)", err, tune.name)
		}
		r := s.result()
		r.Plan = tune.name
		if best.Plan == "" || r.IterationSeconds < best.IterationSeconds {
			best = r
		}
	}
	return best, nil
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
