package swapped

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/replay"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/bound"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
	"github.com/penstock-gpu/penstock/um/live/stats"
)

// remembered is what a runtime remembers of a job whose layers, of a weight of 8 MiB each, take a
// millisecond, and which waits for as long again before each. Its progress is seen later still, after every other launch:
// of most launches it cannot be told how long they took, but for those that were timed.
func remembered(layers, iterations int) explicit.Recent {
	t := &trace.Trace{}
	var reports []explicit.Report
	var kinds []trace.OpKind
	timings := trace.Timings{}
	add := func(e trace.Event) {
		t.Events = append(t.Events, e)
		if e.Kind == trace.KindLaunch {
			reports = append(reports, explicit.Report{At: e.Time})
			kinds = append(kinds, trace.OpKind{Exact: uint64(e.Function), Rough: 1 << 32})
		}
	}
	add(trace.Event{Kind: trace.KindAlloc, Bytes: 1 << 40}) // which nothing uses
	for w := range layers {
		add(trace.Event{Kind: trace.KindAlloc, Alloc: uint64(w + 1), Bytes: 8 * mib})
	}
	var number uint64
	at := time.Duration(0)
	next := uint64(layers + 1)
	for i := range iterations {
		for w := range layers {
			add(trace.Event{Kind: trace.KindAlloc, Alloc: next, Bytes: 2 * mib})
			at += time.Millisecond
			add(trace.Event{Kind: trace.KindLaunch, Time: at, Function: uint32(w), Duration: -1, Accesses: []trace.Access{{Alloc: uint64(w + 1)}, {Alloc: next}}})
			add(trace.Event{Kind: trace.KindFree, Alloc: next})
			at += time.Millisecond
			number++
			next++
			if number%2 == 0 {
				add(trace.Event{Kind: trace.KindProgress, Time: at, Alloc: number})
			}
			if (w+i)%5 == 0 {
				timings[uint64(w)] = append(timings[uint64(w)], time.Millisecond)
			}
		}
	}
	return explicit.Recent{Trace: t, Reports: reports, Kinds: kinds, Timings: timings}
}

// judged is the last that is told of a job, by way of what it leaves.
func judged(t *testing.T, recent explicit.Recent, e bound.Evidence) bound.Bound {
	t.Helper()
	b, iterations := measure(recent)
	if iterations == nil {
		return b
	}
	if err := e.Record(iterations); err != nil {
		t.Fatal(err)
	}
	replay.Bound(b, &e, func(x bound.Bound) { b = x })
	return b
}

func TestJudge(t *testing.T) {
	fast := bound.Evidence{BudgetBytes: 200 * mib, InBytesPerSecond: 1e11, OutBytesPerSecond: 1e11}
	b := judged(t, remembered(40, 6), fast)
	// Every copy is hidden: what is left is the computing, which is half of it.
	if math.Abs(b.IterationSeconds-0.080) > 0.002 || math.Abs(b.Seconds-0.040) > 0.002 || math.Abs(b.Share-0.5) > 0.03 {
		t.Errorf("%+v", b)
	}
	slow := fast
	slow.InBytesPerSecond, slow.OutBytesPerSecond = 5e9, 5e9 // what does not fit has to come back each time
	if b = judged(t, remembered(40, 6), slow); b.Why != "" || b.Seconds < 0.041 || b.Seconds > 0.080 {
		t.Errorf("%+v", b)
	}
	if b = judged(t, remembered(40, 6), fast); b.LaunchCostSeconds != 0.002 || math.Abs(b.CPUSeconds-0.080) > 0.001 ||
		math.Abs(b.WithCPUSeconds-0.080) > 0.002 || math.Abs(b.WithCPUShare-1) > 0.03 {
		t.Errorf("%+v", b) // launches are 2 ms apart, as far as can be seen for the CPU's sake
	}
	waiting := remembered(40, 6)
	for i := range waiting.Reports {
		waiting.Reports[i].Waited = true
	}
	if b = judged(t, waiting, fast); b.Share == 0 || b.LaunchCostSeconds != 0 || b.WithCPUShare != 0 {
		t.Errorf("%+v", b)
	}
	// Half of the time is waits that no launch has of itself, and in memory there are none.
	if b = judged(t, remembered(40, 6), fast); math.Abs(b.GPUSeconds-0.040) > 1e-6 || b.InMemorySeconds != b.CPUSeconds || b.TimedShare != 1 || b.TimedError != 0 || b.TimedLaunches != 48 {
		t.Errorf("%+v", b)
	}
	if b = judged(t, waiting, fast); math.Abs(b.InMemorySeconds-0.040) > 1e-6 || math.Abs(b.InMemoryShare-0.5) > 0.01 || b.Defects != 0 {
		t.Errorf("%+v", b)
	}
	fewer := remembered(40, 6)
	for k := range fewer.Timings {
		if k%2 == 0 {
			delete(fewer.Timings, k)
		}
	}
	if b = judged(t, fewer, fast); b.Share != 0 || !strings.Contains(b.Why, "of the device's time: too few") {
		t.Errorf("%+v", b)
	}
	// Timings that cannot be, as those of an oracle that is no bound: it is said, and not hidden.
	wrong := remembered(40, 6)
	for _, timed := range wrong.Timings {
		for i := range timed {
			timed[i] = 3 * time.Millisecond
		}
	}
	if b = judged(t, wrong, fast); b.Share < 1.4 || b.Defects != 2 {
		t.Errorf("%+v", b)
	}
	text := stats.Stats{Part: verdict{}, Engine: "explicit", H2DBytes: 1, Explicit: &stats.Explicit{Judgement: bound.Judgement{Bound: b}}}.Verdict()
	if !strings.Contains(text, " 150 % of the speed of an oracle") || !strings.Contains(text, "defect of the oracle") {
		t.Error(text)
	}
	tight := fast
	tight.BudgetBytes = 9 * mib
	noProgress := remembered(40, 6)
	for i := range noProgress.Trace.Events {
		if noProgress.Trace.Events[i].Kind == trace.KindProgress {
			noProgress.Trace.Events[i].Kind = trace.KindMark
			noProgress.Trace.Events[i].Name = "nothing"
		}
	}
	for _, c := range []struct {
		name, why string
		recent    explicit.Recent
		e         bound.Evidence
	}{
		{"nothing", "no launch was seen to end", explicit.Recent{Trace: &trace.Trace{}}, fast},
		{"none was timed", "0 launches were timed", explicit.Recent{Trace: remembered(40, 6).Trace, Kinds: make([]trace.OpKind, 240)}, fast},
		{"no progress", "no launch was seen to end", noProgress, fast},
		{"two iterations", "hold no 3 like iterations", remembered(40, 2), fast},
		{"too small a budget", "one launch touches 10 MiB", remembered(40, 6), tight},
	} {
		if b := judged(t, c.recent, c.e); !strings.Contains(b.Why, c.why) || b != (bound.Bound{Why: b.Why}) {
			t.Errorf("%s: %+v, want %q", c.name, b, c.why)
		}
	}
}

// TestEvidenceRepeats: what an iteration makes and the next one uses first is there for an oracle at the last one, too: it repeats that only if it
// allocates as the one before, and goes on without else, as if nothing were needed any more.
func TestEvidenceRepeats(t *testing.T) {
	recent := remembered(40, 6)
	left := map[uint32]uint64{10: 1 << 20, 20: 1<<20 + 1} // by the launch that uses it, and makes the next one: one of them is alive wherever an iteration ends
	var events []trace.Event
	next := uint64(1<<20 + 2)
	alloc := func(id uint64) {
		events = append(events, trace.Event{Kind: trace.KindAlloc, Alloc: id, Bytes: 4 * mib})
	}
	for _, id := range left {
		alloc(id)
	}
	for _, e := range recent.Trace.Events {
		id, uses := left[e.Function]
		if uses = uses && e.Kind == trace.KindLaunch; uses {
			e.Accesses = append(slices.Clone(e.Accesses), trace.Access{Alloc: id})
		}
		if events = append(events, e); uses {
			events = append(events, trace.Event{Kind: trace.KindFree, Alloc: id})
			alloc(next)
			left[e.Function], next = next, next+1
		}
	}
	recent.Trace.Events = events
	b, iterations := measure(recent)
	if iterations == nil {
		t.Fatal(b.Why)
	}
	if _, err := iterations.Repeat(simulated + 1); err != nil {
		t.Error(err)
	}
}

// TestJudgeAJob: whatever the engine remembers, a job's end is not spoiled.
func TestJudgeAJob(t *testing.T) {
	s := stats.Stats{Explicit: &stats.Explicit{}, H2DBytes: 1, BudgetBytes: 1 << 30}
	e := &Engine{proc: process.New(process.Config{}, livetest.NewDriver(1<<30), nil, zap.NewNop())}
	e.Assess(&s, "") // which has no runtime
	if !strings.Contains(s.Explicit.Why, "it failed") {
		t.Errorf("%+v", s.Explicit.Bound)
	}
	e.runtime = explicit.New(explicit.Config{BudgetBytes: 64 * mib, HostBudgetBytes: 64 * mib, Addresses: cuda.Range{Base: 1 << 40, Bytes: 1 << 30}}, processOf{e})
	e.Assess(&s, "")
	if s.Explicit.Why != "no launch was seen to end" {
		t.Errorf("%+v", s.Explicit.Bound)
	}
	s.H2DBytes = 0
	if e.Assess(&s, ""); s.Explicit.Why != "nothing was moved" {
		t.Errorf("%+v", s.Explicit.Bound)
	}
}

// TestAsk: the command's answers count as far as they come, and what it complains of is told.
func TestAsk(t *testing.T) {
	evidence := &bound.Evidence{BudgetBytes: 5, Recording: []byte("recording")}
	for _, c := range []struct {
		name, script, err string
		told              []float64
	}{
		{"two", `echo '{"oracle_seconds": 1}'; echo '{"oracle_seconds": 2}'`, "", []float64{1, 2}},
		{"one, and then it hangs", `echo '{"oracle_seconds": 1}'; exec sleep 100`, "", []float64{1}},
		{"it hangs", "exec sleep 100", "", nil},
		{"it complains", "echo 'penstock: no' >&2; exit 2", "penstock: no", nil},
		{"it says nothing", "exit 1", "said nothing", nil},
		{"the report reaches it", `grep -q '"budget_bytes":5' && [ "$*" = "report bound --json -" ] && echo '{"oracle_seconds": 3}'`, "", []float64{3}},
		{"it knows nothing of the job", `[ -z "$LD_PRELOAD$PENSTOCK_BUDGET" ] && echo '{"oracle_seconds": 4}'`, "", []float64{4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("PENSTOCK_BUDGET", "1GiB")
			command := filepath.Join(t.TempDir(), "penstock")
			if err := os.WriteFile(command, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			patience := time.Minute
			if strings.Contains(c.script, "sleep") {
				patience = 500 * time.Millisecond
			}
			enough, stop := context.WithTimeout(t.Context(), patience)
			defer stop()
			var told []float64
			err := ask(enough, command, bound.Bound{}, evidence, func(b bound.Bound) { told = append(told, b.Seconds) })
			if !slices.Equal(told, c.told) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("told %v, %v", told, err)
			}
		})
	}
	err := ask(t.Context(), filepath.Join(t.TempDir(), "none"), bound.Bound{}, evidence, func(bound.Bound) { t.Error("told") })
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}
