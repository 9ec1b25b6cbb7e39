package testlogs

import (
	"cmp"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/trace"
)

// Machine is what a job runs on whose recording is made up.
type Machine struct {
	LaunchCost    time.Duration // of the CPU, for each operation
	Queue         int           // operations that may be unfinished
	ProgressEvery int           // operations of a stream from one sign of progress to the next
	LookEvery     time.Duration // how often somebody looks
}

// H200 is like the machines that the launch logs are from, with Penstock's own recorder.
var H200 = Machine{LaunchCost: 4 * time.Microsecond, Queue: 512, ProgressEvery: 16, LookEvery: 50 * time.Microsecond}

// Record makes up what Penstock would have recorded of a job with everything in memory: times of calls and signs of
// progress, no durations and no marks. It also says when each launch and copy ran.
func Record(t *trace.Trace, m Machine) (recording *trace.Trace, runs [][2]time.Duration) {
	recording = &trace.Trace{Name: t.Name}
	var cpu, last time.Duration
	type stream struct {
		free  time.Duration
		count int
		marks []trace.Event
	}
	streams := map[uint64]*stream{}
	address := uint64(1 << 40)
	var progress []trace.Event
	for _, e := range t.Events {
		e.Time = cpu
		switch e.Kind {
		case trace.KindMark:
			continue
		case trace.KindAlloc:
			e.Address = address
			address += uint64(e.Bytes)
		case trace.KindLaunch, trace.KindCopy:
			if n := len(runs) - m.Queue; n >= 0 {
				cpu = max(cpu, runs[n][1])
			}
			e.Time = cpu
			cpu += m.LaunchCost
			s := streams[e.Stream]
			if s == nil {
				s = &stream{}
				streams[e.Stream] = s
			}
			began := max(e.Time, s.free)
			s.free = began + max(0, e.Duration)
			last = max(last, s.free)
			runs = append(runs, [2]time.Duration{began, s.free})
			if s.count++; s.count%m.ProgressEvery == 0 {
				seen := trace.Event{Kind: trace.KindProgress, Time: s.free/m.LookEvery*m.LookEvery + m.LookEvery, Stream: e.Stream, Alloc: uint64(len(runs))}
				if n := len(s.marks); n > 0 && s.marks[n-1].Time == seen.Time {
					s.marks[n-1] = seen // one look, and one word
				} else {
					s.marks = append(s.marks, seen)
				}
			}
			if e.Kind == trace.KindCopy && e.Copy == trace.CopyDeviceToHost {
				cpu = max(cpu, last)
			}
			e.Duration = -1
		}
		recording.Events = append(recording.Events, e)
	}
	for _, s := range streams {
		progress = append(progress, s.marks...)
	}
	recording.Events = append(recording.Events, progress...)
	slices.SortStableFunc(recording.Events, func(a, b trace.Event) int { return cmp.Compare(a.Time, b.Time) })
	return recording, runs
}
