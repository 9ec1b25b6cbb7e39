package metrics

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"

	"github.com/penstock-gpu/penstock/faults/analyse"
)

func sample(kernels int) *analyse.Report {
	r := &analyse.Report{}
	r.Summary = analyse.Summary{Faults: 10, H2DBytes: 100, StallSeconds: 1.5}
	r.Causes = []analyse.CauseRow{{Cause: "first touch", Faults: 10}}
	r.Phases = []analyse.PhaseRow{{Phase: "forward", Faults: 10}}
	r.Migrations = []analyse.MoveRow{{Cause: "eviction", D2HBytes: 7}}
	for i := range kernels {
		r.Kernels = append(r.Kernels, analyse.KernelRow{Kernel: fmt.Sprintf("k%d\xff\n\"", i), Faults: 1, FaultedBytes: 2})
	}
	return r
}

func text(t *testing.T, r *analyse.Report) string {
	t.Helper()
	var b strings.Builder
	if err := WriteText(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestLint asks the linter that promtool has, and promtool itself where it is installed.
func TestLint(t *testing.T) {
	out := text(t, sample(60))
	problems, err := promlint.New(strings.NewReader(out)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %+v", err, problems)
	}
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool on PATH: only its linter was asked")
	}
	cmd := exec.Command(tool, "check", "metrics")
	cmd.Stdin = strings.NewReader(out)
	if answer, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, answer)
	}
}

// The text is what Prometheus' own parser takes, and labels are bounded.
func TestWriteText(t *testing.T) {
	out := text(t, sample(500))
	families, err := new(expfmt.TextParser).TextToMetricFamilies(strings.NewReader(out))
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
	k := families["penstock_kernel_gpu_page_faults_total"]
	if n := len(k.GetMetric()); n != KernelLimit+1 {
		t.Errorf("%d series of kernels", n)
	}
	sum := 0.0
	for _, m := range k.GetMetric() {
		sum += m.GetCounter().GetValue()
	}
	if sum != 500 {
		t.Errorf("%v faults of kernels, want 500", sum)
	}
	for _, want := range []string{`penstock_migrated_bytes_total{direction="DtoH",reason="eviction"} 7`, "penstock_fault_stall_seconds_total 1.5", "penstock_recording_up 1"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%.3000s", want, out)
		}
	}
}

// A kernel that has a series keeps it, and no counter falls.
func TestSeriesStay(t *testing.T) {
	r := sample(KernelLimit + 5)
	registry := prometheus.NewPedanticRegistry()
	c := New(func() *analyse.Report { return r })
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	gather := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, f := range families {
			if f.GetName() == "penstock_kernel_gpu_page_faults_total" {
				for _, m := range f.GetMetric() {
					all[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
				}
			}
		}
		return all
	}
	before := gather()
	for i := range r.Kernels { // the last become the worst
		r.Kernels[i].Faults += int64(i)
	}
	for name, v := range gather() {
		if v < before[name] {
			t.Errorf("%q falls from %v to %v", name, before[name], v)
		}
		if _, ok := before[name]; !ok {
			t.Errorf("%q is new", name)
		}
	}
	r = nil
	if families, err := registry.Gather(); err != nil || len(families) != 1 {
		t.Errorf("without a report: %v, %v", families, err)
	}
}

var metricName = regexp.MustCompile(`penstock_[a-z_0-9]+`)

// The dashboard and the documentation name metrics that exist.
func TestDocumentation(t *testing.T) {
	r := sample(1)
	out := text(t, r)
	dashboard, err := os.ReadFile(filepath.Join("..", "..", "docs", "grafana-faults.json"))
	if err != nil {
		t.Fatal(err)
	}
	used := metricName.FindAllString(string(dashboard), -1)
	if len(used) < 8 {
		t.Errorf("the dashboard uses %q only", used)
	}
	for _, n := range used {
		if !strings.Contains(out, "# TYPE "+n+" ") {
			t.Errorf("the dashboard uses %s, which does not exist", n)
		}
	}
	manual, err := os.ReadFile(filepath.Join("..", "..", "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`# TYPE penstock_(\S+)`).FindAllStringSubmatch(out, -1) {
		if !strings.Contains(string(manual), "`"+m[1]+"`") {
			t.Errorf("docs/faults.md does not have %s", m[1])
		}
	}
}
