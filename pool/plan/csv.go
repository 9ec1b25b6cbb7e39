package plan

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Instance is a placement problem from a CSV file.
type Instance struct {
	IDs      []string // as the file has them
	Requests []Request
}

// Bounds of what is read.
const (
	maxLineBytes = 1 << 16
	maxRequests  = 16 << 20
	maxIDBytes   = 256
)

// CSVError says which line of a CSV file is wrong.
type CSVError struct {
	Path    string
	Line    int
	Problem string
}

func (e *CSVError) Error() string {
	name := e.Path
	if name == "" {
		name = "CSV"
	}
	if e.Line == 0 {
		return name + ": " + e.Problem
	}
	return fmt.Sprintf("%s: line %d: %s", name, e.Line, e.Problem)
}

// ReadCSVFile reads an instance; see [ReadCSV].
func ReadCSVFile(path string) (*Instance, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read CSV: %w", err)
	}
	defer f.Close()
	in, err := ReadCSV(f)
	var bad *CSVError
	if errors.As(err, &bad) {
		bad.Path = path
	}
	return in, err
}

// column is what a column of the file is for.
type column int

const (
	columnID column = iota
	columnLower
	columnUpper
	columnSize
	columnAlignment
	columnOffset
	columns
)

var columnNames = map[string]column{"id": columnID, "buffer": columnID, "lower": columnLower, "start": columnLower,
	"upper": columnUpper, "end": columnUpper, "size": columnSize, "alignment": columnAlignment, "offset": columnOffset}

// ReadCSV reads requests in the format of google/minimalloc: a heading that names
// the columns id, lower, upper and size in any order, and optionally alignment and
// offset (a place that is given; empty or -1: none); then one request a line, alive
// in [lower, upper). What is wrong with the file is a *CSVError.
func ReadCSV(r io.Reader) (*Instance, error) {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 4096), maxLineBytes)
	var out Instance
	var at [columns]int
	width, line := 0, 0
	seen := map[string]struct{}{}
	for in.Scan() {
		line++
		text := strings.TrimSpace(strings.TrimPrefix(in.Text(), "\ufeff"))
		if text == "" {
			continue
		}
		fields := strings.Split(text, ",")
		if width == 0 {
			problem := ""
			if at, problem = heading(fields); problem != "" {
				return nil, &CSVError{Line: line, Problem: problem}
			}
			width = len(fields)
			continue
		}
		if len(fields) != width {
			return nil, &CSVError{Line: line, Problem: fmt.Sprintf("%d columns, the heading has %d", len(fields), width)}
		}
		if len(out.Requests) >= maxRequests {
			return nil, &CSVError{Line: line, Problem: fmt.Sprintf("more than %d requests", maxRequests)}
		}
		id := strings.TrimSpace(fields[at[columnID]])
		if _, dup := seen[id]; dup || len(id) > maxIDBytes {
			return nil, &CSVError{Line: line, Problem: fmt.Sprintf("id %.40q is used a second time, or too long", id)}
		}
		seen[id] = struct{}{}
		q, problem := parseRequest(fields, at)
		if problem != "" {
			return nil, &CSVError{Line: line, Problem: problem}
		}
		out.IDs = append(out.IDs, id)
		out.Requests = append(out.Requests, q)
	}
	if err := in.Err(); err != nil {
		return nil, &CSVError{Line: line + 1, Problem: err.Error()}
	}
	if len(out.Requests) == 0 {
		return nil, &CSVError{Problem: "there is no request in it: expected lines of id,lower,upper,size under such a heading"}
	}
	return &out, nil
}

func heading(fields []string) (at [columns]int, problem string) {
	for i := range at {
		at[i] = -1
	}
	for i, f := range fields {
		if c, known := columnNames[strings.ToLower(strings.TrimSpace(f))]; known {
			if at[c] >= 0 {
				return at, fmt.Sprintf("the heading has two columns for %q", strings.TrimSpace(f))
			}
			at[c] = i
		}
	}
	for c, name := range []string{columnID: "id", columnLower: "lower", columnUpper: "upper", columnSize: "size"} {
		if at[c] < 0 {
			return at, fmt.Sprintf("the first line names no column %q: expected a heading such as id,lower,upper,size", name)
		}
	}
	return at, ""
}

func parseRequest(fields []string, at [columns]int) (Request, string) {
	problem := ""
	number := func(c column, name string) int64 {
		text := strings.TrimSpace(fields[at[c]])
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil && problem == "" {
			problem = fmt.Sprintf("%s %.40q is no whole number", name, text)
		}
		return v
	}
	q := Request{Span: Span{number(columnLower, "lower"), number(columnUpper, "upper")}, Bytes: number(columnSize, "size")}
	if i := at[columnAlignment]; i >= 0 && strings.TrimSpace(fields[i]) != "" {
		q.AlignBytes = number(columnAlignment, "alignment")
	}
	if i := at[columnOffset]; i >= 0 && strings.TrimSpace(fields[i]) != "" {
		if q.Offset = number(columnOffset, "offset"); q.Offset != -1 {
			q.Pinned = true
		} else {
			q.Offset = 0
		}
	}
	if problem == "" {
		if text := q.problem(); text != "" {
			problem = "the request " + text
		}
	}
	return q, problem
}

// WriteCSV writes a placement: a heading and id,offset for every request.
func (in *Instance) WriteCSV(w io.Writer, offsets []int64) error {
	out := bufio.NewWriter(w)
	out.WriteString("id,offset\n")
	for i, id := range in.IDs {
		out.WriteString(id)
		out.WriteByte(',')
		out.WriteString(strconv.FormatInt(offsets[i], 10))
		out.WriteByte('\n')
	}
	return out.Flush()
}
