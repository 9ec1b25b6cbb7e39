package timeline

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"sync"
	"time"
)

// Most is how many spans are kept: later ones are counted only. A job of a few hundred launches and moves an iteration
// fills it in some hundred iterations.
const Most = 1 << 19

// Track is a row of the picture.
type Track string

// The rows.
const (
	Waits   Track = "GPU waits for memory"
	In      Track = "moves in"
	Out     Track = "moves out"
	Bus     Track = "copies out, by pieces"
	WorkIn  Track = "thread that brings in"
	WorkOut Track = "thread that takes out"
)

var order = []Track{Waits, In, Bus, Out, WorkIn, WorkOut}

// Span is something that took from one time to another, since the engine started.
type Span struct {
	Track    Track
	Name     string
	From, To time.Duration
	Bytes    int64
	Detail   string
}

// Timeline collects spans. Its methods do nothing of a nil one, and may be called by any thread.
type Timeline struct {
	mu    sync.Mutex
	spans []Span
	lost  int
	marks marks
}

// Add keeps a span.
func (t *Timeline) Add(s Span) {
	if t == nil || s.To <= s.From {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.spans) == Most {
		t.lost++
		return
	}
	t.spans = append(t.spans, s)
}

// processName is the name at the head of a file.
const processName = "penstock"

// event is one of the trace event format: times are microseconds.
type event struct {
	Name string         `json:"name"`
	Ph   string         `json:"ph"`
	S    string         `json:"s,omitempty"`
	Ts   float64        `json:"ts"`
	Dur  float64        `json:"dur,omitempty"`
	Pid  int            `json:"pid"`
	Tid  int            `json:"tid"`
	Args map[string]any `json:"args,omitempty"`
}

// Write writes what was kept, in the trace event format, and how many spans were not. [Read] reads it.
func (t *Timeline) Write(w io.Writer) error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	spans, marks, lost := slices.Clone(t.spans), slices.Clone(t.marks.set), t.lost
	t.mu.Unlock()
	slices.SortStableFunc(spans, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	separator := "[\n"
	write := func(x event) error {
		b.WriteString(separator) // an error is told by Flush
		separator = ","
		return e.Encode(x)
	}
	if err := write(event{Name: "process_name", Ph: "M", Args: map[string]any{"name": processName, "lost_spans": lost}}); err != nil {
		return err
	}
	for _, m := range marks {
		if err := write(event{Name: m.Name, Ph: "i", S: "g", Ts: micros(m.At)}); err != nil {
			return err
		}
	}
	rows := newRows()
	for _, s := range spans {
		tid, fresh := rows.place(s)
		if fresh {
			if err := write(event{Name: "thread_name", Ph: "M", Tid: tid, Args: map[string]any{"name": string(s.Track)}}); err != nil {
				return err
			}
			if err := write(event{Name: "thread_sort_index", Ph: "M", Tid: tid, Args: map[string]any{"sort_index": tid}}); err != nil {
				return err
			}
		}
		x := event{Name: s.Name, Ph: "X", Ts: micros(s.From), Dur: micros(s.To - s.From), Tid: tid}
		if s.Bytes != 0 || s.Detail != "" {
			x.Args = map[string]any{"bytes": s.Bytes, "of": s.Detail}
		}
		if err := write(x); err != nil {
			return err
		}
	}
	b.WriteString("]\n")
	return b.Flush()
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// rows gives spans of a track that overlap rows of their own, for the format wants those of a row nested.
type rows struct{ ends map[Track][]time.Duration }

func newRows() rows { return rows{map[Track][]time.Duration{}} }

// perTrack are the rows that a track has at most.
const perTrack = 32

func (r rows) place(s Span) (tid int, fresh bool) {
	ends := r.ends[s.Track]
	i := slices.IndexFunc(ends, func(end time.Duration) bool { return end <= s.From })
	if i < 0 {
		if i = len(ends); i == perTrack {
			i--
		} else {
			ends, fresh = append(ends, 0), true
		}
	}
	ends[i] = s.To
	r.ends[s.Track] = ends
	return 1 + perTrack*slices.Index(order, s.Track) + i, fresh
}
