package main

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/pool/plan"
)

func TestPlanTrace(t *testing.T) {
	out := filepath.Join(t.TempDir(), "plan.json")
	status, stdout, stderr := command(t, "plan", "--trace", shipped(t), "--out", out, "--json")
	if status != 0 {
		t.Fatal(stderr)
	}
	var r planResult
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	if !r.Fits || r.PeakLiveBytes <= 0 || r.PlannedOver > 1.01 || float64(r.PlannedBytes) > 1.01*float64(r.PeakLiveBytes) || r.PlanSeconds <= 0 {
		t.Errorf("%+v", r)
	}
	p, err := plan.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if p.ArenaBytes != r.PlannedBytes || len(p.Period) != r.Period {
		t.Errorf("the file has %d bytes and %d calls, reported were %+v", p.ArenaBytes, len(p.Period), r)
	}
	status, stdout, _ = command(t, "plan", "--trace", shipped(t), "--capacity", "1GiB", "--time", "100ms")
	if status != 0 || !strings.Contains(stdout, "does not fit") {
		t.Errorf("status %d: %s", status, stdout)
	}
}

func TestPlanCSV(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.csv"), filepath.Join(dir, "out.csv")
	os.WriteFile(in, []byte("id,lower,upper,size\na,0,4,8\nb,2,6,8\nc,4,8,8\n"), 0o644)
	status, stdout, stderr := command(t, "plan", "--csv", in, "--capacity", "16", "--out", out, "--json")
	if status != 0 {
		t.Fatal(stderr)
	}
	var r planResult
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || !r.Fits || r.PlannedBytes != 16 || r.PeakLiveBytes != 16 {
		t.Errorf("%+v, %v", r, err)
	}
	text, _ := os.ReadFile(out)
	rows, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	if err != nil || len(rows) != 4 || rows[0][0] != "id" || rows[0][1] != "offset" {
		t.Fatalf("%q, %v", text, err)
	}
	at := map[string]int{}
	for _, row := range rows[1:] {
		at[row[0]], _ = strconv.Atoi(row[1])
	}
	if d := at["a"] - at["b"]; d > -8 && d < 8 || at["b"]-at["c"] > -8 && at["b"]-at["c"] < 8 {
		t.Errorf("overlap: %v", at)
	}
}

func TestPlanBadInput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		os.WriteFile(p, []byte(text), 0o644)
		return p
	}
	good := write("good.csv", "id,lower,upper,size\n1,0,4,8\n")
	pins := write("pins.csv", "id,lower,upper,size,offset\n1,0,4,8,0\n2,0,4,8,4\n")
	for _, c := range []struct {
		wants []string
		args  []string
	}{
		{[]string{"--trace", "--csv"}, nil},
		{[]string{"one of them"}, []string{"--trace", shipped(t), "--csv", good}},
		{[]string{"--time"}, []string{"--csv", good, "--time", "0s"}},
		{[]string{"--capacity", "not a size"}, []string{"--csv", good, "--capacity", "lots"}},
		{[]string{"--capacity", "0 bytes"}, []string{"--csv", good, "--capacity", "0"}},
		{[]string{"--out"}, []string{"--csv", good, "--out", filepath.Join(dir, "none", "x.csv")}},
		{[]string{"--accept-damaged"}, []string{"--csv", good, "--accept-damaged"}},
		{[]string{"line 2", "never alive"}, []string{"--csv", write("bad.csv", "id,lower,upper,size\n1,4,4,8\n")}},
		{[]string{"overlap"}, []string{"--csv", pins}},
		{[]string{"not a trace"}, []string{"--trace", good}},
		{[]string{"allocates nothing"}, []string{"--trace", write("empty.tsv", "M\titer0\nM\tend\nS\tpeak=0\n")}},
	} {
		refused(t, c.wants, append([]string{"plan"}, c.args...)...)
	}
}
