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
}

// Extension is what recorded files are called.
const Extension = ".pstrace"

// nameOf is the trace's name: the file's, without folder and known extensions.
func nameOf(path string) string {
	name := filepath.Base(path)
	for _, ext := range []string{".gz", ".tsv", Extension} {
		if s := strings.TrimSuffix(name, ext); s != "" {
			name = s
		}
	}
	return name
}
