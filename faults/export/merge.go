package export

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/penstock-gpu/penstock/trace"
)

// Merge writes a trace of torch.profiler (Chrome JSON, gzip'd or not) with a
// recording's events added, on one time axis. torch is read twice, from its start.
func Merge(w io.Writer, in io.Reader, torch io.ReadSeeker) error {
	r, err := trace.NewReader(in)
	if err != nil {
		return err
	}
	base, err := torchBase(torch)
	if err != nil {
		return err
	}
	d, err := torchDecoder(torch)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 1<<18)
	merged := false
	var damaged *Damaged
	first := true
	if err := out.WriteByte('{'); err != nil {
		return err
	}
	err = topLevel(d, func(key string) error {
		if !first {
			if err := out.WriteByte(','); err != nil {
				return err
			}
		}
		first = false
		name, err := json.Marshal(key)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "\n%s: ", name); err != nil {
			return err
		}
		if key != "traceEvents" || merged {
			var v json.RawMessage
			if err := d.Decode(&v); err != nil {
				return err
			}
			_, err := out.Write(v)
			return err
		}
		merged = true
		if err := copyArray(out, d); err != nil {
			return err
		}
		c := &chrome{out: out, base: base, started: true}
		err = c.run(r, func() error { _, err := out.WriteString("\n]"); return err })
		if errors.As(err, &damaged) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if !merged {
		return errNoTrace
	}
	if _, err := out.WriteString("\n}\n"); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if damaged != nil {
		return damaged
	}
	return nil
}

var errNoTrace = errors.New("it has no traceEvents: give the file that torch.profiler's export_chrome_trace wrote")

// copyArray copies an array but for its end, one element at a time.
func copyArray(out *bufio.Writer, d *json.Decoder) error {
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errNoTrace
	}
	if err := out.WriteByte('['); err != nil {
		return err
	}
	sep := "\n"
	for d.More() {
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return err
		}
		if _, err := out.WriteString(sep); err != nil {
			return err
		}
		if _, err := out.Write(v); err != nil {
			return err
		}
		sep = ",\n"
	}
	if sep == "\n" { // ours all begin with a comma
		if _, err := out.WriteString(`{"name":"empty","ph":"M","pid":0,"tid":0}`); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// torchBase is what the file's times are counted from, in nanoseconds since 1970; old ones count from there.
func torchBase(torch io.ReadSeeker) (base int64, err error) {
	d, err := torchDecoder(torch)
	if err != nil {
		return 0, err
	}
	err = topLevel(d, func(key string) error {
		if key == "baseTimeNanoseconds" {
			return d.Decode(&base)
		}
		if key != "traceEvents" {
			var v json.RawMessage
			return d.Decode(&v)
		}
		if t, err := d.Token(); err != nil || t != json.Delim('[') {
			return errNoTrace
		}
		for d.More() {
			var v json.RawMessage
			if err := d.Decode(&v); err != nil {
				return err
			}
		}
		_, err := d.Token()
		return err
	})
	return base, err
}

func torchDecoder(torch io.ReadSeeker) (*json.Decoder, error) {
	if _, err := torch.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(torch, 1<<18)
	if head, _ := in.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		return json.NewDecoder(z), nil
	}
	return json.NewDecoder(in), nil
}

// topLevel calls visit for each name of the object that a file is; visit reads the value.
func topLevel(d *json.Decoder, visit func(key string) error) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errNoTrace
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return fmt.Errorf("its JSON is damaged: %w", err)
		}
		key, ok := t.(string)
		if !ok {
			return errNoTrace
		}
		if err := visit(key); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	_, err := d.Token()
	return err
}
