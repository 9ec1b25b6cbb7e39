package timeline

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Recorded is a time line that was read.
type Recorded struct {
	Spans []Span // in the order in which they began
	Marks []Mark // in the order of time
	Lost  int    // spans that were not kept
}

const (
	// mostBytes is the largest file that is read: [Most] spans with names of kernels stay below.
	mostBytes = 1 << 30
	// longest is the latest time that is read: up to there microseconds in a float64 say each nanosecond.
	longest = 20 * 24 * time.Hour
	// mostText is the longest name or detail: mangled names of kernels have some thousand bytes.
	mostText = 1 << 16
)

// recorded is an event as it is read.
type recorded struct {
	Name  string   `json:"name"`
	Ph    string   `json:"ph"`
	Scope string   `json:"s"`
	Ts    *float64 `json:"ts"`
	Dur   float64  `json:"dur"`
	Pid   int      `json:"pid"`
	Tid   int      `json:"tid"`
	Args  struct {
		Name      string `json:"name"`
		Lost      int    `json:"lost_spans"`
		SortIndex int    `json:"sort_index"`
		Bytes     int64  `json:"bytes"`
		Of        string `json:"of"`
	} `json:"args"`
}

// Read reads what Write has written. Anything else is refused, with the number of the event.
func Read(r io.Reader) (*Recorded, error) {
	limited := &io.LimitedReader{R: r, N: mostBytes + 1}
	d := json.NewDecoder(bufio.NewReader(limited))
	d.DisallowUnknownFields()
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.New("no list of events")
	}
	p := parser{tracks: map[int]Track{}, texts: map[string]string{}}
	n := 0
	for ; d.More(); n++ {
		var e recorded
		err := d.Decode(&e)
		if err == nil {
			err = p.take(n, &e)
		}
		switch {
		case limited.N <= 0:
			return nil, fmt.Errorf("more than %d bytes", mostBytes)
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("cut off in event %d", n)
		case err != nil:
			return nil, fmt.Errorf("event %d: %w", n, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("cut off after event %d", n-1)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something stands behind the list of events")
	}
	if n == 0 {
		return nil, errors.New("no event in it")
	}
	slices.SortStableFunc(p.Spans, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	slices.SortStableFunc(p.Marks, func(a, b Mark) int { return cmp.Compare(a.At, b.At) })
	return &p.Recorded, nil
}

// parser collects what the events say.
type parser struct {
	Recorded
	tracks map[int]Track     // of the rows that were named
	texts  map[string]string // each once: names of kernels are long, and come often
}

func (p *parser) take(n int, e *recorded) error {
	switch {
	case (n == 0) != (e.Ph == "M" && e.Name == "process_name"):
		return errors.New("the process is not named at the head, and only there")
	case len(e.Name) > mostText || len(e.Args.Name) > mostText || len(e.Args.Of) > mostText:
		return fmt.Errorf("a text of more than %d bytes", mostText)
	case n == 0:
		if p.Lost = e.Args.Lost; e.Args.Name != processName || p.Lost < 0 {
			return fmt.Errorf("it is not of %s", processName)
		}
		return nil
	case e.Ph == "M" && e.Name == "thread_name":
		return p.name(e.Tid, Track(e.Args.Name))
	case e.Ph == "M" && e.Name == "thread_sort_index":
		return nil
	case e.Ts == nil:
		return fmt.Errorf("a time is missing in an event of kind %.20q", e.Ph)
	}
	from, to, err := times(*e.Ts, e.Dur)
	switch {
	case err != nil:
		return err
	case e.Ph == "i":
		if !slices.Contains(markNames, e.Name) || len(p.Marks) == mostMarks {
			return fmt.Errorf("a mark %.40q is not expected", e.Name)
		}
		p.Marks = append(p.Marks, Mark{p.once(e.Name), from})
		return nil
	case e.Ph != "X":
		return fmt.Errorf("an event of kind %.20q is not expected", e.Ph)
	}
	track, named := p.tracks[e.Tid]
	switch {
	case !named:
		return fmt.Errorf("row %d was not named", e.Tid)
	case to <= from || e.Args.Bytes < 0 || e.Name == "":
		return fmt.Errorf("a span of %v with %d bytes, named %.40q", to-from, e.Args.Bytes, e.Name)
	case len(p.Spans) == Most:
		return fmt.Errorf("more than %d spans", Most)
	}
	p.Spans = append(p.Spans, Span{Track: track, Name: p.once(e.Name), From: from, To: to, Bytes: e.Args.Bytes, Detail: p.once(e.Args.Of)})
	return nil
}

func (p *parser) name(tid int, track Track) error {
	if _, named := p.tracks[tid]; named || !slices.Contains(order, track) {
		return fmt.Errorf("row %d cannot be named %.40q", tid, track)
	}
	p.tracks[tid] = track
	return nil
}

func (p *parser) once(text string) string {
	kept, ok := p.texts[text]
	if !ok {
		kept, p.texts[text] = text, text
	}
	return kept
}

// times are those of an event, in microseconds.
func times(ts, dur float64) (from, to time.Duration, err error) {
	const most = float64(longest / time.Microsecond)
	if !(ts >= 0 && dur >= 0 && ts <= most && dur <= most) {
		return 0, 0, fmt.Errorf("the times %v and %v are not of a job", ts, dur)
	}
	from = time.Duration(math.Round(ts * float64(time.Microsecond)))
	return from, from + time.Duration(math.Round(dur*float64(time.Microsecond))), nil
}
