package report

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/replay"
)

func TestGroupOrdersAndFindsBounds(t *testing.T) {
	results := append(synthetic("llama1b", replay.EngineManaged, 9*gib, 3, 1.5), synthetic("moe", replay.EngineManaged, 4*gib, 2)...)
	cases, err := group(results)
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) != 2 || cases[0].trace != "llama1b" || cases[1].trace != "moe" {
		t.Fatalf("cases: got %d, want llama1b and moe in the order given", len(cases))
	}
	if got := []string{formatRatio(cases[0].points[0].ratio), formatRatio(cases[0].points[1].ratio)}; got[0] != "1.5x" || got[1] != "3x" {
		t.Errorf("ratios: got %v, want ascending 1.5x, 3x", got)
	}
	want := []string{"naive", "lru", "deepum", "penstock", "oracle"}
	for _, p := range cases[0].points {
		for i, r := range p.rows {
			if r.Policy != want[i] {
				t.Errorf("row %d: got %s, want %s", i, r.Policy, want[i])
			}
			share, ok := r.ofBound()
			if r.isBound() {
				if ok {
					t.Error("the bound has a bound")
				}
				continue
			}
			if !ok || math.Abs(share-r.bound.IterationSeconds/r.IterationSeconds) > 1e-12 || share >= 1 {
				t.Errorf("%s: share of bound %v, %v", r.Policy, share, ok)
			}
			if r.bound.BudgetBytes != p.budgetBytes {
				t.Errorf("%s: bound of another budget", r.Policy)
			}
		}
	}
}

func TestBoundPrefersOwnEngine(t *testing.T) {
	result := func(policy, engine string, seconds float64) replay.Result {
		return replay.Result{Trace: "t", GPU: "g", Policy: policy, Engine: engine, BudgetBytes: 50, PeakLiveBytes: 100, IterationSeconds: seconds, Simulated: true}
	}
	managed, explicit := replay.EngineManaged, replay.EngineExplicit
	for _, test := range []struct {
		name       string
		results    []replay.Result
		wantEngine string
		wantLabel  string
	}{
		{"own", []replay.Result{result("penstock", managed, 4), result("oracle", explicit, 1), result("oracle", managed, 2)}, managed, "penstock (managed)"},
		{"other", []replay.Result{result("penstock", managed, 4), result("oracle", explicit, 1)}, explicit, "penstock (managed)"},
		{"none", []replay.Result{result("penstock", managed, 4)}, "", "penstock"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cases, err := group(test.results)
			if err != nil {
				t.Fatal(err)
			}
			r := cases[0].points[0].rows[0]
			if r.label != test.wantLabel {
				t.Errorf("label %q, want %q", r.label, test.wantLabel)
			}
			switch {
			case test.wantEngine == "" && r.bound != nil:
				t.Errorf("bound on %s, want none", r.bound.Engine)
			case test.wantEngine != "" && (r.bound == nil || r.bound.Engine != test.wantEngine):
				t.Errorf("bound %+v, want on %s", r.bound, test.wantEngine)
			}
		})
	}
}

func TestRefusedResults(t *testing.T) {
	good := synthetic("llama1b", replay.EngineManaged, 9*gib, 2)
	change := func(f func(*replay.Result)) []replay.Result {
		bad := append([]replay.Result(nil), good...)
		bad[1].Timeline = append([]replay.Sample(nil), bad[1].Timeline...)
		f(&bad[1])
		return bad
	}
	for _, test := range []struct {
		name    string
		results []replay.Result
		want    string
	}{
		{"nil", nil, "no results"},
		{"empty", []replay.Result{}, "no results"},
		{"measured", change(func(r *replay.Result) { r.Simulated = false }), "not marked simulated"},
		{"no budget", change(func(r *replay.Result) { r.BudgetBytes = 0 }), "budget_bytes"},
		{"NaN", change(func(r *replay.Result) { r.IterationSeconds = math.NaN() }), "iteration_seconds"},
		{"infinite", change(func(r *replay.Result) { r.StallSeconds = math.Inf(1) }), "stall_seconds"},
		{"negative bytes", change(func(r *replay.Result) { r.H2DBytes = -1 }), "h2d_bytes"},
		{"time runs back", change(func(r *replay.Result) { r.Timeline[7].Seconds = 0 }), "sample 7"},
		{"twice", append(append([]replay.Result(nil), good...), good[0]), "two results"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var page, table strings.Builder
			for name, err := range map[string]error{
				"WriteHTML":  WriteHTML(&page, "title", test.results),
				"WriteTable": WriteTable(&table, test.results),
			} {
				if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: got %v, want one line with %q", name, err, test.want)
				}
			}
			if page.Len()+table.Len() > 0 {
				t.Error("something was written before the error")
			}
		})
	}
}

func TestThinKeepsExtremes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 359, 360, 361, 1000, 54321} {
		samples := make([]replay.Sample, n)
		var highest, lowest, live int64 = -1, math.MaxInt64, -1
		for i := range samples {
			samples[i] = replay.Sample{Seconds: float64(i), ResidentBytes: random.Int64N(gib), LiveBytes: random.Int64N(gib)}
			highest, lowest = max(highest, samples[i].ResidentBytes), min(lowest, samples[i].ResidentBytes)
			live = max(live, samples[i].LiveBytes)
		}
		kept := thin(samples, keptMoments, residency)
		if len(kept) > keptMoments+6 {
			t.Errorf("%d samples: kept %d", n, len(kept))
		}
		if n == 0 {
			continue
		}
		var gotHighest, gotLowest, gotLive int64 = -1, math.MaxInt64, -1
		for i, s := range kept {
			gotHighest, gotLowest = max(gotHighest, s.ResidentBytes), min(gotLowest, s.ResidentBytes)
			gotLive = max(gotLive, s.LiveBytes)
			if i > 0 && s.Seconds <= kept[i-1].Seconds {
				t.Fatalf("%d samples: kept sample %d is not later than the one before", n, i)
			}
		}
		if gotHighest != highest || gotLowest != lowest || gotLive != live {
			t.Errorf("%d samples: an extreme was lost", n)
		}
		if kept[0] != samples[0] || kept[len(kept)-1] != samples[n-1] {
			t.Errorf("%d samples: an end was lost", n)
		}
	}
}

func TestMoments(t *testing.T) {
	samples := []replay.Sample{{Seconds: 0, H2DBytes: 1}, {Seconds: 1, H2DBytes: 2}, {Seconds: 4, H2DBytes: 3}}
	var got []int64
	for _, s := range moments(samples, []float64{0, 0.2, 0.25, 0.9, 1}) {
		got = append(got, s.H2DBytes)
	}
	want := []int64{1, 1, 2, 2, 3}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, test := range []struct {
		limit, unit float64
		n           int
		want        string
	}{
		{9.6, 1, 4, "0 5"},
		{10, 1, 5, "0 2 4 6 8 10"},
		{0.7, 1, 6, "0.0 0.2 0.4 0.6"},
		{0.05, 1e-3, 5, "0 10 20 30 40 50"},
		{2500, 1, 3, "0 1,000 2,000"},
		{0, 1, 4, "0"},
	} {
		var labels []string
		for _, k := range ticks(xScale(test.limit, wideWidth), test.unit, test.n) {
			labels = append(labels, k.Label)
		}
		if got := strings.Join(labels, " "); got != test.want {
			t.Errorf("ticks up to %v: got %q, want %q", test.limit, got, test.want)
		}
	}
}

func TestFormats(t *testing.T) {
	for _, test := range []struct{ name, got, want string }{
		{"bytes", formatBytes(0), "0 B"},
		{"bytes", formatBytes(1023), "1,023 B"},
		{"bytes", formatBytes(3 * gib / 2), "1.50 GiB"},
		{"bytes", formatBytes(139 * gib), "139.0 GiB"},
		{"small in a large unit", unitFor(gib).in(1), "<0.01"},
		{"nothing in a large unit", unitFor(gib).in(0), "0"},
		{"seconds", timeUnitFor(0.2).format(0.2), "0.200 s"},
		{"milliseconds", timeUnitFor(0.048).format(0.048), "48.00 ms"},
		{"microseconds", timeUnitFor(0.00001).format(0.00001), "10.0 us"},
		{"zero seconds", timeUnitFor(0).format(0), "0 us"},
		{"share is never rounded up to all", formatShare(0.9999), "99 %"},
		{"whole", formatShare(1), "100 %"},
		{"floating point", formatShare(0.29), "29 %"},
		{"faster than the bound shows", formatShare(1.001), "101 %"},
		{"times", formatTimes(3.456), "3.46x"},
		{"many times", formatTimes(1234.5), "1,234x"},
		{"ratio of whole bytes", formatRatio(1.5000001), "1.5x"},
		{"ratio", formatRatio(1.25), "1.25x"},
		{"ratio", formatRatio(10), "10x"},
		{"digits", groupDigits("-1234567.5"), "-1,234,567.5"},
		{"escape sequence", plain("a\x1b[31mb\n"), `a\x1b[31mb\n`},
		{"other writing", plain("größe 模型"), "größe 模型"},
	} {
		if test.got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, test.got, test.want)
		}
	}
}

func TestSummary(t *testing.T) {
	result := func(trace, policy string, seconds float64) replay.Result {
		return replay.Result{Trace: trace, GPU: "g", Policy: policy, Engine: "managed", BudgetBytes: 50, PeakLiveBytes: 100, IterationSeconds: seconds, Simulated: true}
	}
	cases, err := group([]replay.Result{
		result("a", "naive", 8), result("a", "penstock", 4), result("a", "oracle", 2),
		result("b", "naive", 8), result("b", "penstock", 1), result("b", "oracle", 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := summarise(cases[:1]); got != nil {
		t.Errorf("one case: got %v, want no summary", got)
	}
	for _, s := range summarise(cases) {
		if s.Label != "penstock" {
			continue
		}
		// Over naive 2 and 8: mean 4. Of the bound 0.5 and 1: mean 0.707.
		want := summaryRow{Label: "penstock", Class: "p-penstock", Points: 2, Times: "4.00x", Share: "70 %", WorstShare: "50 %"}
		if s != want {
			t.Errorf("got %+v, want %+v", s, want)
		}
		return
	}
	t.Error("penstock is missing")
}
