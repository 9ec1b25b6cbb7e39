//go:build linux

package bpf

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"
)

// testCommand: `penstock faults record --system` and the report of what it
// recorded, of a process that knows nothing of it.
func testCommand(t *testing.T) {
	const penstock, file = "/penstock", "/tmp/faults.pstrace"
	if _, err := os.Stat(penstock); err != nil {
		t.Skip("the guest was started without the command")
	}
	var said bytes.Buffer
	record := exec.Command(penstock, "faults", "record", "--system", "--output", file)
	record.Stderr = &said
	if err := record.Start(); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			break // it listens: the file comes after that
		}
		if time.Since(begin) > time.Minute {
			_ = record.Process.Kill()
			t.Fatalf("it does not begin: %s", said.String())
		}
	}
	p := startPager(t, 0x7f00_0000_0000)
	raised, _ := p.script(true)
	p.raise(raised...)
	p.end()
	time.Sleep(time.Second)
	if err := record.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := record.Wait(); err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	t.Log(said.String())
	out, err := exec.Command(penstock, "faults", "report", file, "--format", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	type summary struct {
		Faults     int64 `json:"faults"`
		CopyEngine int64 `json:"copy_engine_faults"`
		CPUFaults  int64 `json:"cpu_faults"`
		H2DBytes   int64 `json:"h2d_bytes"`
		D2HBytes   int64 `json:"d2h_bytes"`
		LostEvents int64 `json:"lost_events"`
	}
	var report struct {
		Summary   summary `json:"summary"`
		Processes []struct {
			Process uint32 `json:"process"`
			Faults  int64  `json:"faults"`
		} `json:"processes"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The script: nine migrations of one to nine pages in, an eviction of a block out.
	if want := (summary{Faults: 300, CopyEngine: 150, CPUFaults: 2, H2DBytes: 45 << 12, D2HBytes: 2 << 20}); report.Summary != want {
		t.Errorf("%+v, want %+v", report.Summary, want)
	}
	if len(report.Processes) != 1 || report.Processes[0].Process != uint32(p.pid()) || report.Processes[0].Faults != 300 {
		t.Errorf("%+v, want 300 faults of process %d", report.Processes, p.pid())
	}
}
