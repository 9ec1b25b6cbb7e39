package replay

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda/sim"
	"github.com/penstock-gpu/penstock/internal/raced"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
)

const mib = int64(1) << 20

// network is a trace of a training job: layers with kernels, a weight and an
// activation of their own, forward, backward with a temporary, and an optimizer with state.
func network(layers, iterations int) *trace.Trace {
	t := &trace.Trace{Name: "network"}
	var next uint64
	add := func(e trace.Event) { t.Events = append(t.Events, e) }
	alloc := func(bytes int64) uint64 {
		next++
		add(trace.Event{Kind: trace.KindAlloc, Alloc: next, Bytes: bytes})
		return next
	}
	free := func(id uint64) { add(trace.Event{Kind: trace.KindFree, Alloc: id}) }
	launch := func(function uint32, ids ...uint64) {
		e := trace.Event{Kind: trace.KindLaunch, Function: function, Duration: 20 * time.Microsecond}
		for _, id := range ids {
			e.Accesses = append(e.Accesses, trace.Access{Alloc: id})
		}
		add(e)
	}
	var weights, state []uint64
	for range layers {
		weights = append(weights, alloc(8*mib))
		state = append(state, alloc(16*mib))
	}
	for i := range iterations {
		add(trace.Event{Kind: trace.KindMark, Name: "iter" + strconv.Itoa(i)})
		in := alloc(16 * mib)
		launch(1, in)
		activations := []uint64{in}
		for l := range layers {
			out := alloc(24 * mib)
			launch(uint32(100+l), weights[l], activations[l], out)
			activations = append(activations, out)
		}
		for l := layers - 1; l >= 0; l-- {
			gradient := alloc(8 * mib)
			launch(uint32(200+l), weights[l], activations[l], activations[l+1], gradient)
			free(activations[l+1])
			launch(4, weights[l], gradient, state[l])
			free(gradient)
		}
		free(in)
	}
	add(trace.Event{Kind: trace.KindMark, Name: trace.MarkEnd})
	return t
}

func h200(t testing.TB) sim.Profile {
	t.Helper()
	p, err := sim.ProfileByName("h200")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustRun(t testing.TB, tr *trace.Trace, o Options) Result {
	t.Helper()
	r, err := Run(context.Background(), tr, o)
	if err != nil {
		t.Fatalf("%s under %s: %v", tr.Name, o.Policy, err)
	}
	return r
}

// physical fails when a result is better than the card and its bus allow.
func physical(t *testing.T, r Result, p sim.Profile) {
	t.Helper()
	const slip = 1e-6 // seconds
	in, out := float64(r.H2DBytes), float64(r.D2HBytes)
	for what, least := range map[string]float64{
		"compute":              r.ComputeSeconds,
		"bytes to the device":  in / p.CopyBytesPerSecond,
		"bytes to the host":    out / p.CopyBytesPerSecond,
		"bytes in both ways":   (in + out) / p.DuplexBytesPerSecond,
		"stall beside compute": r.ComputeSeconds + r.StallSeconds,
	} {
		if r.IterationSeconds < least-slip {
			t.Errorf("%s %s: %.6f s an iteration, its %s alone take %.6f", r.Trace, r.Policy, r.IterationSeconds, what, least)
		}
	}
}

// TestBound: no policy beats the bound. The iteration measured is followed by as many
// as the queue holds: else it is prepared for while those before run, and nothing has
// to be prepared for after it.
func TestBound(t *testing.T) {
	raced.Skip(t)
	const measured, layers = 4, 130
	tr, p := network(layers, 2*measured), h200(t)
	marks := 0
	tr.Events = slices.DeleteFunc(tr.Events, func(e trace.Event) bool {
		if e.Kind == trace.KindMark {
			marks++
		}
		return e.Kind == trace.KindMark && marks > measured+1
	})
	if following := (measured - 1) * 3 * layers; following < queuedLaunches {
		t.Fatalf("only %d launches follow", following)
	}
	seconds := map[string]float64{}
	for _, policy := range []string{PolicyOracle, PolicyLRU, PolicyPenstock} {
		r := mustRun(t, tr, Options{Policy: policy, Ratio: 1.5, Profile: p})
		physical(t, r, p)
		seconds[policy] = r.IterationSeconds
		if seconds[policy] < seconds[PolicyOracle] {
			t.Errorf("%s takes %g s and beats the bound of %g", policy, seconds[policy], seconds[PolicyOracle])
		}
	}
}

func TestPoliciesOnASmallNetwork(t *testing.T) {
	tr, p := network(24, 4), h200(t)
	for _, ratio := range []float64{1, 2, 1.5, 3}[:short.Of(4, 2)] {
		seconds := map[string]float64{}
		for _, policy := range Policies() {
			o := Options{Policy: policy, Ratio: ratio, Profile: p}
			r := mustRun(t, tr, o)
			physical(t, r, p)
			seconds[policy] = r.IterationSeconds
			if again := mustRun(t, tr, o); !reflect.DeepEqual(r, again) {
				t.Errorf("%s at %gx: two runs differ: %+v and %+v", policy, ratio, r, again)
			}
			if policy == PolicyPenstock && r.Faults > 0 {
				t.Errorf("penstock at %gx: %d faults after learning", ratio, r.Faults)
			}
			if policy == PolicyPenstock && r.PredictionHitRate < 0.95 {
				t.Errorf("penstock at %gx: only %g of the operations were predicted", ratio, r.PredictionHitRate)
			}
			if r.PeakLiveBytes != tr.PeakLiveBytes() || !r.Simulated || r.Policy != policy || r.GPU != "h200" {
				t.Errorf("%+v", r)
			}
		}
		if ratio > 1 && seconds[PolicyPenstock]*3 > seconds[PolicyNaive] {
			t.Errorf("at %gx penstock takes %g s, naive %g", ratio, seconds[PolicyPenstock], seconds[PolicyNaive])
		}
	}
}

// TestExplicitBound: copy engines do whatever the managed engine does, faster,
// and never more than the bus carries.
func TestExplicitBound(t *testing.T) {
	for _, p := range sim.Profiles() {
		for _, ratio := range []float64{1, 1.25, 1.5, 2, 3} {
			tr := network(24, 4)
			managed := mustRun(t, tr, Options{Policy: PolicyOracle, Ratio: ratio, Profile: p})
			explicit := mustRun(t, tr, Options{Policy: PolicyOracle, Engine: EngineExplicit, Ratio: ratio, Profile: p, Timeline: true})
			physical(t, explicit, p)
			if explicit.IterationSeconds > managed.IterationSeconds {
				t.Errorf("%s at %gx: the explicit bound of %g s is above the managed one, %g", p.Name, ratio, explicit.IterationSeconds, managed.IterationSeconds)
			}
			if n := len(explicit.Timeline); n == 0 || explicit.Timeline[n-1].Seconds != explicit.IterationSeconds {
				t.Errorf("%s at %gx: a timeline of %d samples does not end with the iteration", p.Name, ratio, n)
			}
		}
	}
}

func TestSoftwareCapKeepsTheBudget(t *testing.T) {
	tr, p := network(24, 4), h200(t)
	seconds := map[string]float64{}
	for _, policy := range []string{PolicyNaive, PolicyLRU, PolicyDeepUM, PolicyPenstock} {
		r := mustRun(t, tr, Options{Policy: policy, Ratio: 2, Profile: p, SoftwareCap: true, Timeline: true})
		physical(t, r, p)
		seconds[policy] = r.IterationSeconds
		for _, s := range r.Timeline {
			if s.ResidentBytes > r.BudgetBytes {
				t.Fatalf("%s: %d bytes on the device at %g s, the budget is %d", policy, s.ResidentBytes, s.Seconds, r.BudgetBytes)
			}
		}
		if len(r.Timeline) == 0 {
			t.Errorf("%s: no timeline", policy)
		}
	}
	if seconds[PolicyPenstock] > seconds[PolicyNaive]/2 {
		t.Errorf("penstock takes %g s, naive %g", seconds[PolicyPenstock], seconds[PolicyNaive])
	}
}

// TestComesToRest: with nothing left to run, nothing moves for ever. This log once
// had tensors of different sizes sent out and brought back in turn.
func TestComesToRest(t *testing.T) {
	raced.Skip(t)
	tr, p := testlogs.Load(t, "moe"), h200(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r, err := Run(ctx, tr, Options{Policy: PolicyPenstock, Ratio: 1.5, Profile: p, SoftwareCap: true})
	if err != nil {
		t.Fatal(err)
	}
	physical(t, r, p)
	if limit := 2 * tr.PeakLiveBytes(); r.H2DBytes > limit || r.D2HBytes > limit {
		t.Errorf("%d bytes in and %d out, in an iteration that needs less than %d", r.H2DBytes, r.D2HBytes, limit)
	}
}

// TestLongRun: once an engine has come to rest with a job, it does not become slower.
func TestLongRun(t *testing.T) {
	raced.Skip(t)
	const early, late, most = 20, 60, 1.1
	p := h200(t)
	for _, o := range []Options{{SoftwareCap: true}, {}, {Engine: EngineExplicit}} {
		o.Policy, o.Ratio, o.Profile = PolicyPenstock, 2, p
		a, b := mustRun(t, network(12, early), o), mustRun(t, network(12, late), o)
		if b.IterationSeconds > most*a.IterationSeconds || float64(b.H2DBytes) > most*float64(a.H2DBytes) {
			t.Errorf("%s engine, software cap %t: iteration %d takes %g s and %d bytes in, iteration %d %g s and %d", b.Engine, o.SoftwareCap,
				late, b.IterationSeconds, b.H2DBytes, early, a.IterationSeconds, a.H2DBytes)
		}
	}
}

// TestGPT2Medium holds the policies against each other on a real launch log.
func TestGPT2Medium(t *testing.T) {
	raced.Skip(t)
	tr, p := testlogs.Load(t, "gpt2m"), h200(t)
	seconds := map[string]float64{}
	for _, policy := range Policies() {
		r := mustRun(t, tr, Options{Policy: policy, Ratio: 2, Profile: p})
		physical(t, r, p)
		seconds[policy] = r.IterationSeconds
		t.Logf("%-8s %.3f s, in %.1f GB, out %.1f GB, %d faults", policy, r.IterationSeconds, float64(r.H2DBytes)/1e9, float64(r.D2HBytes)/1e9, r.Faults)
	}
	if seconds[PolicyPenstock]*3 > seconds[PolicyNaive] {
		t.Errorf("penstock %g s is not 3 times faster than naive, %g", seconds[PolicyPenstock], seconds[PolicyNaive])
	}
	if seconds[PolicyPenstock] > 1.3*seconds[PolicyOracle] {
		t.Errorf("penstock %g s, the bound is %g", seconds[PolicyPenstock], seconds[PolicyOracle])
	}
	// lru is the engine with another order of victims and knows the queue as well:
	// the two are close on this log.
	for _, other := range []string{PolicyLRU, PolicyDeepUM} {
		if seconds[PolicyPenstock] > 1.06*seconds[other] {
			t.Errorf("penstock %g s is slower than %s, %g", seconds[PolicyPenstock], other, seconds[other])
		}
	}
	explicit := mustRun(t, tr, Options{Policy: PolicyOracle, Engine: EngineExplicit, Ratio: 2, Profile: p})
	if explicit.IterationSeconds > seconds[PolicyOracle] {
		t.Errorf("the explicit bound of %g s is above the managed one, %g", explicit.IterationSeconds, seconds[PolicyOracle])
	}
}

func TestBadInput(t *testing.T) {
	tr, p := network(4, 2), h200(t)
	unmarked := &trace.Trace{Name: "unmarked", Events: []trace.Event{{Kind: trace.KindAlloc, Alloc: 1, Bytes: mib}}}
	for _, test := range []struct {
		name  string
		trace *trace.Trace
		o     Options
		says  string
	}{
		{"policy", tr, Options{Policy: "magic", Ratio: 2}, `unknown policy "magic"`},
		{"engine", tr, Options{Policy: PolicyNaive, Engine: "steam", Ratio: 2}, `unknown engine "steam"`},
		{"explicit", tr, Options{Policy: PolicyNaive, Engine: EngineExplicit, Ratio: 2}, "--engine managed"},
		{"ratio", tr, Options{Policy: PolicyNaive, Ratio: 0.5}, "ratio 0.5 is impossible"},
		{"no ratio", tr, Options{Policy: PolicyNaive}, "ratio 0 is impossible"},
		{"negative budget", tr, Options{Policy: PolicyNaive, BudgetBytes: -1}, "cannot be negative"},
		{"above the card", tr, Options{Policy: PolicyNaive, BudgetBytes: 1 << 50}, "above the memory of h200"},
		{"one launch", tr, Options{Policy: PolicyNaive, BudgetBytes: 8 * mib}, "access set of one launch"},
		{"no marks", unmarked, Options{Policy: PolicyNaive, Ratio: 1}, "no iteration marks"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.o.Profile = p
			_, err := Run(context.Background(), test.trace, test.o)
			var bad *InputError
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, test.says)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Run(ctx, network(24, 4), Options{Policy: PolicyPenstock, Ratio: 2, Profile: h200(t)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// explicitPolicies are those that the explicit engine has besides the bound.
var explicitPolicies = []string{PolicyLRU, PolicyPenstock}

// aboveTheBound fails when a replay of the explicit engine beats its oracle, which
// prepares for an iteration that would follow the last, while the replay ends there.
func aboveTheBound(t *testing.T, r, bound Result) {
	t.Helper()
	const end = 0.9
	if r.IterationSeconds < bound.IterationSeconds*end {
		t.Errorf("%s at %d bytes: %s takes %g s and beats the bound of %g", r.Trace, r.BudgetBytes, r.Policy, r.IterationSeconds, bound.IterationSeconds)
	}
}

// TestExplicitEngine: its ledger adds up (Run checks it at the end), the
// simulated card has no more memory than the budget, it repeats itself, and it is never faster than the bus or its oracle allow.
func TestExplicitEngine(t *testing.T) {
	tr, p := network(24, 4), h200(t)
	for _, ratio := range []float64{1, 1.25, 1.5, 2, 3} {
		o := Options{Engine: EngineExplicit, Ratio: ratio, Profile: p, Timeline: true}
		bounded := o
		bounded.Policy = PolicyOracle
		bound := mustRun(t, tr, bounded)
		seconds := map[string]float64{}
		for _, policy := range explicitPolicies {
			o.Policy = policy
			r := mustRun(t, tr, o)
			physical(t, r, p)
			aboveTheBound(t, r, bound)
			seconds[policy] = r.IterationSeconds
			if again := mustRun(t, tr, o); !reflect.DeepEqual(r, again) {
				t.Errorf("%s at %gx: two runs differ", policy, ratio)
			}
			if r.Engine != EngineExplicit || r.Faults != 0 || len(r.Timeline) == 0 {
				t.Errorf("%s at %gx: %s engine, %d faults, %d samples", policy, ratio, r.Engine, r.Faults, len(r.Timeline))
			}
			if ratio == 1 && r.H2DBytes+r.D2HBytes > r.PeakLiveBytes/4 {
				t.Errorf("%s: nearly everything fits, and %d bytes came and %d went", policy, r.H2DBytes, r.D2HBytes)
			}
		}
		if seconds[PolicyPenstock] > 1.05*seconds[PolicyLRU] {
			t.Errorf("at %gx penstock takes %g s, lru %g", ratio, seconds[PolicyPenstock], seconds[PolicyLRU])
		}
	}
}

// TestLaunchCost: a job that its CPU keeps back takes as long as its launches.
func TestLaunchCost(t *testing.T) {
	const layers = 20
	tr, p := network(layers, 4), h200(t)
	launches := 0
	it := tr.Iterations()
	for _, e := range tr.Events[it[len(it)-1].First:it[len(it)-1].End] {
		if e.Kind == trace.KindLaunch {
			launches++
		}
	}
	for _, engine := range []string{EngineManaged, EngineExplicit} {
		fast := mustRun(t, tr, Options{Policy: PolicyPenstock, Engine: engine, Ratio: 1.5, Profile: p})
		slow := mustRun(t, tr, Options{Policy: PolicyPenstock, Engine: engine, Ratio: 1.5, Profile: p, LaunchCost: 50 * time.Millisecond})
		if least := 0.05 * float64(launches-1); slow.IterationSeconds < least || fast.IterationSeconds > least/2 {
			t.Errorf("%s: %g s an iteration, %g with %d launches of 50 ms", engine, fast.IterationSeconds, slow.IterationSeconds, launches)
		}
		if fast.LaunchCostSeconds != DefaultLaunchCost.Seconds() || slow.LaunchCostSeconds != 0.05 {
			t.Errorf("%s: launches are said to have taken %g and %g s", engine, fast.LaunchCostSeconds, slow.LaunchCostSeconds)
		}
	}
}

// TestCopiesSlowTheCPU: copies keep a job back that its CPU keeps back.
func TestCopiesSlowTheCPU(t *testing.T) {
	p := h200(t)
	o := Options{Policy: PolicyPenstock, Engine: EngineExplicit, Ratio: 1.5, Profile: p, LaunchCost: 2 * time.Millisecond}
	tr := network(20, 4)
	slow := mustRun(t, tr, o)
	o.Profile.CopiesInSlowCPU, o.Profile.CopiesOutSlowCPU = 0, 0
	fast := mustRun(t, tr, o)
	if most := fast.IterationSeconds * (1 + p.CopiesInSlowCPU + p.CopiesOutSlowCPU); slow.IterationSeconds <= fast.IterationSeconds || slow.IterationSeconds > most {
		t.Errorf("%g s an iteration beside copies, %g when they do not slow the CPU, want more, and at most %g", slow.IterationSeconds, fast.IterationSeconds, most)
	}
}

// TestExplicitEngineOnLogs replays every shared log, the long ones at one ratio
// (bench/simulated_policies.py has the rest).
func TestExplicitEngineOnLogs(t *testing.T) {
	raced.Skip(t)
	for _, log := range []struct {
		name   string
		ratios []float64
	}{
		{"gpt2m", []float64{1.5, 3}}, {"gpt2l", []float64{2}}, {"llama1b", []float64{3}},
		{"llama1b-lr", []float64{1.5}}, {"moe", []float64{2}}, {"resnet152", []float64{1.5}},
	}[:short.Of(6, 1)] {
		t.Run(log.name, func(t *testing.T) {
			recorded := testlogs.Load(t, log.name)
			rested, err := recorded.Repeat(6)
			if err != nil {
				t.Fatal(err)
			}
			p := h200(t)
			for _, ratio := range log.ratios {
				o := Options{Policy: PolicyPenstock, Engine: EngineExplicit, Ratio: ratio, Profile: p}
				r := mustRun(t, rested, o)
				o.Policy = PolicyOracle
				bound := mustRun(t, recorded, o) // which needs no time to come to rest
				physical(t, r, p)
				aboveTheBound(t, r, bound)
				share := bound.IterationSeconds / r.IterationSeconds
				t.Logf("%gx: %.3f s, %.0f %% of the bound's speed, in %.1f GB, out %.1f GB", ratio, r.IterationSeconds, 100*share, float64(r.H2DBytes)/1e9, float64(r.D2HBytes)/1e9)
				// 0.69 is the least that was seen; the aim is 0.8 (bench/results/simulated-policies.md).
				if share < 0.65 {
					t.Errorf("%gx: %.0f %% of the bound's speed", ratio, 100*share)
				}
			}
		})
	}
}
