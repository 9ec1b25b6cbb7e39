package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// rmmHeading begins the log of RAPIDS Memory Manager's logging_resource_adaptor.
const rmmHeading = "Thread,Time,Action,Pointer,Size,Stream"

// rmmLog imports such a log: CSV lines with the columns of the heading. Actions are
// allocate, free and "allocate failure"; the last is left out. The clock has no
// date, and goes on past midnight.
func (l *loader) rmmLog(r io.Reader) error {
	in := bufio.NewReaderSize(r, 64<<10)
	l.trace.Header.Source = "RMM log"
	p := rmmParser{loader: l, live: map[uint64]rmmBlock{}}
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
		if ended {
			return p.damage(ErrTruncated, "the last line is cut short")
		}
		text := bytes.TrimSpace(line)
		if len(text) > 0 && p.line > 1 {
			if err := p.parse(text); err != nil {
				return err
			}
		}
		p.offset += int64(len(line))
	}
	p.line++
	if len(l.trace.Events) == 0 {
		return p.damage(ErrTruncated, "the log has no events")
	}
	return nil
}

type rmmParser struct {
	*loader
	line   int
	offset int64
	ids    uint64
	live   map[uint64]rmmBlock
	begun  time.Duration // time of day of the first event
	last   time.Duration
	days   time.Duration
}

type rmmBlock struct {
	id    uint64
	bytes int64
}

func (p *rmmParser) damage(cause error, format string, args ...any) error {
	return &DamageError{Path: p.path, Offset: p.offset, Text: true, Line: p.line, Events: len(p.trace.Events),
		Problem: fmt.Sprintf(format, args...), Err: truncation(cause)}
}

func (p *rmmParser) parse(line []byte) error {
	f := bytes.Split(line, []byte(","))
	if len(f) != 6 {
		return p.damage(nil, "%d columns instead of 6", len(f))
	}
	action := string(bytes.TrimSpace(f[2]))
	if action == "allocate failure" {
		return nil
	}
	address, okAddress := parsePointer(bytes.TrimSpace(f[3]))
	size, okSize := parseUint(bytes.TrimSpace(f[4]))
	stream, okStream := parsePointer(bytes.TrimSpace(f[5]))
	if !okAddress || !okSize || !okStream || size > maxLiveBytes {
		return p.damage(nil, "the pointer, size or stream of the %.20q is malformed", action)
	}
	at, ok := p.clock(bytes.TrimSpace(f[1]))
	if !ok {
		return p.damage(nil, "time %.40q is not of the form 12:34:56:789012", f[1])
	}
	p.usedBytes += 40 // the map's share
	switch action {
	case "allocate":
		if old, dup := p.live[address]; dup {
			// Nothing of 0 bytes has an address of its own.
			if old.bytes > 0 && size > 0 {
				return p.damage(nil, "%#x is allocated a second time", address)
			}
			if err := p.add(Event{Kind: KindFree, Alloc: old.id, Time: at}); err != nil {
				return err
			}
		}
		p.ids++
		p.live[address] = rmmBlock{p.ids, int64(size)}
		return p.add(Event{Kind: KindAlloc, Alloc: p.ids, Bytes: int64(size), Address: address, Stream: stream, Time: at})
	case "free":
		b, ok := p.live[address]
		if !ok {
			return nil // allocated before the log began
		}
		delete(p.live, address)
		return p.add(Event{Kind: KindFree, Alloc: b.id, Time: at})
	}
	return p.damage(nil, "unknown action %.20q", action)
}

// parsePointer reads 0x and hexadecimal digits, (nil), or a decimal number.
func parsePointer(text []byte) (uint64, bool) {
	if string(text) == "(nil)" {
		return 0, true
	}
	hex, ok := bytes.CutPrefix(text, []byte("0x"))
	if !ok {
		return parseUint(text)
	}
	if len(hex) == 0 || len(hex) > 16 {
		return 0, false
	}
	var v uint64
	for _, c := range hex {
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | uint64(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			v = v<<4 | uint64(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// clock reads hours:minutes:seconds:microseconds (or .microseconds) and gives the
// time since the first event.
func (p *rmmParser) clock(text []byte) (time.Duration, bool) {
	parts := bytes.FieldsFunc(text, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) != 4 {
		return 0, false
	}
	var at time.Duration
	for i, unit := range []struct {
		most uint64
		is   time.Duration
	}{{23, time.Hour}, {59, time.Minute}, {60, time.Second}, {999999, time.Microsecond}} {
		n, ok := parseUint(parts[i])
		if !ok || n > unit.most {
			return 0, false
		}
		at += time.Duration(n) * unit.is
	}
	if len(p.trace.Events) == 0 && p.ids == 0 {
		p.begun, p.last = at, at
	}
	// Threads write lines a little out of order; half a day is another day.
	if p.last-at > 12*time.Hour {
		p.days += 24 * time.Hour
	}
	p.last = at
	return max(0, p.days+at-p.begun), true
}
