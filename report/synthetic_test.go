package report

import (
	"math"

	"github.com/penstock-gpu/penstock/replay"
)

const (
	gib         = int64(1) << 30
	testCompute = 0.169
)

// synthetic makes the results of a training-shaped iteration: live bytes climb
// in the forward pass and fall in the backward pass, and a policy waits for
// what crosses the bus at its own rate. Nothing here claims to be a replay; it
// only has the shape of one.
func synthetic(traceName, engine string, peak int64, ratios ...float64) []replay.Result {
	policies := []struct {
		name     string
		traffic  float64 // bytes each way over the bytes that do not fit
		perByte  float64 // seconds a byte, over that of the bus
		faults   int64
		hitShare float64
	}{
		{replay.PolicyOracle, 1, 1, 0, 0},
		{replay.PolicyPenstock, 1.1, 1.08, 12, 0.9931},
		{replay.PolicyNaive, 3.4, 4.2, 81234, 0},
		{replay.PolicyDeepUM, 1.6, 2.4, 2210, 0.87},
		{replay.PolicyLRU, 1.5, 2.0, 3100, 0},
	}
	const bus = 46e9
	var out []replay.Result
	for _, ratio := range ratios {
		budget := int64(float64(peak) / ratio)
		for _, p := range policies {
			moved := int64(p.traffic * 2 * float64(peak-budget))
			stall := float64(moved) * p.perByte / bus
			r := replay.Result{
				Trace: traceName, Policy: p.name, Engine: engine, GPU: "h200",
				BudgetBytes: budget, PeakLiveBytes: peak,
				ComputeSeconds: testCompute, IterationSeconds: testCompute + stall, StallSeconds: stall,
				H2DBytes: moved, D2HBytes: moved + moved/20, Faults: p.faults, PredictionHitRate: p.hitShare,
				Simulated: true,
			}
			r.Timeline = timelineOf(r)
			out = append(out, r)
		}
	}
	return out
}

func timelineOf(r replay.Result) []replay.Sample {
	const n = 3000
	smooth := func(x float64) float64 { x = min(max(x, 0), 1); return x * x * (3 - 2*x) }
	samples := make([]replay.Sample, 0, n+1)
	for i := range n + 1 {
		at := float64(i) / n
		live := int64(float64(r.PeakLiveBytes) * (0.42 + 0.58*(1-math.Abs(2*at-1)) - 0.015*math.Abs(math.Sin(at*140))))
		out, in := smooth(at*1.9-0.05), smooth(at*1.7-0.75)
		resident := min(live, r.BudgetBytes-int64(float64(r.BudgetBytes)*0.02*math.Abs(math.Sin(at*90))))
		samples = append(samples, replay.Sample{
			Seconds: at * r.IterationSeconds, ResidentBytes: resident, LiveBytes: live,
			H2DBytes: int64(in * float64(r.H2DBytes)), D2HBytes: int64(out * float64(r.D2HBytes)),
			StallSeconds: r.StallSeconds * (0.35*out + 0.65*in),
		})
	}
	return samples
}
