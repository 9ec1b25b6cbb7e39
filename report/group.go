package report

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/penstock-gpu/penstock/replay"
)

// benchCase is every result of one trace on one GPU profile.
type benchCase struct {
	trace, gpu     string
	peakLiveBytes  int64
	computeSeconds float64
	points         []point // ascending ratio
	engines        []string
	time           timeUnit // of every duration of the case
	bytes          byteUnit // of every byte count of the case
}

// point is every result of a case under one budget.
type point struct {
	ratio       float64
	budgetBytes int64
	rows        []row
}

// row is one result beside its bound.
type row struct {
	replay.Result
	label string // the policy, and the engine where the case has several
	bound *replay.Result
	naive *replay.Result
}

// isBound says whether the row is itself what others are measured against.
func (r row) isBound() bool { return r.Policy == replay.PolicyOracle }

// ofBound is the bound's time over the row's. ok is false without a bound.
func (r row) ofBound() (share float64, ok bool) {
	if r.bound == nil || r.IterationSeconds <= 0 {
		return 0, false
	}
	return r.bound.IterationSeconds / r.IterationSeconds, true
}

// overNaive is how many times faster than naive the row is. ok is false without a naive result.
func (r row) overNaive() (times float64, ok bool) {
	if r.naive == nil || r.IterationSeconds <= 0 {
		return 0, false
	}
	return r.naive.IterationSeconds / r.IterationSeconds, true
}

// predicts says whether the policy has a prediction to be right or wrong about.
func (r row) predicts() bool {
	switch r.Policy {
	case replay.PolicyDeepUM, replay.PolicyPenstock:
		return true
	}
	return r.PredictionHitRate > 0
}

// policyOrder puts the baseline first and the bound last; policies unknown here go between, by name.
func policyOrder(policy string) int {
	order := []string{replay.PolicyNaive, replay.PolicyLRU, replay.PolicyDeepUM, replay.PolicyPenstock}
	if i := slices.Index(order, policy); i >= 0 {
		return i
	}
	if policy == replay.PolicyOracle {
		return len(order) + 1
	}
	return len(order)
}

// group checks the results and arranges them.
func group(results []replay.Result) ([]benchCase, error) {
	if len(results) == 0 {
		return nil, errors.New("report: no results: replay a trace under at least one policy first")
	}
	var cases []benchCase
	for i := range results {
		r := &results[i]
		if err := check(r); err != nil {
			return nil, err
		}
		ci := slices.IndexFunc(cases, func(c benchCase) bool { return c.trace == r.Trace && c.gpu == r.GPU })
		if ci < 0 {
			cases = append(cases, benchCase{trace: r.Trace, gpu: r.GPU})
			ci = len(cases) - 1
		}
		c := &cases[ci]
		c.peakLiveBytes = max(c.peakLiveBytes, r.PeakLiveBytes)
		if r.Replay == nil { // else what is made again is in it
			c.computeSeconds = max(c.computeSeconds, r.ComputeSeconds)
		}
		if !slices.Contains(c.engines, r.Engine) {
			c.engines = append(c.engines, r.Engine)
		}
		pi := slices.IndexFunc(c.points, func(p point) bool { return p.budgetBytes == r.BudgetBytes })
		if pi < 0 {
			c.points = append(c.points, point{
				budgetBytes: r.BudgetBytes,
				ratio:       float64(r.PeakLiveBytes) / float64(r.BudgetBytes),
			})
			pi = len(c.points) - 1
		}
		p := &c.points[pi]
		if slices.ContainsFunc(p.rows, func(o row) bool { return o.Policy == r.Policy && o.Engine == r.Engine }) {
			return nil, fmt.Errorf("report: two results for %s: keep one of them", describe(r))
		}
		p.rows = append(p.rows, row{Result: *r})
	}
	for ci := range cases {
		c := &cases[ci]
		slices.Sort(c.engines)
		c.chooseUnits()
		slices.SortFunc(c.points, func(a, b point) int { return cmp.Compare(b.budgetBytes, a.budgetBytes) })
		for pi := range c.points {
			c.points[pi].finish(len(c.engines) > 1)
		}
	}
	return cases, nil
}

// chooseUnits picks one unit of time and one of memory for the whole case, so
// that its numbers can be compared by eye.
func (c *benchCase) chooseUnits() {
	longest, most := c.computeSeconds, c.peakLiveBytes
	for _, p := range c.points {
		most = max(most, p.budgetBytes)
		for _, r := range p.rows {
			longest = max(longest, r.IterationSeconds)
		}
	}
	c.time, c.bytes = timeUnitFor(longest), unitFor(most)
}

// finish orders the rows and points each at its bound and baseline.
func (p *point) finish(severalEngines bool) {
	slices.SortFunc(p.rows, func(a, b row) int {
		return cmp.Or(
			cmp.Compare(policyOrder(a.Policy), policyOrder(b.Policy)),
			cmp.Compare(a.Policy, b.Policy),
			cmp.Compare(a.Engine, b.Engine),
		)
	})
	for i := range p.rows {
		r := &p.rows[i]
		r.label = r.Policy
		if severalEngines {
			r.label += " (" + r.Engine + ")"
		}
		if !r.isBound() {
			r.bound = p.find(replay.PolicyOracle, r.Engine)
		}
		r.naive = p.find(replay.PolicyNaive, r.Engine)
	}
}

// find returns the policy's result on the engine, or else on any other.
func (p *point) find(policy, engine string) *replay.Result {
	var other *replay.Result
	for i := range p.rows {
		r := &p.rows[i].Result
		if r.Policy != policy {
			continue
		}
		if r.Engine == engine {
			return r
		}
		if other == nil {
			other = r
		}
	}
	return other
}

func describe(r *replay.Result) string {
	return fmt.Sprintf("trace %q, policy %q, engine %q, gpu %q, budget %d bytes", r.Trace, r.Policy, r.Engine, r.GPU, r.BudgetBytes)
}

// check refuses what could only be shown wrongly.
func check(r *replay.Result) error {
	if !r.Simulated {
		return fmt.Errorf("report: the result for %s is not marked simulated, and this report labels every number as such", describe(r))
	}
	if r.BudgetBytes <= 0 {
		return fmt.Errorf("report: the result for %s has no budget: budget_bytes must be positive", describe(r))
	}
	seconds := []struct {
		name  string
		value float64
	}{
		{"compute_seconds", r.ComputeSeconds},
		{"iteration_seconds", r.IterationSeconds},
		{"stall_seconds", r.StallSeconds},
		{"prediction_hit_rate", r.PredictionHitRate},
	}
	for _, s := range seconds {
		if math.IsNaN(s.value) || math.IsInf(s.value, 0) || s.value < 0 {
			return fmt.Errorf("report: the result for %s has %s = %v: want a finite number, not negative", describe(r), s.name, s.value)
		}
	}
	counts := []struct {
		name  string
		value int64
	}{
		{"peak_live_bytes", r.PeakLiveBytes},
		{"h2d_bytes", r.H2DBytes},
		{"d2h_bytes", r.D2HBytes},
		{"faults", r.Faults},
	}
	for _, c := range counts {
		if c.value < 0 {
			return fmt.Errorf("report: the result for %s has %s = %d: want 0 or more", describe(r), c.name, c.value)
		}
	}
	before := 0.0
	for i, s := range r.Timeline {
		if math.IsNaN(s.Seconds) || math.IsInf(s.Seconds, 0) || s.Seconds < before {
			return fmt.Errorf("report: the result for %s has timeline sample %d at %v s: want ascending times", describe(r), i, s.Seconds)
		}
		if math.IsNaN(s.StallSeconds) || math.IsInf(s.StallSeconds, 0) {
			return fmt.Errorf("report: the result for %s has timeline sample %d with stall_seconds %v", describe(r), i, s.StallSeconds)
		}
		before = s.Seconds
	}
	return nil
}
