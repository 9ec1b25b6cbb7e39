package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-gpu/penstock/replay"
	"github.com/penstock-gpu/penstock/trace"
)

func TestBenchBadInput(t *testing.T) {
	fakeReplays(t, func(context.Context, *trace.Trace, replay.Options) (replay.Result, error) {
		t.Error("bad input reached the simulation")
		return replay.Result{}, nil
	})
	small := traceFile(t, "small.tsv", smallLog)
	for _, c := range []struct {
		wants []string
		args  []string
	}{
		{[]string{"unknown policy"}, []string{"--policies", "naive,magic"}},
		{[]string{"unknown engine"}, []string{"--engines", "steam"}},
		{[]string{"--policies is empty"}, []string{"--policies", ","}},
		{[]string{"--ratios is empty"}, []string{"--ratios", ""}},
		{[]string{"ratio 0.5 is impossible"}, []string{"--ratios", "2,0.5"}},
		{[]string{"unknown GPU profile"}, []string{"--gpu", "abacus"}},
		{[]string{"give one of them"}, []string{"--json", "--csv"}},
		{[]string{"the explicit engine has no such policy"}, []string{"--engines", "explicit", "--policies", "naive"}},
		{[]string{"no such file"}, []string{filepath.Join(t.TempDir(), "none")}},
		{[]string{"two traces are called small"}, []string{small, "--trace", small}},
		{[]string{"make the folder"}, []string{"--html", filepath.Join(t.TempDir(), "no", "page.html")}},
		{[]string{"is a folder"}, []string{"--html", t.TempDir()}},
	} {
		refused(t, c.wants, append([]string{"bench"}, c.args...)...)
	}
	// When nothing at all can be replayed, the reason is the error.
	status, stdout, stderr := command(t, "bench", small, "--ratios", "2,3")
	if status != statusUsage || stdout != "" || !strings.Contains(stderr, "kernel _Zbig touches 62914560 bytes") {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
}

func TestBenchTable(t *testing.T) {
	fakeReplays(t, plausible)
	small := traceFile(t, "small.tsv", smallLog)
	status, stdout, stderr := command(t, "bench", shipped(t), small)
	if status != 0 {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	// gpt2m at three ratios and small at one: eight replays each.
	if got := strings.Count(stdout, "gpt2m"); got != 3 {
		t.Errorf("%d lines of gpt2m:\n%s", got, stdout)
	}
	if !strings.Contains(stderr, "32/32 ") || !strings.Contains(stderr, "left out small at 2x") || !strings.Contains(stderr, "left out small at 3x") {
		t.Errorf("stderr:\n%s", stderr)
	}
	for _, want := range []string{
		"simulated on h200: no GPU was used",
		"trace  ratio    budget  compute  naive    lru  deepum  penstock  lru (explicit)  penstock (explicit)  bound  bound (explicit)  over naive  of bound",
		"gpt2m     2x     3 GiB    0.050  0.450  0.250   0.200     0.150           0.100                0.100  0.140             0.100       3.00x     1.07x",
		"small   1.5x  66.7 MiB    0.050  0.250",
		"penstock runs at 2.83x the speed of naive (geometric mean of 4; 2.50x at least)",
		"as long as the bound (geometric mean of 4; 1.09x at most)",
		"the explicit engine takes 0.69x as long as the managed one (geometric mean of 4; 0.60x at least)",
		"the explicit engine takes 1.00x as long as its bound (geometric mean of 4; 1.00x at most)",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in:\n%s", want, stdout)
		}
	}
}

// A table without some columns says less, not nonsense.
func TestBenchSomePolicies(t *testing.T) {
	fakeReplays(t, plausible)
	status, stdout, _ := command(t, "bench", "--policies", "lru,naive,lru", "--ratios", "2", "--engines", "managed")
	if status != 0 || strings.Contains(stdout, "bound") || strings.Contains(stdout, "over naive") || !strings.Contains(stdout, "lru  naive") {
		t.Errorf("status %d:\n%s", status, stdout)
	}
}

func TestBenchFormats(t *testing.T) {
	fakeReplays(t, plausible)
	page := filepath.Join(t.TempDir(), "page.html")
	status, stdout, _ := command(t, "bench", "--csv", "--ratios", "1.5,2x", "--html", page)
	if status != 0 {
		t.Fatalf("status %d", status)
	}
	rows, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	if err != nil || len(rows) != 1+2*8 {
		t.Fatalf("%d rows, %v:\n%s", len(rows), err, stdout)
	}
	if got := rows[2]; got[0] != "gpt2m" || got[1] != "1.5" || got[2] != "lru" || got[3] != "managed" || got[15] != "true" {
		t.Errorf("second row %v", got)
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "gpt2m") {
		t.Errorf("page: %d bytes, %v", len(html), err)
	}

	status, stdout, _ = command(t, "bench", "--json", "--ratios", "2")
	var results []map[string]any
	if err := json.Unmarshal([]byte(stdout), &results); status != 0 || err != nil || len(results) != 8 {
		t.Fatalf("status %d, %d results, %v:\n%s", status, len(results), err, stdout)
	}
	if r := results[7]; r["policy"] != "oracle" || r["engine"] != "explicit" || r["ratio"] != 2.0 || r["simulated"] != true {
		t.Errorf("last result %v", r)
	}
	// Columns and fields are the same.
	for _, name := range rows[0] {
		if _, ok := results[0][name]; !ok {
			t.Errorf("%s is in the CSV and not in the JSON", name)
		}
	}
	if len(results[0]) != len(rows[0]) {
		t.Errorf("%d columns, %d fields", len(rows[0]), len(results[0]))
	}
}

// The first failure ends a bench; what has not begun does not begin.
func TestBenchStopsAtTheFirstError(t *testing.T) {
	var begun atomic.Int32
	fakeReplays(t, func(ctx context.Context, _ *trace.Trace, _ replay.Options) (replay.Result, error) {
		begun.Add(1)
		return replay.Result{}, &replay.InputError{Text: "no: do something else"}
	})
	ratios := "2"
	for i := range 200 {
		ratios += ",2." + strings.Repeat("0", i) + "1"
	}
	status, stdout, stderr := command(t, "bench", "--policies", "naive", "--ratios", ratios)
	if status != statusUsage || stdout != "" || stderr != "penstock: no: do something else\n" {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	if n := begun.Load(); n > 16 {
		t.Errorf("%d replays began", n)
	}
}

func TestCombinations(t *testing.T) {
	var got []string
	for _, j := range combinations(input{Trace: &trace.Trace{Name: "t"}}, 2, replay.Policies(), knownEngines, demoProfileForTest(t), true) {
		got = append(got, j.String())
	}
	want := []string{"t at 2x, naive", "t at 2x, lru", "t at 2x, deepum", "t at 2x, penstock", "t at 2x, oracle",
		"t at 2x, lru (explicit)", "t at 2x, penstock (explicit)", "t at 2x, oracle (explicit)"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
