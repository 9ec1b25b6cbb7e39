package trace

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotTrace is wrapped by the error for a file that is neither a recording nor a launch log.
var ErrNotTrace = errors.New("not a trace")

// ErrTruncated is wrapped by a DamageError whose damage is only that the file
// ends too early, as after a killed process or an interrupted copy.
var ErrTruncated = errors.New("truncated")

// DamageError says that a trace is readable up to a point and damaged from there.
type DamageError struct {
	Path    string // empty when reading from a stream
	Offset  int64  // of the first byte that could not be used: of the file, or of its text when Text
	Text    bool   // Offset and Line count in a launch log's text (for .gz: decompressed)
	Line    int    // 1-based, when Text
	Events  int    // intact events before the damage
	Problem string
	Err     error // cause: ErrTruncated, an I/O error, or nil
}

func (e *DamageError) Error() string {
	var b strings.Builder
	if e.Path != "" {
		fmt.Fprintf(&b, "trace %s: ", e.Path)
	}
	state := "damaged"
	if errors.Is(e.Err, ErrTruncated) {
		state = "truncated"
	}
	if e.Text {
		fmt.Fprintf(&b, "%s at line %d (byte %d of its text)", state, e.Line, e.Offset)
	} else {
		fmt.Fprintf(&b, "%s at byte %d", state, e.Offset)
	}
	if e.Events == 0 {
		fmt.Fprintf(&b, ": %s; nothing before it can be used: copy or record it again", e.Problem)
	} else {
		fmt.Fprintf(&b, ": %s; %d events before it are intact: copy or record it again, or accept the intact part", e.Problem, e.Events)
	}
	return b.String()
}

func (e *DamageError) Unwrap() error { return e.Err }

// InvalidError says that a trace contradicts itself.
type InvalidError struct {
	Trace   string
	Event   int // index in Trace.Events
	Problem string
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("trace %s: event %d: %s: the recording is inconsistent, record it again", e.Trace, e.Event, e.Problem)
}

// VersionError says that a recording was written by a newer Penstock.
type VersionError struct {
	Path    string
	Version uint16
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("trace %s: format version %d, this Penstock reads up to %d: upgrade Penstock", e.Path, e.Version, formatVersion)
}

// TooLargeError says that a trace does not fit in the memory that Load may use.
type TooLargeError struct {
	Path       string
	LimitBytes int64
	Events     int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("trace %s: more than %d MiB in memory after %d events: use a shorter recording", e.Path, e.LimitBytes>>20, e.Events)
}
