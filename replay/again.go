package replay

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/penstock-gpu/penstock/oracle"
	"github.com/penstock-gpu/penstock/oracle/rewrite"
	"github.com/penstock-gpu/penstock/prefetch/again"
	"github.com/penstock-gpu/penstock/trace"
)

// Again is what was made again instead of moved in an iteration. Its seconds are part of the iteration's computing.
type Again struct {
	Roles       string     `json:"roles"`          // of what launches read and write: RolesRecorded or RolesInferred
	Seconds     float64    `json:"seconds"`        // of launches that were issued again
	Launches    int        `json:"launches"`       // that were
	Bytes       int64      `json:"bytes"`          // of tensors that were given up and made again
	SwapSeconds float64    `json:"swap_seconds"`   // an iteration of the same oracle without replay
	Functions   []Function `json:"functions"`      // that were issued again, the longest first
	Plans       int        `json:"plans"`          // that were tried
	Rejected    int        `json:"rejected_plans"` // that the check found to compute something else: always a defect
}

// Where the roles of launches' operands come from.
const (
	RolesRecorded = "recorded"
	RolesInferred = "inferred"
)

// Function is a kernel, or a kind of copy, that was issued again.
type Function struct {
	Name     string  `json:"name"`
	Launches int     `json:"launches"`
	Seconds  float64 `json:"seconds"`
}

// Replays says whether a policy can have launches issued again on an engine.
func Replays(engine, policy string) bool {
	return policy == PolicyOracle || policy == PolicyPenstock && engine == EngineExplicit
}

// againLaunchSeconds is what a launch that is issued again takes on the GPU besides its own time.
const againLaunchSeconds = 1e-6

// finalists are how many of the plans are judged by all schedules, the others by one.
const finalists = 2

// search looks for the fastest plan of what to make again in a budget.
type search struct {
	job      *rewrite.Job
	planner  *again.Planner
	bound    oracle.Options // what the oracle may assume
	busRate  float64
	tried    []candidate
	rejected int
}

// candidate is a plan that was tried.
type candidate struct {
	options  again.Options
	plan     *again.Plan
	seconds  float64 // by one schedule
	rejected bool
}

// nothingToGain is what an iteration may take, beside what it computes, for no plan to be looked for.
const nothingToGain = 1.0005

// runAgain is the oracle with replay: the rest of the traffic of the best plan that is found is scheduled like any other. Where no plan is
// better than none, nothing is made again.
func runAgain(ctx context.Context, t *trace.Trace, bound oracle.Options) (oracle.Result, *Again, error) {
	swap, err := oracle.Run(t, bound)
	if err != nil {
		return oracle.Result{}, nil, err
	}
	followed, _ := oracle.Followed(t)
	job, err := rewrite.NewJob(followed)
	if err != nil {
		return oracle.Result{}, nil, err
	}
	s := &search{job: job, planner: again.NewPlanner(job.Job), bound: bound}
	s.bound.NoRepeat = true // it is repeated already
	s.busRate = min(bound.H2DBytesPerSecond, bound.D2HBytesPerSecond)
	if bound.DuplexBytesPerSecond > 0 {
		s.busRate = min(s.busRate, bound.DuplexBytesPerSecond/2)
	}
	if swap.IterationSeconds > nothingToGain*swap.ComputeSeconds {
		if err := s.look(ctx); err != nil {
			return oracle.Result{}, nil, err
		}
	}
	best, found := swap, (*rewrite.Rewritten)(nil)
	for _, c := range s.tried[:min(len(s.tried), finalists)] {
		written, err := s.written(c.plan)
		if err != nil {
			return oracle.Result{}, nil, err
		}
		r, err := oracle.Run(written.Trace, s.bound)
		if err != nil {
			return oracle.Result{}, nil, err
		}
		if r.IterationSeconds < best.IterationSeconds {
			best, found = r, written
		}
	}
	report := &Again{Roles: RolesRecorded, SwapSeconds: swap.IterationSeconds, Plans: len(s.tried) + s.rejected, Rejected: s.rejected, Functions: []Function{}}
	if job.Inferred {
		report.Roles = RolesInferred
	}
	if found == nil {
		return swap, report, nil
	}
	kept, iteration, err := s.keptUp(found, best)
	if err != nil || kept.IterationSeconds >= swap.IterationSeconds {
		return swap, report, err
	}
	report.count(found, iteration)
	return kept, report, nil
}

// Where the search begins, and how far it steps from the best so far.
var (
	reaches = []float64{1, 1.5, 2.5}
	prices  = []float64{0.03, 0.1, 0.3}
	steps   = []float64{1.5, 1.2}
)

// look tries plans: a coarse grid, then the neighbours of the best, twice. It leaves them in the order of
// their seconds.
func (s *search) look(ctx context.Context) error {
	var round []again.Options
	for _, most := range []again.Class{again.Plain, again.Matrix} {
		for _, reach := range reaches {
			for _, price := range prices {
				round = append(round, s.options(most, reach, price, 1, 0.15))
			}
		}
	}
	if err := s.try(ctx, round); err != nil {
		return err
	}
	for _, step := range steps {
		if len(s.tried) == 0 {
			return nil
		}
		b := s.tried[0].options
		round = round[:0]
		for _, reach := range []float64{b.Reach / step, b.Reach, b.Reach * step} {
			for _, price := range []float64{b.Price / step, b.Price, b.Price * step} {
				round = append(round, s.options(b.Most, max(1, reach), price, b.Later, b.Window))
			}
		}
		round = append(round, s.options(b.Most, b.Reach, b.Price, 0.5, b.Window), s.options(b.Most, b.Reach, b.Price, b.Later, 0.08),
			s.options(b.Most, b.Reach, b.Price, 0.5, 0.08))
		if err := s.try(ctx, round); err != nil {
			return err
		}
	}
	return nil
}

func (s *search) options(most again.Class, reach, price, later, window float64) again.Options {
	return again.Options{BudgetBytes: s.bound.BudgetBytes, SmallBytes: oracle.DefaultSmallBytes, BusBytesPerSecond: s.busRate, LaunchSeconds: againLaunchSeconds,
		Most: most, KeepFreed: true, Reach: reach, Price: price, Later: later, Window: window}
}

// try plans with each of some options that were not tried yet, on all cores.
func (s *search) try(ctx context.Context, round []again.Options) error {
	results, errs := make([]candidate, len(round)), make([]error, len(round))
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, o := range round {
		if slices.ContainsFunc(s.tried, func(c candidate) bool { return c.options == o }) {
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if errs[i] = ctx.Err(); errs[i] == nil {
				results[i], errs[i] = s.one(o)
			}
		})
	}
	group.Wait()
	for i, c := range results {
		switch {
		case errs[i] != nil:
			return errs[i]
		case c.rejected:
			s.rejected++
		case c.plan != nil:
			s.tried = append(s.tried, c)
		}
	}
	slices.SortStableFunc(s.tried, func(a, b candidate) int { return cmp.Compare(a.seconds, b.seconds) })
	return nil
}

// one makes a plan, checks it and has the oracle judge it by one schedule. A plan is nil where it
// cannot be followed in the budget.
func (s *search) one(o again.Options) (candidate, error) {
	c := candidate{options: o}
	plan := s.planner.Plan(o)
	written, err := s.written(plan)
	if err != nil {
		c.rejected = true
		return c, nil
	}
	quick := s.bound
	quick.Quick, quick.Timeline = true, false
	r, err := oracle.Run(written.Trace, quick)
	var large *oracle.BudgetError
	if errors.As(err, &large) {
		return c, nil
	}
	c.plan, c.seconds = plan, r.IterationSeconds
	return c, err
}

// written is the trace with a plan carried out in it, if the job then computes the same.
func (s *search) written(plan *again.Plan) (*rewrite.Rewritten, error) {
	written, err := s.job.Rewrite(plan, againLaunchSeconds)
	if err == nil {
		err = s.job.Check(written)
	}
	return written, err
}

// keptUp is the slower one of the last two iterations of a rewritten trace, of which last is the last one's: no schedule
// counts that the next iteration cannot follow. The first two are no measure. It says which one it is.
func (s *search) keptUp(w *rewrite.Rewritten, last oracle.Result) (oracle.Result, int, error) {
	iterations := w.Trace.Iterations()
	n := len(iterations) - 1
	if n < 3 {
		return last, n, nil
	}
	earlier := *w.Trace
	earlier.Events = slices.Clone(earlier.Events)
	earlier.Events[iterations[n-1].End].Name = trace.MarkEnd
	earlier.Events[iterations[n].End].Name = "behind"
	before, err := oracle.Run(&earlier, s.bound)
	if err != nil || before.IterationSeconds <= last.IterationSeconds {
		return last, n, err
	}
	return before, n - 1, nil
}

// beside compares with another schedule that moves everything. There may be no replay.
func (a *Again) beside(swap oracle.Result) {
	if a != nil {
		a.SwapSeconds = min(a.SwapSeconds, swap.IterationSeconds)
	}
}

// nothing says that after all nothing is made again.
func (a *Again) nothing() {
	if a != nil {
		a.Seconds, a.Launches, a.Bytes, a.Functions = 0, 0, 0, []Function{}
	}
}

// count adds up what is made again in an iteration of a rewritten trace.
func (a *Again) count(w *rewrite.Rewritten, iteration int) {
	at := w.Trace.Iterations()[iteration]
	rows := map[string]*Function{}
	for i := at.First; i < at.End; i++ {
		e := &w.Trace.Events[i]
		switch w.Issued[i] {
		case rewrite.Own:
			continue
		case rewrite.Back:
			a.Bytes += e.Bytes
			continue
		}
		name := w.Trace.FunctionName(e.Function)
		if e.Kind == trace.KindCopy {
			name = e.Copy.String()
		}
		f := rows[name]
		if f == nil {
			f = &Function{Name: name}
			rows[name] = f
		}
		seconds := e.Duration.Seconds()
		f.Launches, f.Seconds = f.Launches+1, f.Seconds+seconds
		a.Launches, a.Seconds = a.Launches+1, a.Seconds+seconds
	}
	for _, f := range rows {
		a.Functions = append(a.Functions, *f)
	}
	slices.SortFunc(a.Functions, func(x, y Function) int {
		return cmp.Or(cmp.Compare(y.Seconds, x.Seconds), cmp.Compare(x.Name, y.Name))
	})
}
