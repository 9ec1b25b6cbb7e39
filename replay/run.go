package replay

import (
	"context"
	"fmt"
	"math"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/oracle"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/managed"
)

// InputError is a request that cannot be replayed, and says what to change.
type InputError struct{ Text string }

func (e *InputError) Error() string { return e.Text }

func badInput(format string, args ...any) error {
	return &InputError{fmt.Sprintf(format, args...)}
}

// Policies lists the names of policies.
func Policies() []string {
	return []string{PolicyNaive, PolicyLRU, PolicyDeepUM, PolicyPenstock, PolicyOracle}
}

// Simulates says whether an engine has a policy: demand paging and DeepUM's block
// tables are of the managed one.
func Simulates(engine, policy string) bool {
	return engine != EngineExplicit || policy == PolicyPenstock || policy == PolicyLRU || policy == PolicyOracle
}

// Run replays a trace and reports its last full iteration, or the mean of several where no two are alike.
func Run(ctx context.Context, t *trace.Trace, o Options) (Result, error) {
	peak := t.PeakLiveBytes()
	budget, err := budgetOf(peak, o)
	if err != nil {
		return Result{}, err
	}
	if len(t.Iterations()) == 0 {
		return Result{}, badInput("trace %s has no iteration marks, so there is no iteration to report: record it with marks", t.Name)
	}
	durations := t.Durations()
	if durations == trace.DurationsNone {
		return Result{}, badInput("trace %s does not say how long its kernels took: estimate it from a recording's progress first (trace.EstimateDurations)", t.Name)
	}
	if l := t.LargestLaunch(); l.Bytes > budget && (o.Engine != EngineExplicit || o.Policy == PolicyOracle) {
		return Result{}, badInput("budget of %d bytes is below the access set of one launch: %s touches %d bytes; raise the budget to at least that", budget, nameOf(t, l), l.Bytes)
	}
	if o.Replay && !Replays(o.Engine, o.Policy) {
		return Result{}, badInput("the policy %s has no replay, only %s has, and %s on the %s engine: choose one of these, or go without replay", o.Policy, PolicyOracle, PolicyPenstock, EngineExplicit)
	}
	if o.Replay && t.Differ {
		return Result{}, badInput("trace %s has no two iterations alike, and what is made again is told of one that repeats: go without replay", t.Name)
	}
	switch o.Engine {
	case EngineManaged, "":
		o.Engine = EngineManaged
	case EngineExplicit:
		if !Simulates(o.Engine, o.Policy) {
			return Result{}, badInput("the explicit engine has no policy %s: choose penstock, lru or oracle, or --engine managed", o.Policy)
		}
	default:
		return Result{}, badInput("unknown engine %q: choose managed or explicit", o.Engine)
	}
	var r Result
	switch o.Policy {
	case PolicyOracle:
		r, err = runOracle(ctx, t, o, budget)
	case PolicyNaive:
		if o.SoftwareCap { // the engine faults on demand and evicts the longest resident
			r, err = newManaged(t, o, budget, um.Naive).app.replay(ctx)
			break
		}
		r, err = newNaive(t, o, budget).app.replay(ctx)
	case PolicyLRU, PolicyDeepUM, PolicyPenstock:
		if o.Engine == EngineExplicit {
			r, err = runExplicit(ctx, t, o, budget)
			break
		}
		p, perr := um.PolicyByName(o.Policy)
		if perr != nil {
			return Result{}, perr
		}
		r, err = newManaged(t, o, budget, p).app.replay(ctx)
	default:
		return Result{}, badInput("unknown policy %q: choose one of %v", o.Policy, Policies())
	}
	if err != nil {
		return Result{}, err
	}
	r.Trace, r.Policy, r.Engine, r.GPU = t.Name, o.Policy, o.Engine, o.Profile.Name
	if o.Replay {
		r.Policy += withReplay
	}
	r.BudgetBytes, r.PeakLiveBytes, r.Durations, r.Simulated = budget, peak, durations, true
	if _, n := t.Judged(); n > 1 {
		r.Iterations = n
	}
	return r, nil
}

func nameOf(t *trace.Trace, l trace.Launch) string {
	if name := t.FunctionName(l.Function); name != "" {
		return name
	}
	return fmt.Sprintf("function %d", l.Function)
}

func budgetOf(peak int64, o Options) (int64, error) {
	if o.BudgetBytes < 0 {
		return 0, badInput("a budget cannot be negative")
	}
	if o.BudgetBytes > 0 {
		if o.BudgetBytes > o.Profile.MemoryBytes {
			return 0, badInput("budget of %d bytes is above the memory of %s, %d bytes", o.BudgetBytes, o.Profile.Name, o.Profile.MemoryBytes)
		}
		return o.BudgetBytes, nil
	}
	if !(o.Ratio >= 1) || math.IsInf(o.Ratio, 0) {
		return 0, badInput("ratio %v is impossible: it is peak live bytes over budget, at least 1", o.Ratio)
	}
	return int64(float64(peak) / o.Ratio), nil
}

// link is what the oracle may assume of the bus: for the explicit engine both
// copy engines, each at its full rate while the other rests and at half of what
// they reach together while both work; for the managed engine the rates of
// prefetch and of the driver's own eviction, one after the other, because a
// prefetch waits for the eviction that makes room for it.
func link(p sim.Profile, engine string) oracle.Options {
	if engine == EngineExplicit {
		return oracle.Options{H2DBytesPerSecond: p.CopyBytesPerSecond, D2HBytesPerSecond: p.CopyBytesPerSecond, DuplexBytesPerSecond: p.DuplexBytesPerSecond}
	}
	return oracle.Options{H2DBytesPerSecond: p.PrefetchBytesPerSecond, D2HBytesPerSecond: p.CopyBytesPerSecond, BlockBytes: managed.BlockBytes}
}

func runOracle(ctx context.Context, t *trace.Trace, o Options, budget int64) (Result, error) {
	var made *Again
	bound := func(engine string) (b oracle.Result, err error) {
		l := link(o.Profile, engine)
		if engine == EngineExplicit && o.Bus != (Bus{}) {
			l.H2DBytesPerSecond, l.D2HBytesPerSecond, l.DuplexBytesPerSecond = o.Bus.In, o.Bus.Out, o.Bus.Both
		}
		l.BudgetBytes, l.Timeline, l.LaunchCost = budget, o.Timeline, o.LaunchCost
		if o.Replay && engine == o.Engine {
			b, made, err = runAgain(ctx, t, l)
			return b, err
		}
		return oracle.Run(t, l)
	}
	b, err := bound(o.Engine)
	if err != nil {
		return Result{}, err
	}
	if o.Engine == EngineExplicit && o.Bus == (Bus{}) {
		// Neither schedule is a proven optimum, and whatever the managed engine does
		// the explicit one can do as well: copy engines are faster than its moves.
		if managed, err := bound(EngineManaged); err == nil {
			if managed.IterationSeconds < b.IterationSeconds {
				b = managed
				made.nothing()
			}
			made.beside(managed)
		}
	}
	r := Result{
		ComputeSeconds: b.ComputeSeconds, IterationSeconds: b.IterationSeconds, StallSeconds: b.StallSeconds,
		H2DBytes: b.H2DBytes, D2HBytes: b.D2HBytes, PredictionHitRate: 1, LaunchCostSeconds: o.LaunchCost.Seconds(), Replay: made,
	}
	if o.Timeline {
		for _, s := range b.Timeline {
			r.Timeline = append(r.Timeline, Sample(s))
		}
	}
	return r, nil
}
