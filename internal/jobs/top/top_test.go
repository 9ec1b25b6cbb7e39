package top

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/penstock-gpu/penstock/internal/jobs"
)

const gib = 1 << 30

// job is one after so many seconds: 2 GB/s come in, and it waits for half of the time.
func job(pid int, rank string, seconds float64) jobs.Job {
	j := jobs.Job{Answer: jobs.Answer{Version: "1", PID: pid, TakenAt: 1000 + seconds, Stats: json.RawMessage(`{"launches":1}`)}, Command: "python train.py\x1b[2J --model gpt"}
	j.Shown = jobs.Stats{
		Process: rank, Engine: "explicit", Policy: "penstock", ResidentBytes: 6 * gib, ResidentPeakBytes: 7 * gib, BudgetBytes: 8 * gib, AllocatedBytes: 20 * gib,
		HostBudgetBytes: 64 * gib, H2DBytes: 2e9 * seconds, D2HBytes: 1e9 * seconds, Launches: 1000 * seconds, StallSeconds: seconds / 2, SpaceStallSeconds: seconds / 10,
		PredictionHitRate: 0.998, IterationLaunches: 5120, IterationSeconds: 1.234, InMemoryShare: 0.84, Faults: -1,
		Explicit: jobs.Explicit{FetchStallSeconds: seconds / 5 * 2, HostBytes: 16 * gib, HostPinnedBytes: 20 * gib, DroppedBytes: 3e9 * seconds, MadeBytes: 2e9 * seconds, GuardWaits: 4 * seconds},
	}
	return j
}

func sample(seconds float64, ranks ...string) Sample {
	s := Sample{At: time.Unix(1000, 0).Add(time.Duration(seconds * 1e9))}
	for i, r := range ranks {
		s.Jobs = append(s.Jobs, job(4711+i, r, seconds))
	}
	return s
}

func shown(msgs ...tea.Msg) string {
	m := tea.Model(New())
	for _, x := range append([]tea.Msg{tea.WindowSizeMsg{Width: 200, Height: 30}, sample(10, "rank0", "rank1"), sample(12, "rank0", "rank1")}, msgs...) {
		m, _ = m.Update(x)
	}
	return m.View()
}

func key(text string) tea.Msg { return tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(text)} }

func has(t *testing.T, text string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestView(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	has(t, shown(), "2 jobs", "> ", "4711  rank0  explicit", "6 GiB", "16 GiB", "2.0 GB/s", "1.0 GB/s", "50 %", "99.8 %", "1.23 s", "84 %", `python train.py\x1b[2J --model gpt`,
		"job 4711 (rank0): explicit engine; penstock policy", "6 GiB of a budget of 8 GiB; peak 7 GiB; 20 GiB allocated", "16 GiB of a budget of 64 GiB; 20 GiB pinned",
		"2.0 GB/s now; 22.4 GiB in all", "50 % of the time now; 6.00 s in all; 40 % for data on its way; 10 % for room", "dropped 3.0 GB/s now", "made again 2.0 GB/s now", "4 launches a second waited",
		"99.8 % of operations; 5,120 operations an iteration", "about 84 % of the speed in memory (an estimate); 1.23 s an iteration")
	if text := shown(); strings.Contains(text, "\x1b") {
		t.Errorf("%q", text)
	}
	has(t, shown(sample(16, "rank0", "rank1")), "to GPU    ██ at most 2.0 GB/s", "waits     ▄▄ at most 50 %")
	has(t, shown(key("j")), "job 4712 (rank1)")
	has(t, shown(key("k")), "job 4712 (rank1)")
	has(t, shown(key("?")), "another job", "an estimate")
	// The one that is chosen stays chosen when others come or go; when it goes itself, the first is.
	has(t, shown(key("j"), Sample{Jobs: []jobs.Job{job(99, "", 1), job(4712, "rank1", 13)}}), "job 4712")
	has(t, shown(key("j"), Sample{Jobs: []jobs.Job{job(4711, "rank0", 13)}}), "job 4711", "1 job ")
	has(t, shown(Sample{}), "no job runs any more")
	has(t, shown(key("p"), Sample{}), "paused", "job 4711")
	has(t, shown(Sample{Jobs: []jobs.Job{job(7, "", 1)}, Problems: []jobs.Problem{{PID: 8, Err: errors.New("it did\x1b not")}}}), "job 7:", `process 8: it did\x1b not`, "n/a now")
	has(t, shown(Sample{Err: errors.New("process 7 has gone")}), "process 7 has gone")
	if _, cmd := New().Update(key("q")); cmd == nil {
		t.Error("q does not quit")
	}
	first := tea.Model(New())
	has(t, first.View(), "looking")
	first, _ = first.Update(Sample{})
	has(t, first.View(), "no running job was found:", "start one with `penstock run`")
}

// The managed engine knows less: what it does not know is n/a.
func TestManaged(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	j := job(7, "", 1)
	j.Shown.Engine, j.Shown.Explicit, j.Shown.InMemoryShare, j.Shown.PredictionHitRate, j.Shown.IterationSeconds, j.Shown.Faults = "managed", jobs.Explicit{}, -1, -1, 0, 1234
	text := shown(Sample{Jobs: []jobs.Job{j}})
	has(t, text, "n/a of a budget of 64 GiB", "predicted n/a of operations", "speed     n/a; n/a an iteration", "1,234 in all")
	if strings.Contains(text, "replay") || strings.Contains(text, "rank") {
		t.Error(text)
	}
}

// A number that is another process's by now has no rates, nor has an answer that is no newer.
func TestRates(t *testing.T) {
	a, b := job(7, "", 10), job(7, "", 12)
	if r := ratesOf(a, b); r == nil || r.Seconds != 2 || r.In != 2e9 || r.Stalled != 0.5 || r.Guards != 4 {
		t.Errorf("%+v", r)
	}
	if ratesOf(a, a) != nil || ratesOf(b, a) != nil || ratesOf(job(8, "", 1), b) != nil {
		t.Error("rates of nothing")
	}
	again := job(7, "", 13)
	again.Shown.Launches = 3
	if ratesOf(b, again) != nil {
		t.Error("rates of two processes")
	}
}

// Whatever the size, no line is too long and nothing breaks; and what matters most is there on a narrow screen.
func TestSizes(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	for w := range 230 {
		text := shown(tea.WindowSizeMsg{Width: w, Height: w / 4})
		lines := strings.Split(text, "\n")
		if len(lines) > max(w/4, 8) {
			t.Errorf("%d lines in a height of %d", len(lines), w/4)
		}
		for _, l := range lines {
			if n := utf8.RuneCountInString(l); n > max(w, 20) {
				t.Errorf("a line of %d in a width of %d", n, w)
			}
		}
	}
	has(t, shown(tea.WindowSizeMsg{Width: 72, Height: 30}), "to GPU", "speed", "84 %", "2.0 GB/s", "command", "python train", "about 84 % of the speed in memory")
	// What was before is remembered for so long, and drawn as far as there is room.
	long := tea.Model(New())
	for i := range 1000 {
		long, _ = long.Update(sample(float64(i), "rank0"))
	}
	if n := len(long.(Model).past[4711]); n != mostPast {
		t.Errorf("%d looks are remembered", n)
	}
	for w := range 200 {
		long, _ = long.Update(tea.WindowSizeMsg{Width: w, Height: 40})
		for l := range strings.Lines(long.View()) {
			if n := utf8.RuneCountInString(strings.TrimSpace(l)); n > max(w, 20) {
				t.Errorf("a line of %d in a width of %d", n, w)
			}
		}
	}
	// Of many jobs the chosen one is among those that are shown.
	ranks := make([]string, 50)
	m := tea.Model(New())
	for _, x := range []tea.Msg{tea.WindowSizeMsg{Width: 100, Height: 24}, sample(1, ranks...), key("k")} {
		m, _ = m.Update(x)
	}
	has(t, m.View(), "> ", "4760", "job 4760")
}

func TestTextAndJSON(t *testing.T) {
	ctx := context.Background()
	n := 0.0
	next := func() Sample { n++; return sample(n, "rank0", "rank1") }
	var out strings.Builder
	if err := Text(ctx, &out, time.Millisecond, 2, next); err != nil || strings.Count(out.String(), "to GPU    2.0 GB/s now") != 4 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%v\n%s", err, out.String())
	}
	out.Reset()
	if err := JSON(ctx, &out, time.Millisecond, 1, next); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, l := range lines {
		var x line
		if err := json.Unmarshal([]byte(l), &x); err != nil || x.Rates == nil || x.Rates.In != 2e9 || string(x.Stats) != `{"launches":1}` {
			t.Errorf("%v: %s", err, l)
		}
	}
	if len(lines) != 2 {
		t.Errorf("%q", lines)
	}
	// It ends with the last job, and says so when there is none to begin with.
	left := 3
	if err := Text(ctx, io.Discard, time.Millisecond, 0, func() Sample {
		if left--; left < 0 {
			return Sample{}
		}
		return sample(float64(10-left), "")
	}); err != nil {
		t.Error(err)
	}
	if err := JSON(ctx, io.Discard, time.Millisecond, 0, func() Sample { return Sample{} }); err == nil || err.Error() != NoJobs {
		t.Error(err)
	}
	if err := Text(ctx, io.Discard, time.Millisecond, 0, func() Sample { return Sample{Err: errors.New("gone")} }); err == nil {
		t.Error("an error is lost")
	}
	full := errors.New("full")
	if err := JSON(ctx, failing{full}, time.Millisecond, 0, next); !errors.Is(err, full) {
		t.Error(err)
	}
	// What could not be asked is a line, too.
	out.Reset()
	if err := JSON(ctx, &out, time.Millisecond, 1, func() Sample { return Sample{Problems: []jobs.Problem{{PID: 9, Err: full}}} }); err != nil || !strings.Contains(out.String(), `"pid":9,"rates":null,"error":"full"`) {
		t.Errorf("%v %s", err, out.String())
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// What no job says: nothing of it reaches the terminal as it is, and nothing breaks.
func FuzzView(f *testing.F) {
	f.Add("x\x1b[2J", 1e300, -1e300, 1.0)
	f.Fuzz(func(t *testing.T, name string, a, b, c float64) {
		j := job(7, name, 1)
		j.Command = name
		j.Shown.Engine, j.Shown.Policy, j.Shown.Failure = name, name, name
		j.Shown.ResidentBytes, j.Shown.BudgetBytes, j.Shown.H2DBytes, j.Shown.StallSeconds = a, b, c, a
		j.Shown.PredictionHitRate, j.Shown.InMemoryShare, j.Shown.IterationSeconds, j.Shown.IterationLaunches = a, b, c, b
		text := strings.ReplaceAll(strings.ReplaceAll(shown(Sample{Jobs: []jobs.Job{j}}), "\x1b[1m", ""), "\x1b[0m", "")
		if strings.ContainsAny(text, "\x1b\r\a") {
			t.Errorf("%q", text)
		}
	})
}
