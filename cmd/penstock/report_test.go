package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-gpu/penstock/um/live/bound"
)

func TestReportFragmentation(t *testing.T) {
	page := filepath.Join(t.TempDir(), "f.html")
	status, stdout, stderr := command(t, "report", "fragmentation", shipped(t), "--json", "--html", page)
	if status != 0 {
		t.Fatal(stderr)
	}
	var r struct {
		Reserved          string
		PeakReservedBytes int64            `json:"peak_reserved_bytes"`
		PeakRequested     int64            `json:"peak_requested_bytes"`
		Timeline          []map[string]any `json:"timeline"`
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	if r.Reserved != "simulated" || r.PeakReservedBytes < r.PeakRequested || r.PeakRequested == 0 || len(r.Timeline) < 100 || len(r.Timeline) > jsonMoments+10 {
		t.Errorf("%s, %d of %d bytes, %d moments", r.Reserved, r.PeakReservedBytes, r.PeakRequested, len(r.Timeline))
	}
	if html, _ := os.ReadFile(page); !strings.Contains(string(html), "</html>") {
		t.Errorf("%d bytes of page", len(html))
	}
	status, stdout, _ = command(t, "report", "fragmentation", shipped(t))
	if status != 0 || !strings.Contains(stdout, "reserved is simulated") || !strings.Contains(stdout, "lost") {
		t.Errorf("status %d: %s", status, stdout)
	}
}

// jobReport writes the report of a job that left the shipped trace behind, half of which fits.
func jobReport(t *testing.T) string {
	t.Helper()
	in, err := shippedInput()
	if err != nil {
		t.Fatal(err)
	}
	e := &bound.Evidence{Device: "NVIDIA H200", BudgetBytes: in.peakBytes / 2}
	if err := e.Record(in.Trace); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(bound.Report{Explicit: &bound.Judgement{Bound: bound.Bound{IterationSeconds: 1, LaunchCostSeconds: 60e-6, Why: "nobody asked"}, Evidence: e}})
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(t.TempDir(), "r.json")
	write(t, report, string(text), 0o644)
	return report
}

func TestReportBound(t *testing.T) {
	report := jobReport(t)
	status, stdout, stderr := command(t, "report", "bound", "--json", report)
	if status != 0 {
		t.Fatal(stderr)
	}
	var found []bound.Bound
	for line := range strings.Lines(stdout) {
		var b bound.Bound
		if err := json.Unmarshal([]byte(line), &b); err != nil {
			t.Fatal(err)
		}
		found = append(found, b)
	}
	// The first is known before the one that waits for the CPU, which takes longer.
	if len(found) != 2 || found[0].Seconds <= 0 || found[0].Share != found[0].Seconds || found[0].WithCPUSeconds != 0 ||
		found[1].Seconds != found[0].Seconds || found[1].WithCPUSeconds <= found[0].Seconds || !strings.HasPrefix(found[1].Bus, "of h200") || found[1].Why != "" {
		t.Fatalf("%+v", found)
	}
	judged, err := json.Marshal(bound.Report{Explicit: &bound.Judgement{Bound: found[1]}})
	if err != nil {
		t.Fatal(err)
	}
	before := filepath.Join(t.TempDir(), "judged.json")
	write(t, before, string(judged), 0o644)
	for _, file := range []string{report, before} {
		if status, stdout, stderr = command(t, "report", "bound", file); status != 0 || !strings.Contains(stdout, "of the speed of an oracle that waits for it") {
			t.Errorf("status %d: %s%s", status, stdout, stderr)
		}
	}
}

func TestReportBadInput(t *testing.T) {
	evil := filepath.Join(t.TempDir(), "evil.pickle")
	os.WriteFile(evil, []byte("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R."), 0o644)
	refused(t, []string{"name one"}, "report", "fragmentation")
	refused(t, []string{"name one", "2"}, "report", "fragmentation", "a", "b")
	refused(t, []string{"unknown report"}, "report", "heat")
	refused(t, []string{"run code"}, "report", "fragmentation", evil)
	refused(t, []string{"no such file"}, "report", "fragmentation", filepath.Join(t.TempDir(), "none"))
	none := filepath.Join(t.TempDir(), "none.json")
	refused(t, []string{"name one report"}, "report", "bound")
	refused(t, []string{"no such file"}, "report", "bound", none)
	refused(t, []string{"no report of a job"}, "report", "bound", evil)
	write(t, none, `{"engine": "managed"}`, 0o644)
	refused(t, []string{"no job of the explicit engine"}, "report", "bound", none)
	refused(t, []string{"--html"}, "report", "fragmentation", shipped(t), "--html", t.TempDir())
}

// recordedTimeline is 10 ms of a real job (report/testdata/README.md).
const recordedTimeline = "../../report/testdata/timeline.json"

func TestReportTimeline(t *testing.T) {
	page := filepath.Join(t.TempDir(), "t.html")
	status, stdout, stderr := command(t, "report", "timeline", recordedTimeline, "--from", "5.302s", "--to", "5.305s", "--json", "--html", page)
	if status != 0 {
		t.Fatal(stderr)
	}
	var r struct {
		File    string
		Seconds float64
		Waits   struct {
			Seconds float64
			Share   float64 `json:"seconds_a_second"`
		} `json:"gpu_waits"`
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	if r.File != "timeline.json" || r.Seconds < 0.00299 || r.Seconds > 0.00301 || r.Waits.Seconds <= 0 || r.Waits.Share <= r.Waits.Seconds {
		t.Errorf("%+v", r)
	}
	if html, _ := os.ReadFile(page); !strings.Contains(string(html), "</html>") {
		t.Errorf("%d bytes of page", len(html))
	}
	if status, stdout, stderr = command(t, "report", "timeline", recordedTimeline, "--last", "5ms"); status != 0 || !strings.Contains(stdout, "timeline.json: 0.005 s") || !strings.Contains(stdout, "The longest waits") {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}

func TestReportTimelineBadInput(t *testing.T) {
	whole, err := os.ReadFile(recordedTimeline)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.json")
	write(t, cut, string(whole[:len(whole)/2]), 0o644)
	refused(t, []string{"name one time line"}, "report", "timeline")
	refused(t, []string{"no such file"}, "report", "timeline", cut+"x")
	refused(t, []string{"no time line of penstock run --timeline", "cut off"}, "report", "timeline", cut)
	refused(t, []string{"no time line"}, "report", "timeline", shipped(t))
	refused(t, []string{"--last", "500ms or 2s"}, "report", "timeline", recordedTimeline, "--last", "2")
	refused(t, []string{"--last", "500ms or 2s"}, "report", "timeline", recordedTimeline, "--last", "0s")
	refused(t, []string{"--from", "500ms or 2s"}, "report", "timeline", recordedTimeline, "--from", "-1s")
	refused(t, []string{"leave out"}, "report", "timeline", recordedTimeline, "--last", "1s", "--to", "2s")
	refused(t, []string{"no time is left", "5.3"}, "report", "timeline", recordedTimeline, "--to", "1s")
	refused(t, []string{"--html"}, "report", "timeline", recordedTimeline, "--html", t.TempDir())
}
