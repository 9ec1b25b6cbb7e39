package record

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/penstock-gpu/penstock/faults"
	"github.com/penstock-gpu/penstock/faults/analyse"
	"github.com/penstock-gpu/penstock/trace"
)

// clockEvery is how often the wall clock is noted: often enough to follow its slewing.
const clockEvery = 10 * time.Second

// Log is a recording under way.
type Log struct {
	writer *trace.Writer
	origin int64

	mu       sync.Mutex
	err      error
	number   uint64                 // of the last operation written
	queued   map[uint64][]operation // by stream, those not known to be done
	reported map[uint64]uint64      // by stream, the last progress written
	lost     faults.Lost            // written so far
	clockAt  time.Duration          // of the last clock mark
	named    map[uint32]bool        // functions that were announced
}

type operation struct{ seq, number uint64 }

// maxQueued bounds the operations that wait for progress on a stream.
const maxQueued = 1 << 17

// Create starts a recording. It fills in what the header says of clock and driver.
func Create(path string, h trace.Header) (*Log, error) {
	h.Started, h.ClockNanos = time.Now(), faults.Clock()
	h.Driver = faults.DriverVersion()
	w, err := trace.Create(path, h, trace.WriterOptions{})
	if err != nil {
		return nil, err
	}
	l := &Log{writer: w, origin: h.ClockNanos, queued: map[uint64][]operation{}, reported: map[uint64]uint64{}, named: map[uint32]bool{}}
	l.mu.Lock()
	l.clock(0)
	l.mu.Unlock()
	return l, nil
}

// OriginNanos is the reading of faults.Clock at the recording's time 0.
func (l *Log) OriginNanos() int64 { return l.origin }

func (l *Log) now() time.Duration { return time.Duration(faults.Clock() - l.origin) }

// put writes an event. The caller holds the lock.
func (l *Log) put(e *trace.Event) {
	if err := l.writer.Append(e); err != nil && l.err == nil {
		l.err = err
	}
}

// clock notes the wall clock.
func (l *Log) clock(at time.Duration) {
	l.clockAt = at
	l.put(&trace.Event{Kind: trace.KindMark, Time: at, Name: "clock " + strconv.FormatInt(time.Now().UnixNano(), 10)})
}

// Add writes an event, now.
func (l *Log) Add(e trace.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Time = l.now()
	if e.Time-l.clockAt >= clockEvery {
		l.clock(e.Time)
	}
	l.put(&e)
}

// Mark writes a named moment.
func (l *Log) Mark(name string) { l.Add(trace.Event{Kind: trace.KindMark, Name: name}) }

// Lacks notes something that could not be seen.
func (l *Log) Lacks(what string) { l.Mark(analyse.MarkLacks + what) }

// Operation writes a launch or copy, which the hook calls seq, and before it the
// function's name when it is the first of it. at is when it was launched, a
// reading of faults.Clock, or 0 for now.
func (l *Log) Operation(e trace.Event, seq uint64, function func() string, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Time = l.now()
	if at != 0 {
		e.Time = min(e.Time, max(0, time.Duration(at-l.origin)))
	}
	if e.Kind == trace.KindLaunch && !l.named[e.Function] {
		l.named[e.Function] = true
		l.put(&trace.Event{Kind: trace.KindFunction, Time: e.Time, Function: e.Function, Name: function()})
	}
	l.number++
	q := append(l.queued[e.Stream], operation{seq, l.number})
	if len(q) > maxQueued {
		q = append(q[:0], q[maxQueued/2:]...)
	}
	l.queued[e.Stream] = q
	l.put(&e)
}

// Progress says that a stream has finished everything up to the operation that the hook calls seq.
func (l *Log) Progress(stream, seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queued[stream]
	n, done := 0, l.reported[stream]
	for n < len(q) && q[n].seq <= seq {
		done = q[n].number
		n++
	}
	if n == 0 {
		return
	}
	l.queued[stream] = append(q[:0], q[n:]...)
	l.reported[stream] = done
	l.put(&trace.Event{Kind: trace.KindProgress, Time: l.now(), Stream: stream, Alloc: done})
}

// Faults writes what a source has reported.
func (l *Log) Faults(events []faults.Event) {
	if len(events) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range events {
		e := events[i].Trace(l.origin)
		l.put(&e)
	}
}

// Lost notes how many events a source has lost in all.
func (l *Log) Lost(lost faults.Lost) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.now()
	if n := lost.Driver - l.lost.Driver; n > 0 && lost.Driver > l.lost.Driver {
		l.put(&trace.Event{Kind: trace.KindLost, Time: at, Bytes: int64(n), Name: "events: the driver found the queue full"})
	}
	if n := lost.Reader - l.lost.Reader; n > 0 && lost.Reader > l.lost.Reader {
		l.put(&trace.Event{Kind: trace.KindLost, Time: at, Bytes: int64(n), Name: "events: they made no sense"})
	}
	l.lost = lost
}

// Err is the first write error.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Stats are the counters of the file.
func (l *Log) Stats() trace.WriterStats { return l.writer.Stats() }

// Close ends the recording; driver are the driver's own sums over its time, nil when unknown.
func (l *Log) Close(driver *analyse.Counters) error {
	l.mu.Lock()
	at := l.now()
	if driver != nil {
		l.put(&trace.Event{Kind: trace.KindMark, Time: at, Name: driver.Mark()})
	}
	l.clock(at)
	err := l.err
	l.mu.Unlock()
	if closeErr := l.writer.Close(); err == nil {
		err = closeErr
	}
	return err
}

// PathFor is the file that a process of a job records to: the one asked for, or,
// when another process of the job has that, one with the process id in its name.
func PathFor(path string) string {
	if _, err := os.Stat(path); err != nil {
		return path
	}
	for i := len(path) - 1; i >= 0 && path[i] != '/'; i-- {
		if path[i] == '.' {
			return fmt.Sprintf("%s.%d%s", path[:i], os.Getpid(), path[i:])
		}
	}
	return fmt.Sprintf("%s.%d", path, os.Getpid())
}
