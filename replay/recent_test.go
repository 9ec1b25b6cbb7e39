package replay

import (
	"math"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/raced"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/oracle"
	"github.com/penstock-gpu/penstock/trace"
)

// TestLaunchCostOfLogs: what the engine finds that the job's CPU takes is what it was told to take and what copies
// add, where that keeps the job back, and nothing where the bus or the device does.
func TestLaunchCostOfLogs(t *testing.T) {
	raced.Skip(t)
	log, err := testlogs.Load(t, "gpt2m").Repeat(9)
	if err != nil {
		t.Fatal(err)
	}
	profile := h200(t)
	slowed := 1 + profile.CopiesInSlowCPU + profile.CopiesOutSlowCPU
	for _, c := range []struct {
		cost, least time.Duration
	}{{19 * time.Microsecond, 19 * time.Microsecond}, {4 * time.Microsecond, 0}} {
		o := Options{Policy: PolicyPenstock, Engine: EngineExplicit, Profile: profile, LaunchCost: c.cost}
		x := newExplicit(log, o, log.PeakLiveBytes()*2/3)
		x.runtime.Remember(1 << 16)
		if _, err := x.app.replay(t.Context()); err != nil {
			t.Fatal(err)
		}
		recent := x.runtime.Recent(1 << 20)
		if !recent.Trace.EstimateDurations() || !recent.Trace.MarkIterations() {
			t.Fatal("no iterations")
		}
		if got := recent.LaunchCost(); got < c.least || got > time.Duration(float64(c.least)*slowed) {
			t.Errorf("%v is found to be %v", c.cost, got)
		}
	}
}

// TestRecentLikeItsLog: what the explicit engine remembers of its last iterations, in which launches
// waited for memory, has nearly the bound that the job's log has.
func TestRecentLikeItsLog(t *testing.T) {
	raced.Skip(t)
	for _, name := range []string{"gpt2m", "moe"}[:short.Of(2, 1)] {
		log, err := testlogs.Load(t, name).Repeat(9)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{Policy: PolicyOracle, Engine: EngineExplicit, Ratio: 2, Profile: h200(t)}
		want := mustRun(t, log, o)
		o.Policy = PolicyPenstock
		x := newExplicit(log, o, want.BudgetBytes)
		x.runtime.Remember(1 << 16)
		ran, err := x.app.replay(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		recent := x.runtime.Recent(1 << 20).Trace
		if !recent.EstimateDurations() || !recent.MarkIterations() {
			t.Fatalf("%s: durations %s, %d iterations", name, recent.Durations(), len(recent.Iterations()))
		}
		all := recent.Iterations()
		last := all[len(all)-1]
		took := (recent.Events[last.End].Time - recent.Events[last.First-1].Time).Seconds()
		l := link(o.Profile, EngineExplicit)
		l.BudgetBytes = want.BudgetBytes - x.plain
		got, err := oracle.Run(recent, l)
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(got.IterationSeconds/want.IterationSeconds-1) > 0.03 {
			t.Errorf("%s: bound %.4f s, want %.4f", name, got.IterationSeconds, want.IterationSeconds)
		}
		if math.Abs(took/ran.IterationSeconds-1) > 0.03 {
			t.Errorf("%s: the last iteration took %.4f s, want %.4f", name, took, ran.IterationSeconds)
		}
	}
}

// TestDurationsOfAJobThatWaits: launches that waited for copies are found to take what they take in memory, where a few of
// them were timed; without that, what they waited is among it.
func TestDurationsOfAJobThatWaits(t *testing.T) {
	raced.Skip(t)
	for name, off := range map[string]float64{"gpt2m": 0.1, "resnet152": 0} { // and how wrong it is at least without timings
		log, err := testlogs.Load(t, name).Repeat(9)
		if err != nil {
			t.Fatal(err)
		}
		found := func(times bool) (seconds float64) {
			o := Options{Policy: PolicyPenstock, Engine: EngineExplicit, Profile: h200(t)}
			x := newExplicit(log, o, log.PeakLiveBytes()*2/5)
			x.runtime.Remember(1 << 16)
			if times {
				x.launched = map[uint64]int{}
			}
			if _, err := x.app.replay(t.Context()); err != nil {
				t.Fatal(err)
			}
			recent := x.runtime.Recent(1 << 20)
			if !recent.EstimateDurations() || !recent.Trace.MarkIterations() {
				t.Fatalf("%s: no iterations", name)
			}
			t.Logf("%s, timed %t: %+v", name, times, *recent.Trace.Estimate)
			return ofLast(recent.Trace)
		}
		want := ofLast(log)
		waits, timed := found(false)/want, found(true)/want
		t.Logf("%s: %.3f times what they take, timed %.3f", name, waits, timed)
		if math.Abs(timed-1) > 0.03 || waits-1 < off {
			t.Errorf("%s: launches take %.3f times what they do, without timings %.3f", name, timed, waits)
		}
	}
}

// ofLast is the sum of the durations of the last iteration.
func ofLast(t *trace.Trace) (seconds float64) {
	all := t.Iterations()
	last := all[len(all)-1]
	for _, e := range t.Events[last.First:last.End] {
		if e.Kind == trace.KindLaunch || e.Kind == trace.KindCopy {
			seconds += max(0, e.Duration).Seconds()
		}
	}
	return seconds
}
