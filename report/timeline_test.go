package report

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/trace/phase"
	"github.com/penstock-gpu/penstock/um/live/timeline"
)

const ms = time.Millisecond

// recording is a time line of which everything is known by hand: two iterations of 40 ms, the optimizer in the last 10 of each.
func recording() *timeline.Recorded {
	r := &timeline.Recorded{Lost: 3}
	add := func(track timeline.Track, name string, from, to int, bytes int64, of string) {
		r.Spans = append(r.Spans, timeline.Span{Track: track, Name: name, From: time.Duration(from) * ms, To: time.Duration(to) * ms, Bytes: bytes, Detail: of})
	}
	for _, at := range []int{0, 40} {
		r.Marks = append(r.Marks, timeline.Mark{Name: timeline.Begins(phase.Forward), At: time.Duration(at) * ms},
			timeline.Mark{Name: timeline.Begins(phase.Backward), At: time.Duration(at+10) * ms}, timeline.Mark{Name: timeline.Begins(phase.Optimizer), At: time.Duration(at+30) * ms})
		add(timeline.Waits, "for a copy or a making", at, at+4, 0, "operation 1")
		add(timeline.Waits, "for a copy or a making", at+2, at+6, 0, "operation 2") // another stream
		add(timeline.Waits, "for room", at+30, at+33, 0, "operation 3")
		add(timeline.In, "fetch", at, at+4, 100e6, "")
		add(timeline.In, "fetch", at+3, at+6, 100e6, "")
		add(timeline.In, "map", at+20, at+21, 0, "")
		add(timeline.Bus, "copy out", at+4, at+9, 50e6, "")
		add(timeline.Bus, "copy out", at+30, at+35, 150e6, "")
		add(timeline.Out, "evict", at+4, at+10, 50e6, "")
		add(timeline.Out, "verify", at+32, at+33, 150e6, `ke<b>rnel`)
		add(timeline.WorkIn, "begin", at, at+4, 0, "")
		add(timeline.WorkIn, "idle", at+4, at+40, 0, "")
		add(timeline.WorkOut, "idle", at, at+40, 0, "")
	}
	r.Marks = append(r.Marks, timeline.Mark{Name: timeline.Begins(phase.Forward), At: 80 * ms})
	add(timeline.Waits, "for new memory", 99, 100, 0, "operation 9")
	add(timeline.In, "trim", 400, 500, 0, "")
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func timelineReport(t *testing.T, r *timeline.Recorded, c WindowOfTime) *Timeline {
	t.Helper()
	l, err := TimelineOf("t<b>.json", r, c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestTimelineOf(t *testing.T) {
	l := timelineReport(t, recording(), WindowOfTime{})
	if !near(l.Seconds, 0.1) || l.LostSpans != 3 || l.Iterations != 2 || !near(l.IterationSeconds, 0.04) {
		t.Errorf("%v s, %d iterations of %v s", l.Seconds, l.Iterations, l.IterationSeconds)
	}
	// Waits that overlap are counted once.
	if !near(l.Waits.Seconds, 0.019) || !near(l.Waits.Share, 0.19) || l.Waits.Count != 7 {
		t.Errorf("waits: %+v", l.Waits)
	}
	if !near(l.In.Seconds, 0.012) || l.In.Bytes != 400e6 || !near(l.In.Rate, 0.4/0.012) || !near(l.Out.Seconds, 0.02) || l.Out.Bytes != 400e6 || !near(l.Both.Seconds, 0.004) {
		t.Errorf("in %+v, out %+v, both %+v", l.In, l.Out, l.Both)
	}
	ends := map[string]Ending{}
	for _, c := range l.Causes {
		ends[c.Name] = c.EndedBy[0]
		if n := len(c.EndedBy); n != 1 {
			t.Errorf("%s: %+v", c.Name, c.EndedBy)
		}
	}
	for cause, want := range map[string]Ending{
		"for a copy or a making": {"fetch", 0.016, 4}, "for room": {"verify", 0.006, 2}, "for new memory": {nothingSeen, 0.001, 1},
	} {
		if got := ends[cause]; got.Move != want.Move || !near(got.Seconds, want.Seconds) || got.Count != want.Count {
			t.Errorf("%s: %+v, want %+v", cause, got, want)
		}
	}
	if len(l.Largest) != 7 || l.Largest[0].Of != "operation 1" || !near(l.Largest[0].Seconds, 0.004) || l.Largest[0].EndedBy != "fetch" || l.Largest[4].Kernel != "ke<b>rnel" {
		t.Errorf("largest: %+v", l.Largest)
	}
	if len(l.Threads) != 2 || l.Threads[0].Parts[0].Name != "begin" || !near(l.Threads[0].Parts[0].Seconds, 0.008) || l.Threads[0].Parts[0].Count != 2 {
		t.Errorf("threads: %+v", l.Threads)
	}
	var moves []string
	for _, m := range l.Moves {
		moves = append(moves, m.Name)
	}
	if got := strings.Join(moves, " "); got != "fetch map evict verify" { // trim is after the end
		t.Errorf("moves: %s", got)
	}
}

func TestTimelinePhases(t *testing.T) {
	l := timelineReport(t, recording(), WindowOfTime{})
	if len(l.Phases) != 3 {
		t.Fatalf("%+v", l.Phases)
	}
	forward, backward, optimizer := l.Phases[0], l.Phases[1], l.Phases[2]
	if forward.Name != "forward" || forward.Count != 2 || !near(forward.Mean, 0.01) || !near(forward.Waits, 0.6) || !near(forward.In, 0.6) || !near(forward.Out, 0.5) || forward.BytesIn != 400e6 || forward.BytesOut != 100e6 {
		t.Errorf("%+v", forward)
	}
	if backward.Name != "backward" || !near(backward.Mean, 0.02) || backward.Waits != 0 || backward.In != 0 || backward.BytesOut != 0 {
		t.Errorf("%+v", backward)
	}
	if optimizer.Name != "optimizer" || !near(optimizer.Mean, 0.01) || !near(optimizer.Waits, 0.3) || optimizer.In != 0 || !near(optimizer.Out, 0.5) || optimizer.BytesOut != 300e6 {
		t.Errorf("%+v", optimizer)
	}
	// Of a window only the whole iterations count.
	if l = timelineReport(t, recording(), WindowOfTime{From: 5 * ms}); l.Iterations != 1 || l.Phases[0].Count != 1 {
		t.Errorf("%d iterations, %+v", l.Iterations, l.Phases)
	}
	if l = timelineReport(t, recording(), WindowOfTime{From: 5 * ms, To: 75 * ms}); l.Iterations != 0 || l.Phases != nil {
		t.Errorf("%d iterations, %+v", l.Iterations, l.Phases)
	}
	// What an optimizer launches in between is no forward pass.
	r := recording()
	r.Marks = slices.Insert(r.Marks, 3, timeline.Mark{Name: timeline.Begins(phase.Forward), At: 34 * ms}, timeline.Mark{Name: timeline.Begins(phase.Optimizer), At: 36 * ms})
	if l = timelineReport(t, r, WindowOfTime{}); l.Iterations != 2 || len(l.Phases) != 3 || l.Phases[2].Count != 2 {
		t.Errorf("%d iterations, %+v", l.Iterations, l.Phases)
	}
	r.Marks = r.Marks[:0]
	for i := range 3 {
		r.Marks = append(r.Marks, timeline.Mark{Name: timeline.Iteration, At: time.Duration(i) * 40 * ms})
	}
	if l = timelineReport(t, r, WindowOfTime{}); len(l.Phases) != 1 || l.Phases[0].Name != "iteration" || !near(l.Phases[0].Waits, 9.0/40) {
		t.Errorf("%+v", l.Phases)
	}
	r.Marks = nil
	if l = timelineReport(t, r, WindowOfTime{}); l.Phases != nil || l.Iterations != 0 {
		t.Errorf("%+v", l.Phases)
	}
}

func TestTimelineWindow(t *testing.T) {
	for _, c := range []struct {
		window   WindowOfTime
		from, to float64
		waits    float64
		count    int
	}{
		{WindowOfTime{}, 0, 0.1, 0.019, 7},
		{WindowOfTime{Last: 65 * ms}, 0.035, 0.1, 0.010, 4},
		{WindowOfTime{Last: time.Hour}, 0, 0.1, 0.019, 7},
		{WindowOfTime{From: 41 * ms, To: 45 * ms}, 0.041, 0.045, 0.004, 1}, // seconds in it, and what ended in it
		{WindowOfTime{To: time.Hour}, 0, 0.1, 0.019, 7},
	} {
		l := timelineReport(t, recording(), c.window)
		if !near(l.FromSeconds, c.from) || !near(l.ToSeconds, c.to) || !near(l.Waits.Seconds, c.waits) || l.Waits.Count != c.count {
			t.Errorf("%+v: %v to %v, waits %+v", c.window, l.FromSeconds, l.ToSeconds, l.Waits)
		}
	}
	for _, c := range []WindowOfTime{{From: time.Second}, {From: 5 * ms, To: 5 * ms}, {From: -1}, {To: -1}, {Last: -1}} {
		if _, err := TimelineOf("t", recording(), c); err == nil || !strings.Contains(err.Error(), "0.000 s to 0.100 s") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for _, r := range []*timeline.Recorded{{}, {Spans: []timeline.Span{{Track: timeline.WorkIn, Name: "idle", To: ms}}}} {
		if _, err := TimelineOf("t", r, WindowOfTime{}); err == nil || !strings.Contains(err.Error(), "nothing was moved") {
			t.Errorf("%v", err)
		}
	}
}

func TestBusy(t *testing.T) {
	b := busyIn([]timeline.Span{{From: 10, To: 20}, {From: 0, To: 5}, {From: 12, To: 14}, {From: 20, To: 25}, {From: 18, To: 21}})
	for at, want := range map[time.Duration]time.Duration{-1: 0, 0: 0, 3: 3, 5: 5, 8: 5, 10: 5, 20: 15, 25: 20, 99: 20} {
		if got := b.until(at); got != want {
			t.Errorf("until %d: %d, want %d", at, got, want)
		}
	}
	if got := b.and(busyIn([]timeline.Span{{From: 4, To: 11}, {From: 24, To: 30}})).until(99); got != 1+1+1 {
		t.Errorf("both: %d", got)
	}
	if (busy{}).until(5) != 0 {
		t.Error("nothing takes time")
	}
}

// real is the time line in testdata.
func real(t *testing.T) *Timeline {
	t.Helper()
	f, err := os.Open("testdata/timeline.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := timeline.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return timelineReport(t, r, WindowOfTime{})
}

// A real one: what goes on at once cannot take longer than the time there is, and parts make the whole.
func TestTimelineOfARealJob(t *testing.T) {
	l := real(t)
	if l.Seconds < 0.009 || l.Seconds > 0.01 || l.Waits.Count != 12 || l.In.Bytes == 0 || l.Out.Rate < 20 || l.Out.Rate > 64 {
		t.Errorf("%+v", l)
	}
	var count int
	var seconds float64
	for _, c := range l.Causes {
		count += c.Count
		seconds += c.Seconds
		var ended float64
		for _, e := range c.EndedBy {
			ended += e.Seconds
		}
		if ended < c.Seconds-1e-9 {
			t.Errorf("%s: %v s of %v s have an end", c.Name, ended, c.Seconds)
		}
	}
	if count != l.Waits.Count || seconds < l.Waits.Seconds-1e-9 {
		t.Errorf("%d waits of %v s by cause, %+v in all", count, seconds, l.Waits)
	}
	for _, th := range l.Threads {
		var all float64
		for _, p := range th.Parts {
			all += p.Share
		}
		if all < 0.9 || all > 1 {
			t.Errorf("%s does %v seconds a second", th.Name, all)
		}
	}
	if out, err := json.Marshal(l); err != nil || !bytes.Contains(out, []byte(`"copies_both_ways_at_once"`)) {
		t.Errorf("%s, %v", out, err)
	}
}

func TestTimelineText(t *testing.T) {
	var b bytes.Buffer
	if err := timelineReport(t, recording(), WindowOfTime{}).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"t<b>.json: 0.100 s, from 0.000 s to 0.100 s", "2 whole iterations, of 40.000 ms", "3 spans of the job's end are missing",
		"  for room                0.006  0.060     2      verify 0.006\n",
		"  to the host        0.020  0.200     381.5 MiB  20.0 GB/s\n",
		"  forward    10.000 ms  0.600      0.600      0.500       190.7 MiB  47.7 MiB\n",
		"  0.0300  3.000 ms  for room                verify    operation 3, ke<b>rnel\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	r := recording()
	r.Spans[0].Name = "for\x1b[2J"
	b.Reset()
	if err := timelineReport(t, r, WindowOfTime{}).WriteText(&b); err != nil || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%v: a name reaches the terminal as it is", err)
	}
}

func TestTimelinePage(t *testing.T) {
	var b bytes.Buffer
	if err := timelineReport(t, recording(), WindowOfTime{}).WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{"<!doctype html>", "t&lt;b&gt;.json", "ke&lt;b&gt;rnel", "3 spans of", `class="phase"`, "backward begins at", "19 % of the time", "</html>"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	for _, bad := range []string{"<b>", "<script", "http:", "https:", "NaN", "Inf", "simulated"} {
		if strings.Contains(page, bad) {
			t.Errorf("%q is on the page", bad)
		}
	}
	if n := strings.Count(page, "<details"); n != closeUps || strings.Count(page, "<details open") != 1 {
		t.Errorf("%d pictures of a part", n)
	}
	// Bands are as high as their share of a column: the GPU waits from 0 to 6 ms of the first 12.5.
	if want := `d="M0 37H0V15H480V37H1000V37Z"`; !strings.Contains(page, want) {
		t.Errorf("%s is not on the page", want)
	}
	b.Reset()
	if err := real(t).WriteHTML(&b); err != nil || b.Len() > 512<<10 {
		t.Errorf("%v, %d bytes", err, b.Len())
	}
}

// However much was recorded, a page stays small: columns are what is drawn.
func TestTimelinePageStaysSmall(t *testing.T) {
	r := &timeline.Recorded{}
	for i := range 15000 {
		at := time.Duration(i) * 100 * time.Microsecond
		long := time.Duration(i*7919%90+1) * time.Microsecond
		for _, track := range trackOrder {
			for _, name := range []string{"a", "b", "c", "d"} {
				r.Spans = append(r.Spans, timeline.Span{Track: track, Name: name, From: at, To: at + long, Bytes: 1})
			}
		}
	}
	var b bytes.Buffer
	if err := timelineReport(t, r, WindowOfTime{}).WriteHTML(&b); err != nil || b.Len() > 2<<20 {
		t.Errorf("%v, %d bytes", err, b.Len())
	}
}
