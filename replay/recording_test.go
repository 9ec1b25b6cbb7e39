package replay

import (
	"math"
	"testing"

	"github.com/penstock-gpu/penstock/internal/raced"
	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
)

// TestRecordingLikeItsLog: what Penstock would have recorded of a job, without durations and
// marks, has nearly the bound that its log has, which has both.
func TestRecordingLikeItsLog(t *testing.T) {
	raced.Skip(t)
	for _, name := range []string{"gpt2m", "resnet152", "moe"} {
		log := testlogs.Load(t, name)
		recording, _ := testlogs.Record(log, testlogs.H200)
		if !recording.EstimateDurations() || !recording.MarkIterations() {
			t.Fatalf("%s: durations %s, %d iterations", name, recording.Durations(), len(recording.Iterations()))
		}
		o := Options{Policy: PolicyOracle, Engine: EngineExplicit, Ratio: 2, Profile: h200(t)}
		want, got := mustRun(t, log, o), mustRun(t, recording, o)
		if want.Durations != trace.DurationsRecorded || got.Durations != trace.DurationsEstimated {
			t.Errorf("%s: durations %s and %s", name, want.Durations, got.Durations)
		}
		near := func(what string, got, want float64) {
			if math.Abs(got/want-1) > 0.02 {
				t.Errorf("%s: %s %.4f, want %.4f", name, what, got, want)
			}
		}
		near("compute", got.ComputeSeconds, want.ComputeSeconds)
		near("seconds an iteration", got.IterationSeconds, want.IterationSeconds)
		near("bytes in", float64(got.H2DBytes), float64(want.H2DBytes))
	}
}

// TestWithoutDurations: compute of 0 s is never made up.
func TestWithoutDurations(t *testing.T) {
	tr := network(4, 3)
	for i := range tr.Events {
		tr.Events[i].Duration = -1
	}
	for _, policy := range Policies() {
		if _, err := Run(t.Context(), tr, Options{Policy: policy, Ratio: 1.2, Profile: h200(t)}); err == nil {
			t.Errorf("%s ran", policy)
		}
	}
}
