package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/trace/phase"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

// Timeline says where the time of a job went under the explicit engine. Seconds are those of the window in which
// at least one of the kind went on; counts and bytes are of what ended in it.
type Timeline struct {
	File        string  `json:"file"`
	FromSeconds float64 `json:"from_seconds"` // since the engine started
	ToSeconds   float64 `json:"to_seconds"`
	Seconds     float64 `json:"seconds"`
	LostSpans   int     `json:"lost_spans,omitempty"` // were not kept, the last of the job
	// Iterations are the whole ones in the window, and IterationSeconds how long they took on average.
	Iterations       int     `json:"iterations,omitempty"`
	IterationSeconds float64 `json:"iteration_seconds,omitempty"`

	Waits   Activity      `json:"gpu_waits"`
	Causes  []Wait        `json:"gpu_waits_by_cause"`
	In      Activity      `json:"copies_in"`
	Out     Activity      `json:"copies_out"`
	Both    Activity      `json:"copies_both_ways_at_once"`
	Moves   []Activity    `json:"moves"`
	Threads []ThreadTime  `json:"threads"`
	Phases  []Phase       `json:"phases,omitempty"`
	Largest []LargestWait `json:"largest_waits"`

	window window
	tracks []recordedKind
	marks  []timeline.Mark
}

// Activity is something that went on for a part of the time.
type Activity struct {
	Name    string  `json:"name"`
	Doing   string  `json:"doing,omitempty"` // in words, where the name is short
	Seconds float64 `json:"seconds"`
	Share   float64 `json:"seconds_a_second"`
	Count   int     `json:"count,omitempty"`
	Mean    float64 `json:"mean_seconds,omitempty"` // of each, from its begin to its end
	Bytes   int64   `json:"bytes,omitempty"`
	Rate    float64 `json:"gb_per_second,omitempty"` // while it went on
}

// Wait is the time that the GPU waited for one reason.
type Wait struct {
	Activity
	EndedBy []Ending `json:"ended_by"` // the longest first
}

// Ending is what waits ended with.
type Ending struct {
	Move    string  `json:"move"`
	Seconds float64 `json:"seconds"`
	Count   int     `json:"count"`
}

// ThreadTime is what one thread of the engine did.
type ThreadTime struct {
	Name  string     `json:"name"`
	Parts []Activity `json:"parts"`
}

// Phase is one part of the iterations, all of those in the window together.
type Phase struct {
	Name  string  `json:"name"`
	Count int     `json:"count"`
	Mean  float64 `json:"mean_seconds"`
	// What went on in it, in seconds a second.
	Waits    float64 `json:"gpu_waits"`
	In       float64 `json:"copies_in"`
	Out      float64 `json:"copies_out"`
	BytesIn  int64   `json:"bytes_in"`
	BytesOut int64   `json:"bytes_out"`
}

// LargestWait is one wait of the GPU.
type LargestWait struct {
	At      float64 `json:"at_seconds"`
	Seconds float64 `json:"seconds"`
	Cause   string  `json:"cause"`
	Of      string  `json:"of"` // which operation waited
	EndedBy string  `json:"ended_by"`
	Kernel  string  `json:"kernel,omitempty"` // that made what came
}

// nothingSeen is what ended a wait when no move ended at about that time.
const nothingSeen = "no move"

const (
	// sameTime is how far a move's end may be from the end of a wait that it ended: what stands in between is the engine's
	// own work, and where the GPU itself sees a copy arrive, the wait ends before the engine has noticed the copy.
	sameTime = 150 * time.Microsecond
	// largestWaits are shown.
	largestWaits = 10
)

// recordedKind are the spans of one name on one track.
type recordedKind struct {
	track timeline.Track
	name  string
	spans []timeline.Span
	busy  busy
}

// doing says in words what short names mean.
var doing = map[timeline.Track]map[string]string{
	timeline.In: {
		"fetch": "mapped, and copied to the device",
		"make":  "made again by the launches that made it",
		"map":   "new memory mapped",
		"place": "mapped where it lies in host memory",
		"trim":  "unused device memory given up",
	},
	timeline.Out: {
		"evict":        "copied to the host",
		"leaves clean": "no copy: the host has it still, or it can be made again",
		"drop":         "stayed: it is not what would be made again",
		"verify":       "made again elsewhere, to see whether it is the same",
	},
	timeline.WorkIn: {
		"lock":   "waits for the engine's lock",
		"plan":   "decides what comes next",
		"draft":  "the same, and the engine's lock is free meanwhile",
		"begin":  "in the driver: maps memory, queues copies",
		"finish": "in the driver: ends moves",
		"rest":   "waits for moves under way",
		"idle":   "has nothing to do",
	},
	timeline.WorkOut: {
		"lock":   "waits for the engine's lock",
		"plan":   "decides what leaves next",
		"draft":  "the same, and the engine's lock is free meanwhile",
		"begin":  "in the driver: queues copies and checksums",
		"finish": "in the driver: unmaps memory",
		"rest":   "waits for moves under way",
		"idle":   "has nothing to do",
	},
}

// WindowOfTime chooses a part of a time line: from From to To since the engine started, where To 0 is the end; or
// where Last is not 0, the last so much.
type WindowOfTime struct{ From, To, Last time.Duration }

// in finds the window of a time line: from the first to the last wait or move of bytes. What comes later is the end of
// the job, when memory is given back and the engine's threads are idle.
func (c WindowOfTime) in(spans []timeline.Span) (window, error) {
	var all window
	first := true
	for _, s := range spans {
		if s.Track != timeline.Waits && s.Bytes == 0 {
			continue
		}
		if first {
			all, first = window{s.From, s.To}, false
		}
		all.to = max(all.to, s.To)
	}
	if first {
		return all, fmt.Errorf("nothing was moved and nothing waited, so there is nothing to show")
	}
	w := all
	switch {
	case c.Last != 0:
		w.from = max(w.from, all.to-c.Last)
	default:
		w.from = max(w.from, c.From)
		if c.To != 0 {
			w.to = min(w.to, c.To)
		}
	}
	if c.From < 0 || c.To < 0 || c.Last < 0 || w.from >= w.to {
		return w, fmt.Errorf("no time is left: moves and waits go from %.3f s to %.3f s", all.from.Seconds(), all.to.Seconds())
	}
	return w, nil
}

// TimelineOf says where the time of a window went.
func TimelineOf(file string, r *timeline.Recorded, chosen WindowOfTime) (*Timeline, error) {
	w, err := chosen.in(r.Spans)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	t := &Timeline{
		File: file, FromSeconds: w.from.Seconds(), ToSeconds: w.to.Seconds(), Seconds: w.length().Seconds(), LostSpans: r.Lost,
		window: w, tracks: kinds(r.Spans), marks: settled(r.Marks, w),
	}
	t.Waits = t.activity("GPU waits for memory", t.spansOf(timeline.Waits, ""))
	t.In = t.activity("to the device", t.spansOf(timeline.In, "fetch"))
	t.Out = t.activity("to the host", t.spansOf(timeline.Bus, ""))
	both := busyIn(t.spansOf(timeline.In, "fetch")).and(busyIn(t.spansOf(timeline.Bus, "")))
	t.Both = Activity{Name: "both ways at once"}
	t.Both.Seconds, t.Both.Share = t.share(both)
	ends := newEndings(r.Spans)
	for _, k := range t.tracks {
		a := t.activity(k.name, k.spans)
		a.Doing = doing[k.track][k.name]
		if a.Count == 0 && a.Seconds == 0 {
			continue
		}
		switch k.track {
		case timeline.Waits:
			t.Causes = append(t.Causes, Wait{a, ends.of(w.ended(k.spans))})
		case timeline.In, timeline.Out:
			t.Moves = append(t.Moves, a)
		case timeline.WorkIn, timeline.WorkOut:
			if n := len(t.Threads); n == 0 || t.Threads[n-1].Name != string(k.track) {
				t.Threads = append(t.Threads, ThreadTime{Name: string(k.track)})
			}
			th := &t.Threads[len(t.Threads)-1]
			th.Parts = append(th.Parts, a)
		}
	}
	t.Largest = largest(w.ended(t.spansOf(timeline.Waits, "")), ends)
	t.phases()
	return t, nil
}

// trackOrder is from the top of the picture.
var trackOrder = []timeline.Track{timeline.Waits, timeline.In, timeline.Bus, timeline.Out, timeline.WorkIn, timeline.WorkOut}

// kinds sorts spans by track and name.
func kinds(spans []timeline.Span) (all []recordedKind) {
	type key struct {
		track timeline.Track
		name  string
	}
	at := map[key]int{}
	for _, s := range spans {
		k := key{s.Track, s.Name}
		i, ok := at[k]
		if !ok {
			i, at[k] = len(all), len(all)
			all = append(all, recordedKind{track: s.Track, name: s.Name})
		}
		all[i].spans = append(all[i].spans, s)
	}
	slices.SortFunc(all, func(a, b recordedKind) int {
		return cmp.Or(cmp.Compare(slices.Index(trackOrder, a.track), slices.Index(trackOrder, b.track)), cmp.Compare(a.name, b.name))
	})
	for i := range all {
		all[i].busy = busyIn(all[i].spans)
	}
	return all
}

// spansOf are those of a track; of one name unless that is empty.
func (t *Timeline) spansOf(track timeline.Track, name string) (spans []timeline.Span) {
	for _, k := range t.tracks {
		if k.track == track && (name == "" || k.name == name) {
			spans = append(spans, k.spans...)
		}
	}
	return spans
}

func (t *Timeline) share(b busy) (seconds, share float64) {
	seconds = b.within(t.window).Seconds()
	return seconds, seconds / t.Seconds
}

func (t *Timeline) activity(name string, spans []timeline.Span) Activity {
	a := Activity{Name: name}
	a.Seconds, a.Share = t.share(busyIn(spans))
	for _, s := range spans {
		if t.window.ends(s) {
			a.Count++
			a.Bytes += s.Bytes
			a.Mean += (s.To - s.From).Seconds()
		}
	}
	if a.Count > 0 {
		a.Mean /= float64(a.Count)
	}
	if a.Seconds > 0 {
		a.Rate = float64(a.Bytes) / a.Seconds / 1e9
	}
	return a
}

// endings are the moves in the order in which they ended.
type endings []timeline.Span

func newEndings(spans []timeline.Span) endings {
	moves := slices.DeleteFunc(slices.Clone(spans), func(s timeline.Span) bool { return s.Track != timeline.In && s.Track != timeline.Out })
	slices.SortStableFunc(moves, func(a, b timeline.Span) int { return cmp.Compare(a.To, b.To) })
	return moves
}

// nearest is the move whose end is the nearest to that of a wait; its name says so when there is none.
func (e endings) nearest(wait timeline.Span) timeline.Span {
	i, _ := slices.BinarySearchFunc(e, wait.To, func(s timeline.Span, t time.Duration) int { return cmp.Compare(s.To, t) })
	best, found := sameTime, timeline.Span{Name: nothingSeen}
	for _, s := range e[max(0, i-1):min(len(e), i+1)] {
		if d := (wait.To - s.To).Abs(); d < best {
			best, found = d, s
		}
	}
	return found
}

func (e endings) of(waits []timeline.Span) (all []Ending) {
	for _, s := range waits {
		move := e.nearest(s).Name
		i := slices.IndexFunc(all, func(x Ending) bool { return x.Move == move })
		if i < 0 {
			i = len(all)
			all = append(all, Ending{Move: move})
		}
		all[i].Count++
		all[i].Seconds += (s.To - s.From).Seconds()
	}
	slices.SortFunc(all, func(a, b Ending) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), cmp.Compare(a.Move, b.Move))
	})
	return all
}

func largest(waits []timeline.Span, ends endings) (all []LargestWait) {
	slices.SortFunc(waits, func(a, b timeline.Span) int {
		return cmp.Or(cmp.Compare(b.To-b.From, a.To-a.From), cmp.Compare(a.From, b.From))
	})
	for _, s := range waits[:min(len(waits), largestWaits)] {
		end := ends.nearest(s)
		all = append(all, LargestWait{At: s.From.Seconds(), Seconds: (s.To - s.From).Seconds(), Cause: s.Name, Of: s.Detail, EndedBy: end.Name, Kernel: end.Detail})
	}
	return all
}

// beginsIteration says whether an iteration begins at a mark.
func beginsIteration(m timeline.Mark) bool {
	return m.Name == timeline.Iteration || m.Name == timeline.Begins(phase.Forward)
}

// settled are the marks of a window without forward passes that end in an optimizer: these are launches between two of
// its own.
func settled(all []timeline.Mark, w window) (marks []timeline.Mark) {
	for _, m := range all {
		last := len(marks) - 1
		switch {
		case m.At < w.from || m.At > w.to:
		case last >= 0 && m.Name == timeline.Begins(phase.Optimizer) && marks[last].Name == timeline.Begins(phase.Forward):
			if marks = marks[:last]; last == 0 || marks[last-1].Name != m.Name {
				marks = append(marks, m)
			}
		default:
			marks = append(marks, m)
		}
	}
	return marks
}

// phases are the parts of the whole iterations in the window.
func (t *Timeline) phases() {
	type part struct {
		name    string
		windows []window
	}
	var parts []part
	first, last := -1, -1
	for i, m := range t.marks {
		if beginsIteration(m) {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	for i := max(first, 0); i < last; i++ {
		m := t.marks[i]
		if beginsIteration(m) {
			t.Iterations++
		}
		name := strings.TrimSuffix(m.Name, " begins")
		k := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if k < 0 {
			k = len(parts)
			parts = append(parts, part{name: name})
		}
		parts[k].windows = append(parts[k].windows, window{m.At, t.marks[i+1].At})
	}
	if t.Iterations == 0 {
		return
	}
	t.IterationSeconds = (t.marks[last].At - t.marks[first].At).Seconds() / float64(t.Iterations)
	waits, in, out := t.spansOf(timeline.Waits, ""), t.spansOf(timeline.In, "fetch"), t.spansOf(timeline.Bus, "")
	waiting, coming, leaving := busyIn(waits), busyIn(in), busyIn(out)
	for _, p := range parts {
		ph := Phase{Name: p.name, Count: len(p.windows)}
		var took, wait, came, left time.Duration
		for _, w := range p.windows {
			took += w.length()
			wait, came, left = wait+waiting.within(w), came+coming.within(w), left+leaving.within(w)
			ph.BytesIn += w.bytes(in)
			ph.BytesOut += w.bytes(out)
		}
		if took > 0 {
			ph.Mean = took.Seconds() / float64(ph.Count)
			ph.Waits, ph.In, ph.Out = share(wait, took), share(came, took), share(left, took)
		}
		t.Phases = append(t.Phases, ph)
	}
}

func share(part, whole time.Duration) float64 { return part.Seconds() / whole.Seconds() }
