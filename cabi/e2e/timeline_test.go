package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-gpu/penstock/report"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// TestTimeline: what a job leaves with PENSTOCK_TIMELINE can be read, has all its moves and its iterations.
func TestTimeline(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "t.json")
	r := mustRun(t, explicitly("PENSTOCK_TIMELINE="+file), program(t, "explicit"), "train")
	all, _ := explicitStats(t, r)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	recorded, err := timeline.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	l, err := report.TimelineOf("t.json", recorded, report.WindowOfTime{})
	if err != nil {
		t.Fatal(err)
	}
	if in, out := all["h2d_bytes"], all["d2h_bytes"]; float64(l.In.Bytes) != in || float64(l.Out.Bytes) != out || l.In.Bytes == 0 {
		t.Errorf("%d bytes came and %d left, the engine counts %v and %v", l.In.Bytes, l.Out.Bytes, in, out)
	}
	if stalled := all["stall_seconds"].(float64); l.Waits.Count == 0 || l.Waits.Seconds > stalled*1.001 {
		t.Errorf("%+v, the engine counts %v s", l.Waits, stalled)
	}
	if l.Iterations == 0 || len(l.Threads) != 2 {
		t.Errorf("%d marks, %d threads", len(recorded.Marks), len(l.Threads))
	}
}
