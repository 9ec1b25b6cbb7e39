package trace

import (
	"bytes"
	"fmt"
	"math"
)

// fields takes the tab-separated columns of a line one by one. The first problem
// sticks; after it the values returned mean nothing.
type fields struct {
	rest    []byte
	done    bool
	column  int
	problem string
}

func (f *fields) fail(format string, args ...any) {
	if f.problem == "" {
		f.problem = fmt.Sprintf(format, args...)
	}
}

func (f *fields) more() bool { return !f.done }

func (f *fields) text() []byte {
	f.column++
	if f.done {
		f.fail("has no column %d", f.column)
		return nil
	}
	i := bytes.IndexByte(f.rest, '\t')
	if i < 0 {
		f.done = true
		return f.rest
	}
	text := f.rest[:i]
	f.rest = f.rest[i+1:]
	return text
}

func (f *fields) uint() uint64 {
	text := f.text()
	v, ok := parseUint(text)
	if !ok {
		f.fail("has %.40q in column %d, not a number", text, f.column)
	}
	return v
}

func (f *fields) uint32() uint32 {
	v := f.uint()
	if v > math.MaxUint32 {
		f.fail("has %d in column %d, which is too large", v, f.column)
	}
	return uint32(v)
}

func (f *fields) bytes() int64 {
	v := f.uint()
	if v > maxLiveBytes {
		f.fail("has %d bytes in column %d, which is too many", v, f.column)
		return 0
	}
	return int64(v)
}

// timingID is -1 for an operation that was not timed.
func (f *fields) timingID() int64 {
	text := f.text()
	if string(text) == "-1" {
		return -1
	}
	v, ok := parseUint(text)
	if !ok || v > math.MaxInt64 {
		f.fail("has %.40q in column %d, not a timing id", text, f.column)
		return -1
	}
	return int64(v)
}

// stream is a handle as C's %p prints it: "(nil)" is the default stream.
func (f *fields) stream() uint64 {
	text := f.text()
	if string(text) == "(nil)" {
		return 0
	}
	if hex, ok := bytes.CutPrefix(text, []byte("0x")); ok {
		if v, ok := parseHex(hex); ok {
			return v
		}
	} else if v, ok := parseUint(text); ok {
		return v
	}
	f.fail("has %.40q in column %d, not a stream", text, f.column)
	return 0
}

// parseUint parses decimal digits only: no sign, no underscore, no allocation.
func parseUint(text []byte) (uint64, bool) {
	if len(text) == 0 || len(text) > 20 {
		return 0, false
	}
	var v uint64
	for _, c := range text {
		d := uint64(c) - '0'
		if d > 9 || v > math.MaxUint64/10 {
			return 0, false
		}
		if v *= 10; v > math.MaxUint64-d {
			return 0, false
		}
		v += d
	}
	return v, true
}

func parseHex(text []byte) (uint64, bool) {
	if len(text) == 0 || len(text) > 16 {
		return 0, false
	}
	var v uint64
	for _, c := range text {
		var d byte
		switch {
		case c >= '0' && c <= '9':
			d = c - '0'
		case c >= 'a' && c <= 'f':
			d = c - 'a' + 10
		case c >= 'A' && c <= 'F':
			d = c - 'A' + 10
		default:
			return 0, false
		}
		v = v<<4 | uint64(d)
	}
	return v, true
}
