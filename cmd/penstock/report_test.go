package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

func TestReportBadInput(t *testing.T) {
	evil := filepath.Join(t.TempDir(), "evil.pickle")
	os.WriteFile(evil, []byte("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R."), 0o644)
	refused(t, []string{"name one"}, "report", "fragmentation")
	refused(t, []string{"name one", "2"}, "report", "fragmentation", "a", "b")
	refused(t, []string{"unknown report"}, "report", "heat")
	refused(t, []string{"run code"}, "report", "fragmentation", evil)
	refused(t, []string{"no such file"}, "report", "fragmentation", filepath.Join(t.TempDir(), "none"))
	refused(t, []string{"--html"}, "report", "fragmentation", shipped(t), "--html", t.TempDir())
}
