package trace

import (
	"path/filepath"
	"strings"
	"time"
)

// Trace is a whole trace in memory.
type Trace struct {
	Name   string // the file's name without folder and extension
	Header Header
	Events []Event

	// Reserved is what the recorded process's own allocator had reserved, over time,
	// where the source says so (PyTorch memory snapshots). Recordings do not keep it.
	Reserved []Reserved

	// Estimate is not nil when the durations of launches and copies were estimated.
	Estimate *Estimate

	// Differ says that no two of the iterations that were found are alike: see MarkDiffering.
	Differ bool
}

// Reserved says that from an event on, so many bytes were reserved.
type Reserved struct {
	Event int // index in Trace.Events
	Bytes int64
}

// Header says where a trace comes from. Every field is optional.
type Header struct {
	Source  string    `json:"source,omitempty"`  // the program that recorded it
	Command string    `json:"command,omitempty"` // the command line that was recorded
	GPU     string    `json:"gpu,omitempty"`
	Started time.Time `json:"started,omitzero"`

	// What the recorded process's own allocator said at its end; 0 when unknown.
	// It rounds requests up, so the peak is not exactly Trace.PeakLiveBytes.
	ReportedPeakBytes     int64 `json:"reported_peak_bytes,omitempty"`
	ReportedReservedBytes int64 `json:"reported_reserved_bytes,omitempty"`

	// What the recording ran under; empty and 0 when unknown or none.
	Driver      string `json:"driver,omitempty"`
	Policy      string `json:"policy,omitempty"`
	BudgetBytes int64  `json:"budget_bytes,omitempty"`
	Process     int    `json:"process,omitempty"`
	// ClockNanos is CLOCK_MONOTONIC_RAW at the trace's time 0, whose wall clock is Started.
	ClockNanos int64 `json:"clock_nanos,omitempty"`
	// Lacks says what the recorder could not see; empty when nothing is missing.
	Lacks string `json:"lacks,omitempty"`
}

// Extension is what recorded files are called.
const Extension = ".pstrace"

// nameOf is the trace's name: the file's, without folder and known extensions.
func nameOf(path string) string {
	name := filepath.Base(path)
	for _, ext := range []string{".gz", ".tsv", ".csv", ".pickle", ".pkl", Extension} {
		if s := strings.TrimSuffix(name, ext); s != "" {
			name = s
		}
	}
	return name
}
