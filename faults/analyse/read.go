package analyse

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock-gpu/penstock/trace"
)

// File analyses a recording. A damaged one gives the report of its intact part,
// with Damage set. progress, if not nil, is told the bytes read, now and then.
func File(path string, progress func(read, total int64)) (*Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the recording: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot read the recording: %w", err)
	}
	if st.IsDir() {
		return nil, fmt.Errorf("%s is a folder: name a %s file in it", path, trace.Extension)
	}
	r, err := Read(&counted{in: f, total: st.Size(), tell: progress})
	if err != nil {
		if errors.Is(err, trace.ErrNotTrace) {
			return nil, fmt.Errorf("%s is not a recording: make one with `penstock faults record` or `penstock run --trace`", path)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r.Trace = strings.TrimSuffix(filepath.Base(path), trace.Extension)
	return r, nil
}

// Read analyses a recording from a stream.
func Read(in io.Reader) (*Report, error) {
	reader, err := trace.NewReader(in)
	if err != nil {
		return nil, err
	}
	a := New(reader.Header())
	for {
		e, err := reader.Next()
		if err != nil {
			report := a.Report(true)
			if err != io.EOF {
				report.Damage = err.Error()
			}
			return report, nil
		}
		a.Add(&e)
	}
}

// counted tells how much of a file has been read.
type counted struct {
	in          io.Reader
	read, total int64
	told        int64
	tell        func(read, total int64)
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	c.read += int64(n)
	if c.tell != nil && c.read-c.told > 1<<20 {
		c.told = c.read
		c.tell(c.read, c.total)
	}
	return n, err
}
