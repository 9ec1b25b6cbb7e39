package trace_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/internal/testlogs"
	"github.com/penstock-gpu/penstock/trace"
)

const us = time.Microsecond

// operationsOf are the launches and copies of a trace.
func operationsOf(t *trace.Trace) (ops []*trace.Event) {
	for i := range t.Events {
		if e := &t.Events[i]; e.Kind == trace.KindLaunch || e.Kind == trace.KindCopy {
			ops = append(ops, e)
		}
	}
	return ops
}

func launchAt(at time.Duration, stream uint64, ids ...uint64) trace.Event {
	e := trace.Event{Kind: trace.KindLaunch, Time: at, Stream: stream, Duration: -1}
	for _, id := range ids {
		e.Accesses = append(e.Accesses, trace.Access{Alloc: id})
	}
	return e
}

func progressAt(at time.Duration, stream, number uint64) trace.Event {
	return trace.Event{Kind: trace.KindProgress, Time: at, Stream: stream, Alloc: number}
}

func TestEstimateDurations(t *testing.T) {
	arrives := func(at time.Duration, cause trace.Cause) trace.Event {
		return trace.Event{Kind: trace.KindMigration, Time: at, Address: 0x1000, Bytes: 64, To: trace.SideDevice, Cause: cause}
	}
	weight := trace.Event{Kind: trace.KindAlloc, Alloc: 1, Address: 0x1000, Bytes: 64}
	for _, c := range []struct {
		name    string
		events  []trace.Event
		want    []time.Duration
		unknown int
	}{
		{"alike within a span", []trace.Event{launchAt(0, 0), launchAt(1, 0), launchAt(2, 0), launchAt(3, 0), progressAt(100*us, 0, 2), progressAt(400*us, 0, 4)},
			[]time.Duration{50 * us, 50 * us, 150 * us, 150 * us}, 0},
		{"idle until it is launched", []trace.Event{launchAt(0, 0), progressAt(10*us, 0, 1), launchAt(90*us, 0), progressAt(100*us, 0, 2)},
			[]time.Duration{10 * us, 10 * us}, 0},
		{"idle within a span", []trace.Event{launchAt(0, 0), launchAt(90*us, 0), progressAt(100*us, 0, 2)},
			[]time.Duration{10 * us, 10 * us}, 0},
		{"waits for its memory", []trace.Event{weight, launchAt(0, 0, 1), arrives(70*us, trace.CauseUser), progressAt(100*us, 0, 1)},
			[]time.Duration{30 * us}, 0},
		{"faults are its own", []trace.Event{weight, launchAt(0, 0, 1), arrives(70*us, trace.CauseCoherence), progressAt(100*us, 0, 1)},
			[]time.Duration{100 * us}, 0},
		{"another's memory", []trace.Event{weight, launchAt(0, 0), arrives(70*us, trace.CauseUser), progressAt(100*us, 0, 1)},
			[]time.Duration{100 * us}, 0},
		{"two streams at once", []trace.Event{launchAt(0, 1), launchAt(0, 2), progressAt(100*us, 1, 1), progressAt(150*us, 2, 2)},
			[]time.Duration{50 * us, 100 * us}, 0},
		{"one never ends", []trace.Event{launchAt(0, 0), launchAt(0, 0), launchAt(0, 7), progressAt(100*us, 0, 1)},
			[]time.Duration{100 * us, -1, -1}, 2},
		{"back in time", []trace.Event{launchAt(50*us, 0), launchAt(50*us, 0), progressAt(100*us, 0, 1), progressAt(20*us, 0, 2), launchAt(0, 0), progressAt(130*us, 0, 3)},
			[]time.Duration{50 * us, 0, 30 * us}, 0},
		{"an unknown stream", []trace.Event{launchAt(0, 0), progressAt(5*us, 3, 1), progressAt(9*us, 0, 1)},
			[]time.Duration{9 * us}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := &trace.Trace{Events: c.events}
			if tr.Durations() != trace.DurationsNone || !tr.EstimateDurations() || tr.Durations() != trace.DurationsEstimated {
				t.Fatalf("durations %s", tr.Durations())
			}
			var got []time.Duration
			for _, e := range operationsOf(tr) {
				got = append(got, e.Duration)
			}
			if !slices.Equal(got, c.want) || tr.Estimate.Unknown != c.unknown || tr.Estimate.Operations != len(c.want) {
				t.Errorf("%v, want %v; %+v", got, c.want, *tr.Estimate)
			}
		})
	}
}

// TestTimedDurations: operations of which some were timed have the durations of these, however long they waited: those that are
// alike, by function and sizes of what they touch.
func TestTimedDurations(t *testing.T) {
	tr := &trace.Trace{}
	add := func(e trace.Event) { tr.Events = append(tr.Events, e) }
	for i, bytes := range []int64{64, 64, 128} {
		add(trace.Event{Kind: trace.KindAlloc, Alloc: uint64(i + 1), Address: uint64(0x1000 * (i + 1)), Bytes: bytes})
	}
	at := time.Duration(0)
	number := uint64(0)
	for i := range 40 {
		number++
		add(launchAt(at, 0, uint64(i%3+1)))
		at += 900 * us // for most of which it waits
		add(progressAt(at, 0, number))
		if i%4 == 0 {
			took := 10 * us
			if i%3 == 2 {
				took = 20 * us
			}
			if i == 12 {
				took *= 50 // something else ran beside it
			}
			e := progressAt(at, 0, number)
			e.Duration = took
			add(e)
		}
	}
	add(trace.Event{Kind: trace.KindProgress, Time: at, Alloc: 999, Duration: us}) // of none
	if !tr.EstimateDurations() {
		t.Fatal("no durations")
	}
	operation := 0
	for _, e := range tr.Events {
		if e.Kind != trace.KindLaunch {
			continue
		}
		want := 10 * us
		if operation%3 == 2 {
			want = 20 * us
		}
		if (e.Duration - want).Abs() > time.Nanosecond {
			t.Errorf("launch %d takes %s, want %s", operation, e.Duration, want)
		}
		operation++
	}
	if e := tr.Estimate; e.Timed != 10 || e.TimedShare != 1 || e.TimedError > 1e-6 || e.Unknown != 0 {
		t.Errorf("%+v", e)
	}
}

func TestEstimateDurationsLeavesAlone(t *testing.T) {
	timed := launchAt(0, 0)
	timed.Duration = 5
	tr := &trace.Trace{Events: []trace.Event{timed, launchAt(0, 0), progressAt(9*us, 0, 2)}}
	if tr.EstimateDurations() || tr.Durations() != trace.DurationsRecorded || tr.Events[1].Duration != -1 {
		t.Errorf("%s, %+v: durations that were measured are not estimated", tr.Durations(), tr.Events)
	}
	tr = &trace.Trace{Events: []trace.Event{launchAt(0, 0)}}
	if tr.EstimateDurations() || tr.Durations() != trace.DurationsNone {
		t.Errorf("%s from nothing", tr.Durations())
	}
}

// TestEstimatedSpans: a recording that is made up of known durations gives durations whose
// sums, over any long stretch, are the time that the GPU was at work.
func TestEstimatedSpans(t *testing.T) {
	for seed := range uint64(short.Of(60, 15)) {
		r := rand.New(rand.NewPCG(seed, 1))
		machine := testlogs.Machine{LaunchCost: time.Duration(1+r.IntN(20)) * us, Queue: 64 + r.IntN(500), ProgressEvery: 1 + r.IntN(24), LookEvery: time.Duration(1+r.IntN(40)) * us}
		streams := 1 + r.IntN(3)
		longest := 1 + r.IntN(100)
		log := &trace.Trace{}
		for range 5000 {
			e := trace.Event{Kind: trace.KindLaunch, Stream: uint64(r.IntN(streams)), Duration: time.Duration(r.IntN(longest)+1) * us}
			if r.IntN(500) == 0 {
				e.Kind, e.Copy = trace.KindCopy, trace.CopyDeviceToHost // the CPU waits: the GPU idles
			}
			log.Events = append(log.Events, e)
		}
		recording, runs := testlogs.Record(log, machine)
		if !recording.EstimateDurations() {
			t.Fatal("no estimate")
		}
		ops := operationsOf(recording)
		check := func(a, b int) {
			var sum time.Duration
			for _, e := range ops[a:b] {
				if e.Duration < -1 {
					t.Fatalf("seed %d: a duration of %s", seed, e.Duration)
				}
				sum += max(0, e.Duration)
			}
			busy := atWork(runs, a, b)
			// The operations at either end share a span with others, and a look is late.
			slack := 2*time.Duration(machine.ProgressEvery*streams)*max(machine.LaunchCost, time.Duration(longest)*us) + 2*machine.LookEvery
			// While the GPU waits for the CPU, the end of each span is seen late.
			idle := runs[b-1][1] - runs[a][0] - busy
			if sum < busy-slack || sum > busy+slack+max(0, idle) {
				t.Errorf("seed %d, %+v, %d streams: operations %d to %d: %s, want %s (slack %s, idle %s)", seed, machine, streams, a, b, sum, busy, slack, idle)
			}
		}
		check(0, len(ops))
		for range 20 { // with several streams, others run within a stretch
			if a := r.IntN(len(ops) - 1000); streams == 1 {
				check(a, a+500+r.IntN(400))
			}
		}
		// Nothing is counted twice.
		var all time.Duration
		for _, e := range ops {
			all += max(0, e.Duration)
		}
		if last := recording.Events[len(recording.Events)-1].Time; all > last {
			t.Errorf("seed %d: %s within %s", seed, all, last)
		}
	}
}

// atWork is for how long any of the operations ran; on each stream they are in order.
func atWork(runs [][2]time.Duration, a, b int) (busy time.Duration) {
	part := slices.Clone(runs[a:b])
	slices.SortFunc(part, func(x, y [2]time.Duration) int { return int(x[0] - y[0]) })
	var until time.Duration
	for _, r := range part {
		busy += max(0, r[1]-max(until, r[0]))
		until = max(until, r[1])
	}
	return busy
}

// FuzzEstimateDurations: whatever a recording says, no duration is negative, and all
// together are no longer than it.
func FuzzEstimateDurations(f *testing.F) {
	f.Add([]byte{4, 0, 1, 9, 0, 2, 4, 1, 3, 7, 1, 9, 9, 1, 200})
	f.Add([]byte{9, 0, 255, 4, 3, 0, 9, 3, 128, 9, 3, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		tr := &trace.Trace{}
		var number uint64
		latest := time.Duration(0)
		for r := bytes.NewReader(data); r.Len() >= 3; {
			kind, _ := r.ReadByte()
			stream, _ := r.ReadByte()
			at, _ := r.ReadByte()
			e := trace.Event{Kind: trace.Kind(kind % 16), Stream: uint64(stream % 8), Time: time.Duration(int8(at)) << (stream >> 3), Duration: -1,
				Alloc: number - uint64(stream>>4) + 2, Address: uint64(at) << 4, Bytes: int64(stream), To: trace.Side(at % 2), Cause: trace.Cause(stream % 5), GPU: at % 3,
				Accesses: []trace.Access{{Alloc: uint64(at % 4)}}}
			switch {
			case at == 77:
				e.Time, e.Alloc = math.MaxInt64, math.MaxUint64
			case at == 78:
				e.Time, e.Duration = math.MinInt64, 0
			}
			if e.Kind == trace.KindLaunch || e.Kind == trace.KindCopy {
				number++
			}
			latest = max(latest, e.Time)
			tr.Events = append(tr.Events, e)
		}
		if !tr.EstimateDurations() {
			return
		}
		var sum float64
		for _, e := range operationsOf(tr) {
			if e.Duration < -1 {
				t.Fatalf("a duration of %s", e.Duration)
			}
			sum += max(0, float64(e.Duration))
		}
		if sum > float64(latest)*(1+1e-9)+1 {
			t.Fatalf("%g ns in a recording of %d", sum, latest)
		}
	})
}
