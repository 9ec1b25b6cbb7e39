package oracle

import (
	"testing"

	"github.com/penstock-gpu/penstock/internal/raced"
	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
)

// TestSharedLogs holds the bound against the greedy clairvoyant schedule
// measured earlier (both directions at 46 GB/s) and against physics.
func TestSharedLogs(t *testing.T) {
	raced.Skip(t)
	short.Skip(t)
	const rate = 46e9
	var tr *trace.Trace
	var name string
	for _, test := range []struct {
		log     string
		ratio   float64
		seconds float64 // the greedy schedule
	}{
		{"gpt2m", 1.5, 0.101}, {"gpt2m", 2, 0.147}, {"gpt2m", 3, 0.190},
		{"gpt2l", 1.5, 1.151}, {"gpt2l", 2, 1.361}, {"gpt2l", 3, 1.709},
		{"llama1b", 1.5, 0.449}, {"llama1b", 2, 0.600}, {"llama1b", 3, 0.802},
		{"llama1b-lr", 1.25, 0.412},
		{"moe", 1.5, 0.160}, {"moe", 2, 0.216}, {"moe", 3, 0.303},
		{"resnet152", 1.5, 0.185}, {"resnet152", 2, 0.269}, {"resnet152", 3, 0.357},
	} {
		if tr == nil || name != test.log {
			tr, name = testlogs.Load(t, test.log), test.log
		}
		peak := tr.PeakLiveBytes()
		for _, duplex := range []bool{true, false} {
			if !duplex && test.ratio != 2 {
				continue
			}
			o := Options{BudgetBytes: int64(float64(peak) / test.ratio), H2DBytesPerSecond: rate, D2HBytesPerSecond: rate, Timeline: true}
			if duplex {
				o.DuplexBytesPerSecond = 2 * rate
			}
			r, err := Run(tr, o)
			if err != nil {
				t.Errorf("%s at %gx: %v", test.log, test.ratio, err)
				continue
			}
			t.Logf("%-10s %4gx duplex %-5v: %.4f s, compute %.4f, in %6.2f GB, out %6.2f GB, plan: %s", test.log, test.ratio, duplex,
				r.IterationSeconds, r.ComputeSeconds, float64(r.H2DBytes)/1e9, float64(r.D2HBytes)/1e9, r.Plan)
			if duplex && r.IterationSeconds > test.seconds*1.03 {
				t.Errorf("%s at %gx: %.4f s, the greedy schedule takes %.3f", test.log, test.ratio, r.IterationSeconds, test.seconds)
			}
			checkPhysics(t, r, rate, duplex)
			if r.PeakLiveBytes != peak {
				t.Errorf("%s: peak of %d bytes, the trace says %d", test.log, r.PeakLiveBytes, peak)
			}
			if !r.Repeats {
				t.Errorf("%s: the last iteration was not recognised as a repetition of the one before", test.log)
			}
		}
	}
}

// checkPhysics fails when a result is better than the hardware allows.
func checkPhysics(t *testing.T, r Result, rate float64, duplex bool) {
	t.Helper()
	const slip = 1e-9 // seconds: sums of floats
	in, out := float64(r.H2DBytes)/rate, float64(r.D2HBytes)/rate
	if !duplex {
		in += out
	}
	for what, least := range map[string]float64{"compute": r.ComputeSeconds, "copies in": in, "copies out": out} {
		if r.IterationSeconds < least-slip {
			t.Errorf("an iteration of %g s is shorter than its %s, %g s", r.IterationSeconds, what, least)
		}
	}
	if d := r.IterationSeconds - r.ComputeSeconds - r.StallSeconds; d > slip || d < -slip {
		t.Errorf("iteration of %g s is not compute of %g s and stalls of %g s", r.IterationSeconds, r.ComputeSeconds, r.StallSeconds)
	}
	var before Sample
	for _, s := range r.Timeline {
		if s.Seconds < before.Seconds || s.H2DBytes < before.H2DBytes || s.D2HBytes < before.D2HBytes || s.StallSeconds < before.StallSeconds-slip {
			t.Fatalf("the timeline runs backwards: %+v after %+v", s, before)
		}
		before = s
	}
}

func BenchmarkRun(b *testing.B) {
	tr := testlogs.Load(b, "gpt2l")
	o := Options{BudgetBytes: tr.PeakLiveBytes() / 2, H2DBytesPerSecond: 46e9, D2HBytesPerSecond: 46e9, DuplexBytesPerSecond: 92e9}
	for b.Loop() {
		if _, err := Run(tr, o); err != nil {
			b.Fatal(err)
		}
	}
}
