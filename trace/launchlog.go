package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// maxLogLineBytes bounds one line of a launch log. The longest real ones, names
// of C++ kernels, have a few kilobytes.
const maxLogLineBytes = 4 << 20

// launchLog imports a launch log: one event a line, tab-separated, timings and
// totals at the end.
//
// A log has no checksum, so completeness is judged by its tail: it is whole when
// its summary line is there, or when at least every timing it refers to is.
func (l *loader) launchLog(r io.Reader) error {
	p := logParser{loader: l, timed: make(map[uint64]int)}
	in := bufio.NewReaderSize(r, 64<<10)
	l.trace.Header.Source = "launch log"
	for {
		line, err := readLine(in)
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return p.damage(err, "%s", readProblem(err))
		}
		if ended && len(line) == 0 {
			break
		}
		p.line++
		if ended && !completeUnterminated(line) {
			return p.damage(ErrTruncated, "the last line is cut short")
		}
		text := bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if err := p.parse(text); err != nil {
			return err
		}
		p.offset += int64(len(line))
	}
	p.line++
	if len(l.trace.Events) == 0 {
		return p.damage(ErrTruncated, "the log has no events")
	}
	if !p.summary && len(p.timed) > 0 {
		return p.damage(ErrTruncated, "the log ends before its timings")
	}
	return nil
}

// completeUnterminated says whether a last line without newline can be trusted:
// a number in it could have lost digits.
func completeUnterminated(line []byte) bool {
	return bytes.HasPrefix(line, []byte("S\t")) || string(line) == "M\t"+MarkEnd
}

var errLongLine = fmt.Errorf("a line is longer than %d MiB", maxLogLineBytes>>20)

func readProblem(err error) string {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the compressed data ends too early"
	case errors.Is(err, errLongLine):
		return errLongLine.Error()
	}
	return "cannot decompress: " + err.Error()
}

// readLine returns one line with its newline, valid until the next call, or the
// rest of the input and io.EOF.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) {
		line, err = in.ReadSlice('\n')
		if len(long)+len(line) > maxLogLineBytes {
			return nil, errLongLine
		}
		long = append(long, line...)
	}
	return long, err
}

type logParser struct {
	*loader
	line    int
	offset  int64
	timed   map[uint64]int // timing id to event, while its timing was not seen
	summary bool
	slab    []Access // accesses are cut from it: one allocation for many events
}

func (p *logParser) damage(cause error, format string, args ...any) error {
	return &DamageError{Path: p.path, Offset: p.offset, Text: true, Line: p.line, Events: len(p.trace.Events),
		Problem: fmt.Sprintf(format, args...), Err: truncation(cause)}
}

func (p *logParser) parse(line []byte) error {
	if len(line) == 0 || line[0] == '#' {
		return nil
	}
	f := fields{rest: line}
	letter := f.text()
	var e Event
	switch string(letter) {
	case "A":
		e = Event{Kind: KindAlloc, Alloc: f.uint(), Bytes: f.bytes()}
	case "F":
		e = Event{Kind: KindFree, Alloc: f.uint()}
	case "N":
		e = Event{Kind: KindFunction, Function: f.uint32()}
		f.uint() // number of parameters
		e.Name = string(f.text())
	case "M":
		e = Event{Kind: KindMark, Name: string(f.text())}
	case "K":
		return p.launch(&f)
	case "C":
		return p.copy(&f)
	case "T":
		return p.timing(&f)
	case "S":
		return p.totals(&f)
	default:
		return p.damage(nil, "unknown event letter %.20q", letter)
	}
	return p.finish(&f, e, -1)
}

// finish checks that the line was well-formed and adds its event.
func (p *logParser) finish(f *fields, e Event, timing int64) error {
	if f.problem == "" && f.more() {
		f.problem = "has extra columns"
	}
	if f.problem != "" {
		return p.damage(nil, "the %s event %s", e.Kind, f.problem)
	}
	if timing >= 0 {
		if _, dup := p.timed[uint64(timing)]; dup {
			return p.damage(nil, "timing id %d is used a second time", timing)
		}
		p.timed[uint64(timing)] = len(p.trace.Events)
		p.usedBytes += 40 // the map's share
	}
	return p.add(e)
}

func (p *logParser) launch(f *fields) error {
	e := Event{Kind: KindLaunch, Duration: -1}
	timing := f.timingID()
	e.Stream = f.stream()
	e.Function = f.uint32()
	for i := range e.Grid {
		e.Grid[i] = f.uint32()
	}
	for i := range e.Block {
		e.Block[i] = f.uint32()
	}
	start := len(p.slab)
	for f.more() && f.problem == "" {
		mode, text := roleOf(f.text())
		p.access(f, text, mode)
	}
	e.Accesses = p.cut(start)
	return p.finish(f, e, timing)
}

// roleOf takes the letter off an operand that says what the launch does to it.
func roleOf(text []byte) (AccessMode, []byte) {
	if len(text) > 0 {
		switch text[0] {
		case 'r':
			return AccessRead, text[1:]
		case 'w':
			return AccessWrite, text[1:]
		case 'b':
			return AccessReadWrite, text[1:]
		}
	}
	return AccessUnknown, text
}

func (p *logParser) copy(f *fields) error {
	e := Event{Kind: KindCopy, Duration: -1}
	timing := f.timingID()
	e.Stream = f.stream()
	switch kind := f.text(); string(kind) {
	case "c":
		e.Copy = CopyUnknown
	case "d":
		e.Copy = CopyDeviceToDevice
	case "h":
		e.Copy = CopyHostToDevice
	case "o":
		e.Copy = CopyDeviceToHost
	case "s":
		e.Copy = CopyFill
	default:
		f.fail("has an unknown copy kind %.20q", kind)
	}
	e.Bytes = f.bytes()
	start := len(p.slab)
	for f.more() && f.problem == "" {
		switch text := f.text(); {
		case len(text) > 0 && text[0] == 'w':
			p.access(f, text[1:], AccessWrite)
		case len(text) > 0 && text[0] == 'r':
			p.access(f, text[1:], AccessRead)
		default:
			f.fail("has an access without r or w: %.40q", text)
		}
	}
	e.Accesses = p.cut(start)
	return p.finish(f, e, timing)
}

// access parses allocation+offset.
func (p *logParser) access(f *fields, text []byte, mode AccessMode) {
	id, offset, ok := bytes.Cut(text, []byte("+"))
	alloc, okAlloc := parseUint(id)
	off, okOffset := parseUint(offset)
	if !ok || !okAlloc || !okOffset {
		f.fail("has a malformed pointer %.40q, not allocation+offset", text)
		return
	}
	p.slab = append(p.slab, Access{Alloc: alloc, Offset: off, Mode: mode})
}

// cut takes the accesses appended since start out of the slab.
func (p *logParser) cut(start int) []Access {
	cut := p.slab[start:len(p.slab):len(p.slab)]
	if cap(p.slab)-len(p.slab) < 64 {
		p.slab = make([]Access, 0, 4096)
	}
	if len(cut) == 0 {
		return nil
	}
	return cut
}

func (p *logParser) timing(f *fields) error {
	id, ns := f.uint(), f.uint()
	if f.problem == "" && f.more() {
		f.problem = "has extra columns"
	}
	if f.problem == "" && ns > uint64(maxDuration) {
		f.fail("says %d ns, more than a day", ns)
	}
	if f.problem != "" {
		return p.damage(nil, "the timing %s", f.problem)
	}
	if i, ok := p.timed[id]; ok {
		p.trace.Events[i].Duration = time.Duration(ns)
		delete(p.timed, id)
	}
	return nil
}

// maxDuration bounds one operation, so that sums over a trace cannot overflow.
const maxDuration = 24 * time.Hour

func (p *logParser) totals(f *fields) error {
	p.summary = true
	for f.more() {
		key, value, _ := bytes.Cut(f.text(), []byte("="))
		n, ok := parseUint(value)
		if !ok || n > maxLiveBytes {
			continue
		}
		switch string(key) {
		case "peak":
			p.trace.Header.ReportedPeakBytes = int64(n)
		case "reserved":
			p.trace.Header.ReportedReservedBytes = int64(n)
		}
	}
	return nil
}
