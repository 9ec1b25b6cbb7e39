package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
)

// The format of plan files; docs/formats.md is its description.
const (
	fileFormat   = "penstock-plan"
	fileVersion  = 1
	maxFileBytes = 256 << 20
	maxCalls     = 1 << 20
)

// FileError says why a file is no plan that can be used.
type FileError struct {
	Path    string
	Problem string
}

func (e *FileError) Error() string {
	name := "plan"
	if e.Path != "" {
		name += " " + e.Path
	}
	return name + ": " + e.Problem
}

// envelope is the file: what the plan is wrapped in.
type envelope struct {
	Format   string          `json:"format"`
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"` // SHA-256 of Plan without white space, hexadecimal
	Plan     json.RawMessage `json:"plan"`
}

// body is the plan as it stands in a file.
type body struct {
	Job            Job       `json:"job"`
	ArenaBytes     int64     `json:"arena_bytes"`
	PeakLiveBytes  int64     `json:"peak_live_bytes"`
	UnplannedBytes int64     `json:"unplanned_bytes"`
	Iterations     int       `json:"iterations"`
	PrologueEvents int64     `json:"prologue_events"`
	PeriodEvents   int64     `json:"period_events"`
	Prologue       callsJSON `json:"prologue"`
	Period         callsJSON `json:"period"`
}

// callsJSON is calls as arrays of numbers.
type callsJSON []Call

// foreverJSON stands for Forever.
const foreverJSON = -1

func (c callsJSON) MarshalJSON() ([]byte, error) {
	out := []byte{'['}
	for i, call := range c {
		if i > 0 {
			out = append(out, ',')
		}
		upper := call.Upper
		if upper == Forever {
			upper = foreverJSON
		}
		out = append(out, '[')
		for n, v := range []int64{call.Bytes, call.Offset, int64(call.Stream), call.Lower, upper} {
			if n > 0 {
				out = append(out, ',')
			}
			out = strconv.AppendInt(out, v, 10)
		}
		out = append(out, ']')
	}
	return append(out, ']'), nil
}

func (c *callsJSON) UnmarshalJSON(data []byte) error {
	var rows [][]int64
	if err := json.Unmarshal(data, &rows); err != nil {
		return err
	}
	if len(rows) > maxCalls {
		return fmt.Errorf("%d calls are more than %d", len(rows), maxCalls)
	}
	*c = make(callsJSON, len(rows))
	for i, row := range rows {
		if len(row) != 5 {
			return fmt.Errorf("call %d has %d numbers instead of 5", i, len(row))
		}
		call := Call{Bytes: row[0], Offset: row[1], Stream: int(row[2]), Lower: row[3], Upper: row[4]}
		if call.Upper == foreverJSON {
			call.Upper = Forever
		}
		(*c)[i] = call
	}
	return nil
}

// Write writes the plan as a file.
func (p *Plan) Write(w io.Writer) error {
	b := body{p.Job, p.ArenaBytes, p.PeakLiveBytes, p.UnplannedBytes, p.Iterations, p.PrologueEvents, p.PeriodEvents, p.Prologue, p.Period}
	compact, err := json.Marshal(b) // without white space
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "{\n\"format\": %q,\n\"version\": %d,\n\"checksum\": %q,\n\"plan\": %s\n}\n",
		fileFormat, fileVersion, checksum(compact), oneCallALine(compact))
	return err
}

// oneCallALine breaks lines before arrays, for people and for diff.
func oneCallALine(compact []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(compact) + len(compact)/16)
	inString, escaped := false, false
	for _, c := range compact {
		if c == '[' && !inString {
			out.WriteByte('\n')
		}
		if c == '"' && !escaped {
			inString = !inString
		}
		escaped = c == '\\' && !escaped
		out.WriteByte(c)
	}
	return out.Bytes()
}

func checksum(compact []byte) string {
	sum := sha256.Sum256(compact)
	return hex.EncodeToString(sum[:])
}

// ReadFile reads a plan and checks it; see [Read].
func ReadFile(path string) (*Plan, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read plan: %w", err)
	}
	defer f.Close()
	p, err := Read(f)
	var bad *FileError
	if errors.As(err, &bad) {
		bad.Path = path
	}
	return p, err
}

// Read reads a plan. What is damaged, from a newer version, or contradicts itself
// is a *FileError.
func Read(r io.Reader) (*Plan, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return nil, &FileError{Problem: "cannot be read: " + err.Error()}
	}
	bad := func(format string, args ...any) (*Plan, error) {
		return nil, &FileError{Problem: fmt.Sprintf(format, args...) + ": make it again with `penstock plan`"}
	}
	if len(data) > maxFileBytes {
		return bad("it has more than %d MiB", maxFileBytes>>20)
	}
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil || e.Format != fileFormat {
		return bad("it is no plan file")
	}
	if e.Version != fileVersion {
		return bad("format version %d, this Penstock reads %d", e.Version, fileVersion)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, e.Plan); err != nil || checksum(compact.Bytes()) != e.Checksum {
		return bad("its checksum is wrong, it was changed or damaged")
	}
	var b body
	if err := json.Unmarshal(compact.Bytes(), &b); err != nil {
		return bad("%v", err)
	}
	p := &Plan{Job: b.Job, ArenaBytes: b.ArenaBytes, PeakLiveBytes: b.PeakLiveBytes, UnplannedBytes: b.UnplannedBytes, Iterations: b.Iterations,
		PrologueEvents: b.PrologueEvents, PeriodEvents: b.PeriodEvents, Prologue: b.Prologue, Period: b.Period}
	if err := p.Check(); err != nil {
		return bad("%v", err)
	}
	p.finish()
	return p, nil
}
