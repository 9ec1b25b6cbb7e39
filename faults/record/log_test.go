package record

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/trace"
)

func create(t *testing.T) (*Log, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.pstrace")
	l, err := Create(path, trace.Header{Source: "test"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l, path
}

// What is added at once has its own times, none before the recording; functions are
// announced once each, the unknown one (all ones) too, and streams that take turns
// have operations of their own.
func TestAddAll(t *testing.T) {
	l, path := create(t)
	l.AddAll(func(add func(e *trace.Event, at int64)) {
		var e trace.Event
		for i := range 3 {
			e = trace.Event{Kind: trace.KindAlloc, Alloc: uint64(i + 1), Bytes: 8}
			add(&e, l.OriginNanos()+int64(i-1)*1000)
		}
	})
	for i, f := range []uint32{3, 1<<32 - 1, 0, 3, 1<<32 - 1, 0, 70} {
		e := trace.Event{Kind: trace.KindLaunch, Stream: uint64(i % 2), Function: f}
		l.Operation(&e, uint64(i+1), func(uint32) string { return "k" }, l.OriginNanos()+int64(i+10)*1000)
	}
	l.Progress(0, 3) // operations 1 and 3
	l.Progress(1, 6)
	if err := l.Close(nil); err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var times []time.Duration
	var announced []uint32
	var done []uint64
	for _, e := range tr.Events {
		switch e.Kind {
		case trace.KindAlloc:
			times = append(times, e.Time)
		case trace.KindFunction:
			announced = append(announced, e.Function)
		case trace.KindProgress:
			done = append(done, e.Alloc)
		}
	}
	if !slices.Equal(times, []time.Duration{0, 0, 1000}) || !slices.Equal(announced, []uint32{3, 1<<32 - 1, 0, 70}) || !slices.Equal(done, []uint64{3, 6}) {
		t.Errorf("allocations at %v, functions %v, progress %v", times, announced, done)
	}
}

// TestTiming: what an operation took is told by its number, also long after it ended and whatever the hook calls it, but not for ever.
func TestTiming(t *testing.T) {
	l, path := create(t)
	const us = time.Microsecond
	name := func(uint32) string { return "k" }
	l.Timing(1, us) // of none
	for i := range uint64(6000) {
		l.Operation(&trace.Event{Kind: trace.KindLaunch, Stream: 5}, 10+3*i, name, 0)
		if i == 10 {
			l.Progress(5, 10+3*i)
		}
	}
	l.Timing(10+3*2, us)       // too long ago
	l.Timing(10+3*4000, 40*us) // number 4001
	l.Timing(11+3*4000, us)    // of none
	l.Timing(10+3*5999, 50*us)
	if err := l.Close(nil); err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	took := map[uint64]time.Duration{}
	for _, e := range tr.Events {
		if e.Kind == trace.KindProgress && e.Duration > 0 {
			took[e.Alloc] = e.Duration
		}
	}
	if len(took) != 2 || took[4001] != 40*us || took[6000] != 50*us {
		t.Errorf("%v", took)
	}
}

// Operations are numbered as written, whatever the hook calls them, and progress
// of a stream is told in those numbers, once.
func TestProgressIsTranslated(t *testing.T) {
	l, path := create(t)
	op := func(seq, stream uint64, function uint32) {
		l.Operation(&trace.Event{Kind: trace.KindLaunch, Stream: stream, Function: function, Duration: -1}, seq, func(uint32) string { return "k" }, 0)
	}
	op(10, 1, 5)
	op(11, 2, 5)
	op(15, 1, 6) // a record of several entries came between
	l.Progress(1, 9)
	l.Progress(1, 12) // the first
	l.Progress(1, 14) // nothing new
	l.Progress(2, 100)
	l.Progress(3, 100) // a stream without operations
	op(20, 1, 5)
	l.Progress(1, 20)
	sums := analyse.Counters{H2DBytes: 1}
	if err := l.Close(&sums); err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	type done struct{ stream, op uint64 }
	var got []done
	functions, clocks, driver := 0, 0, 0
	for _, e := range tr.Events {
		switch {
		case e.Kind == trace.KindProgress:
			got = append(got, done{e.Stream, e.Alloc})
		case e.Kind == trace.KindFunction:
			functions++
		case strings.HasPrefix(e.Name, "clock "):
			clocks++
		case strings.HasPrefix(e.Name, "driver "):
			driver++
		}
	}
	want := []done{{1, 1}, {2, 2}, {1, 4}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("progress %v, want %v", got, want)
	}
	if functions != 2 || clocks != 2 || driver != 1 {
		t.Errorf("%d functions, %d clocks, %d sums", functions, clocks, driver)
	}
}

// An operation has the time at which the program launched it, as far as that keeps
// operations in order; accesses are copied.
func TestOperationsHaveTheirTime(t *testing.T) {
	l, path := create(t)
	for id := range uint64(4) {
		l.Add(trace.Event{Kind: trace.KindAlloc, Alloc: id, Bytes: 1})
	}
	e := trace.Event{Kind: trace.KindLaunch, Accesses: []trace.Access{{Alloc: 1}}}
	for i, at := range []int64{1000, 5000, 3000, 1_000_000} { // the third began before the second on another thread
		e.Accesses[0].Alloc = uint64(i)
		l.Operation(&e, uint64(i+1), func(uint32) string { return "k" }, l.OriginNanos()+at)
	}
	if err := l.Close(nil); err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []time.Duration
	for _, e := range tr.Events {
		if e.Kind == trace.KindLaunch {
			if e.Accesses[0].Alloc != uint64(len(got)) {
				t.Errorf("launch %d names %d", len(got), e.Accesses[0].Alloc)
			}
			got = append(got, e.Time)
		}
	}
	if want := []time.Duration{1000, 5000, 5000, 1_000_000}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The encoder looks more often when there is more, and neither all the time nor never.
func TestNextTurn(t *testing.T) {
	for _, c := range []struct {
		events   int
		of, want time.Duration
	}{
		{0, time.Second, longestTurn}, {1, time.Millisecond, longestTurn}, {eventsATurn, 100 * time.Millisecond, 100 * time.Millisecond},
		{2 * eventsATurn, 100 * time.Millisecond, 50 * time.Millisecond}, {maxPending, time.Millisecond, shortestTurn}, {5, 24 * time.Hour, longestTurn},
	} {
		if got := nextTurn(c.events, c.of); got != c.want {
			t.Errorf("%d events in %s: %s, want %s", c.events, c.of, got, c.want)
		}
	}
}

// While it is paused nothing is gathered; afterwards it goes on, and what was recorded
// meanwhile is there.
func TestPause(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.pstrace")
	var turns atomic.Int64
	l, err := Create(path, trace.Header{}, Options{Gather: func() bool { turns.Add(1); return true }})
	if err != nil {
		t.Fatal(err)
	}
	l.Pause(true)
	l.Pause(true) // the turn of the first is over
	n := turns.Load()
	l.Mark("meanwhile")
	time.Sleep(3 * longestTurn)
	if now := turns.Load(); now > n+1 {
		t.Errorf("%d turns while paused", now-n)
	}
	l.Pause(false)
	for n = turns.Load(); turns.Load() < n+3; {
		time.Sleep(time.Millisecond)
	}
	if err := l.Close(nil); err != nil {
		t.Fatal(err)
	}
	l.Pause(true)
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(tr.Events, func(e trace.Event) bool { return e.Name == "meanwhile" }) {
		t.Error("the mark is missing")
	}
}

// An event that is brought late is written before a later one that was there already: what
// others may yet precede waits. One that is later than that has the time of the last one before it.
func TestLateEventsHaveTheirPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.pstrace")
	l, err := Create(path, trace.Header{}, Options{Sort: true, Gather: func() bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	add := func(at ...int64) {
		l.AddAll(func(add func(e *trace.Event, at int64)) {
			for _, x := range at {
				add(&trace.Event{Kind: trace.KindMark, Name: fmt.Sprint("at ", x)}, l.OriginNanos()+x)
			}
		})
		l.encode()
	}
	add(30, 50)
	add(10, 40)
	l.ripen(35)
	add(20, 60)
	if n := l.Stats().Events; n != 4 { // the clock, 10, 20 and 30
		t.Errorf("%d events are written", n)
	}
	add(36, 5)
	if err := l.Close(nil); err != nil {
		t.Fatal(err)
	}
	tr, err := trace.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	last := time.Duration(-1)
	for _, e := range tr.Events {
		if strings.HasPrefix(e.Name, "at ") {
			got = append(got, e.Name[3:])
		}
		if e.Time < last {
			t.Errorf("%v after %v", e.Time, last)
		}
		last = e.Time
	}
	if want := []string{"10", "20", "30", "5", "36", "40", "50", "60"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Everything arrives, from several threads and beyond what waits for the encoder.
func TestNothingIsLostOnTheWay(t *testing.T) {
	l, path := create(t)
	const threads, each = 4, maxPending
	var all sync.WaitGroup
	for range threads {
		all.Go(func() {
			for range each / 16 {
				l.Faults(make16())
			}
		})
	}
	all.Wait()
	if err := l.Close(nil); err != nil {
		t.Fatal(err)
	}
	r, err := analyse.File(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Summary.Faults != threads*each || r.Damage != "" {
		t.Errorf("%d faults of %d, %s", r.Summary.Faults, threads*each, r.Damage)
	}
}

func make16() []faults.Event {
	events := make([]faults.Event, 16)
	for i := range events {
		events[i] = faults.Event{Kind: trace.KindFault, GPU: 1, Address: uint64(i) << 12, BeginNanos: faults.Clock()}
	}
	return events
}

// BenchmarkOperation is what recording adds to the reader of the hook's ring for each launch.
func BenchmarkOperation(b *testing.B) {
	l, err := Create(filepath.Join(b.TempDir(), "run.pstrace"), trace.Header{}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	e := trace.Event{Kind: trace.KindLaunch, Duration: -1, Accesses: make([]trace.Access, 4)}
	name := func(uint32) string { return "k" }
	b.ReportAllocs()
	for i := range uint64(b.N) {
		l.Operation(&e, i+1, name, l.OriginNanos()+int64(i)*1000)
		if i%64 == 0 {
			l.Progress(0, i)
		}
	}
	b.StopTimer()
	if err := l.Close(nil); err != nil {
		b.Fatal(err)
	}
}

func TestFaultsAndLosses(t *testing.T) {
	l, path := create(t)
	origin := l.OriginNanos()
	l.Faults([]faults.Event{{Kind: trace.KindFault, Address: 4096, BeginNanos: origin + 5, GPU: 1, Batch: 7}, {Kind: trace.KindCPUFault, Address: 8192, BeginNanos: origin + 6}})
	l.Lost(faults.Lost{Driver: 3})
	l.Lost(faults.Lost{Driver: 3})
	l.Lost(faults.Lost{Driver: 5, Reader: 1})
	l.Lacks("launches")
	if err := l.Close(nil); err != nil {
		t.Fatal(err)
	}
	if l.Stats().Events == 0 || l.Err() != nil {
		t.Errorf("%+v", l.Stats())
	}
	r, err := analyse.File(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Summary.Faults != 1 || r.Summary.CPUFaults != 1 || r.Summary.LostEvents != 6 || len(r.Limits) == 0 || !strings.Contains(strings.Join(r.Limits, "\n"), "could not see: launches") {
		t.Errorf("%+v %q", r.Summary, r.Limits)
	}
	if r.Header.ClockNanos != origin || r.Header.Started.IsZero() {
		t.Errorf("%+v", r.Header)
	}
}

func TestPathFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.b", "run.pstrace")
	if got := PathFor(path); got != path {
		t.Errorf("%s", got)
	}
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"run.pstrace", "run"} {
		p := filepath.Join(filepath.Dir(path), name)
		if err := os.WriteFile(p, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		got := PathFor(p)
		if got == p || filepath.Dir(got) != filepath.Dir(p) || filepath.Ext(name) != "" && filepath.Ext(got) != filepath.Ext(name) {
			t.Errorf("%s gives %s", p, got)
		}
	}
}

func TestProcessIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pstrace")
	err := Process(context.Background(), 1<<30, path, func(Progress) {})
	if err == nil || !strings.Contains(err.Error(), "cannot be listened to") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a file was made for nothing")
	}
	ended, stop := context.WithCancel(context.Background())
	stop()
	if sums, err := Listen(ended, os.Getpid(), func([]faults.Event, faults.Lost) {}, func(Progress) {}); sums != nil && err == nil {
		t.Errorf("%v", sums)
	}
}
