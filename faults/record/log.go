package record

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"sort"
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
	writer  *trace.Writer
	origin  int64
	options Options

	encoding sync.Mutex    // taken before mu
	spare    batch         // empty, to be filled next
	order    []place       // in which a batch is written
	ripe     time.Duration // with Sort: up to here nothing is missing, by whatever way it comes
	held     []trace.Event // later than that
	written  time.Duration // with Sort: the latest time so far

	mu      sync.Mutex
	err     error
	pending batch              // not encoded yet
	number  uint64             // of the last operation
	latest  [1 << 12]operation // by number
	last    time.Duration
	streams map[uint64]*stream
	recent  *stream     // that of the last operation
	lost    faults.Lost // written so far
	named   []bool      // functions that were announced

	clockAt time.Duration // of the last clock mark; the encoder's alone
	pause   chan bool
	stop    chan struct{}
	done    chan struct{}
}

// batch is a run of events, whose accesses lie in a memory of its own.
type batch struct {
	events   []trace.Event
	accesses []trace.Access
}

// place is where an event of a batch is. Events are large: their places are sorted.
type place struct {
	time  time.Duration
	index int
}

func byTime(a, b place) int { return cmp.Compare(a.time, b.time) }

// stream is what is known of a stream's operations.
type stream struct {
	handle uint64
	queued []operation // those not known to be done
}

type operation struct{ seq, number uint64 }

const (
	maxQueued  = 1 << 17 // operations that wait for progress on a stream
	maxPending = 1 << 16 // events that wait for the encoder; whoever brings more encodes them itself

	maxHeld      = 1 << 19          // events for which others are waited
	clocksDiffer = time.Millisecond // far more than the times of events and the log's clock do

	// Each turn of the encoder wakes threads, and Go's watchdog, which then looks every 20 us for a
	// while: the next is due when so many events are expected to wait.
	eventsATurn    = maxPending / 4
	longestTurn    = 200 * time.Millisecond
	shortestTurn   = 10 * time.Millisecond
	turnAtTheStart = 50 * time.Millisecond
)

// Options tune a Log. The zero value is right for one that listens from outside.
type Options struct {
	// Clock reads what faults.Clock does, in whatever way is the cheapest; nil is faults.Clock itself.
	Clock func() int64
	// Sort puts events in order of time, for those that come by several ways. What is later than the
	// last call of Gather that brought all is held back until the next: an earlier event may yet come.
	// One that comes later still has the time of the last that was written.
	Sort bool
	// Gather, if not nil, is called by the encoder before it looks what waits, and may add to it. It
	// says whether it has brought all that had happened when it was called.
	Gather func() bool
	// Translate, if not nil, is called by the encoder with each event, in order, and writes it, changed
	// or with others, or not. What can be looked up there need not be where others wait.
	Translate func(e *trace.Event, write func(*trace.Event))
}

// Create starts a recording. It fills in what the header says of clock and driver.
func Create(path string, h trace.Header, o Options) (*Log, error) {
	if o.Clock == nil {
		o.Clock = faults.Clock
	}
	h.Started, h.ClockNanos = time.Now(), o.Clock()
	h.Driver = faults.DriverVersion()
	w, err := trace.Create(path, h, trace.WriterOptions{})
	if err != nil {
		return nil, err
	}
	l := &Log{writer: w, origin: h.ClockNanos, options: o, streams: map[uint64]*stream{}, pause: make(chan bool), stop: make(chan struct{}), done: make(chan struct{})}
	l.noteClock(0)
	go l.encoder()
	return l, nil
}

// OriginNanos is the reading of faults.Clock at the recording's time 0.
func (l *Log) OriginNanos() int64 { return l.origin }

func (l *Log) now() time.Duration { return time.Duration(l.options.Clock() - l.origin) }

// put queues an event for the encoder. The caller holds the lock.
func (l *Log) put(e *trace.Event) {
	b := &l.pending
	b.events = append(b.events, *e)
	if n := len(e.Accesses); n > 0 {
		b.accesses = append(b.accesses, e.Accesses...)
		b.events[len(b.events)-1].Accesses = b.accesses[len(b.accesses)-n:]
	}
}

// unlock releases the lock, and sees to it that not too much waits.
func (l *Log) unlock() {
	full := len(l.pending.events) >= maxPending
	l.mu.Unlock()
	if full {
		l.encode()
	}
}

// encoder encodes what is queued, from time to time.
func (l *Log) encoder() {
	defer close(l.done)
	began := l.now()
	turn := time.NewTimer(turnAtTheStart)
	defer turn.Stop()
	for paused := false; ; {
		select {
		case <-l.stop:
			return
		case paused = <-l.pause: // once more around
		case <-turn.C:
		}
		if at := l.now() - clocksDiffer; l.options.Gather == nil || l.options.Gather() {
			l.ripen(at)
		}
		events := l.encode()
		at := l.now()
		wait := nextTurn(events, at-began)
		began = at
		if at-l.clockAt >= clockEvery {
			l.noteClock(at)
		}
		turn.Stop()
		if !paused {
			turn.Reset(wait)
		}
	}
}

// nextTurn is how long after a turn of the encoder with so many events of a time the next is due.
func nextTurn(events int, of time.Duration) time.Duration {
	return max(shortestTurn, min(longestTurn, of*eventsATurn/time.Duration(max(1, events))))
}

// Pause leaves the encoder asleep until Pause(false): nothing is gathered meanwhile, and
// what is recorded all the same is encoded when there is much of it, or afterwards.
func (l *Log) Pause(on bool) {
	select {
	case l.pause <- on:
	case <-l.done: // closed
	}
}

// ripen says that all events up to a time have been brought.
func (l *Log) ripen(at time.Duration) {
	l.encoding.Lock()
	defer l.encoding.Unlock()
	l.ripe = at
}

// encode writes what is queued and ripe, and says how many events were queued since the last time.
func (l *Log) encode() int {
	l.encoding.Lock()
	defer l.encoding.Unlock()
	l.mu.Lock()
	b := l.pending
	l.pending = l.spare
	l.mu.Unlock()
	n := len(b.events)
	l.order = l.order[:0]
	if l.options.Sort {
		b.events = l.ripeOf(b.events)
	} else {
		for i := range b.events {
			l.order = append(l.order, place{b.events[i].Time, i})
		}
	}
	failed := l.writer.AppendAll(func(write func(*trace.Event)) {
		for _, p := range l.order {
			e := &b.events[p.index]
			if l.options.Sort { // a thread that stood still comes late with an early time
				e.Time = max(e.Time, l.written)
				l.written = e.Time
			}
			if t := l.options.Translate; t != nil {
				t(e, write)
			} else {
				write(e)
			}
		}
	})
	if failed != nil {
		l.mu.Lock()
		if l.err == nil {
			l.err = failed
		}
		l.mu.Unlock()
	}
	clear(b.events) // of names
	l.spare = batch{b.events[:0], b.accesses[:0]}
	return n
}

// ripeOf puts what is ripe, of what was held back and what was queued, in order, and holds the rest
// back. The places are those in the events that it returns.
func (l *Log) ripeOf(queued []trace.Event) []trace.Event {
	n := len(queued)
	events := append(queued, l.held...)
	for i := range events {
		index := (n + i) % len(events) // what was held back came first
		l.order = append(l.order, place{events[index].Time, index})
	}
	if !slices.IsSortedFunc(l.order, byTime) { // it often is
		slices.SortStableFunc(l.order, byTime)
	}
	ripe := sort.Search(len(l.order), func(i int) bool { return l.order[i].time > l.ripe })
	if len(events)-ripe > maxHeld { // whatever is waited for, it does not come
		ripe = len(events)
	}
	clear(l.held) // of names
	l.held = l.held[:0]
	for _, p := range l.order[ripe:] {
		e := events[p.index]
		e.Accesses = slices.Clone(e.Accesses) // their memory is used again
		l.held = append(l.held, e)
	}
	l.order = l.order[:ripe]
	return events
}

// noteClock notes the wall clock.
func (l *Log) noteClock(at time.Duration) {
	l.clockAt = at
	l.mu.Lock()
	defer l.unlock()
	l.put(&trace.Event{Kind: trace.KindMark, Time: at, Name: "clock " + strconv.FormatInt(time.Now().UnixNano(), 10)})
}

// Add records an event, now.
func (l *Log) Add(e trace.Event) {
	l.mu.Lock()
	defer l.unlock()
	e.Time = l.now()
	l.put(&e)
}

// AddAll records what fill adds: events, each with its time, a reading of faults.Clock.
func (l *Log) AddAll(fill func(add func(e *trace.Event, at int64))) {
	l.mu.Lock()
	defer l.unlock()
	fill(func(e *trace.Event, at int64) {
		e.Time = max(0, time.Duration(at-l.origin))
		l.put(e)
	})
}

// Mark records a named moment.
func (l *Log) Mark(name string) { l.Add(trace.Event{Kind: trace.KindMark, Name: name}) }

// Lacks notes something that could not be seen.
func (l *Log) Lacks(what string) { l.Mark(analyse.MarkLacks + what) }

// Operation records a launch or copy, which the hook calls seq, and before it the
// function's name when it is the first of it. at is when the program launched it,
// a reading of faults.Clock, or 0 for now. Operations are given in the order of
// seq; a time before that of the operation before it is taken for that. e and its
// accesses are copied.
func (l *Log) Operation(e *trace.Event, seq uint64, name func(function uint32) string, at int64) {
	l.mu.Lock()
	defer l.unlock()
	if at == 0 {
		e.Time = l.now()
	} else {
		e.Time = time.Duration(at - l.origin)
	}
	e.Time = max(e.Time, l.last)
	l.last = e.Time
	if e.Kind == trace.KindLaunch && l.isNew(e.Function) {
		l.put(&trace.Event{Kind: trace.KindFunction, Time: e.Time, Function: e.Function, Name: name(e.Function)})
	}
	l.number++
	s := l.recent
	if s == nil || s.handle != e.Stream {
		if s = l.streams[e.Stream]; s == nil {
			s = &stream{handle: e.Stream}
			l.streams[e.Stream] = s
		}
		l.recent = s
	}
	s.queued = append(s.queued, operation{seq, l.number})
	l.latest[l.number%uint64(len(l.latest))] = operation{seq, l.number}
	if len(s.queued) > maxQueued {
		s.queued = append(s.queued[:0], s.queued[maxQueued/2:]...)
	}
	l.put(e)
}

// isNew says whether a function was not announced yet, and takes it for announced. Who
// records numbers functions from 0 on, but for 1<<32 - 1: one that is not known.
func (l *Log) isNew(function uint32) bool {
	i := int(function + 1)
	if i < len(l.named) && l.named[i] {
		return false
	}
	l.named = append(l.named, make([]bool, max(0, i+1-len(l.named)))...)
	l.named[i] = true
	return true
}

// Progress says that a stream has finished everything up to the operation that the hook calls seq.
func (l *Log) Progress(handle, seq uint64) {
	l.mu.Lock()
	defer l.unlock()
	s := l.streams[handle]
	if s == nil {
		return
	}
	n := 0
	for n < len(s.queued) && s.queued[n].seq <= seq {
		n++
	}
	if n == 0 {
		return
	}
	done := s.queued[n-1].number
	s.queued = append(s.queued[:0], s.queued[n:]...)
	l.put(&trace.Event{Kind: trace.KindProgress, Time: l.now(), Stream: handle, Alloc: done})
}

// Timing says how long the operation that the hook calls seq took on the device. One of long ago is left out.
func (l *Log) Timing(seq uint64, took time.Duration) {
	l.mu.Lock()
	defer l.unlock()
	n := uint64(len(l.latest))
	back := sort.Search(int(min(l.number, n)), func(i int) bool { return l.latest[(l.number-uint64(i))%n].seq <= seq })
	if x := l.latest[(l.number-uint64(back))%n]; x.seq == seq && x.number > 0 {
		l.put(&trace.Event{Kind: trace.KindProgress, Time: l.now(), Alloc: x.number, Duration: took})
	}
}

// Faults records what a source has reported.
func (l *Log) Faults(events []faults.Event) {
	if len(events) == 0 {
		return
	}
	l.mu.Lock()
	defer l.unlock()
	for i := range events {
		e := events[i].Trace(l.origin)
		l.put(&e)
	}
}

// Lost notes how many events a source has lost in all.
func (l *Log) Lost(lost faults.Lost) {
	l.mu.Lock()
	defer l.unlock()
	if lost == l.lost {
		return
	}
	at := l.now()
	if lost.Driver > l.lost.Driver {
		l.put(&trace.Event{Kind: trace.KindLost, Time: at, Bytes: int64(lost.Driver - l.lost.Driver), Name: "events: the driver found the queue full"})
	}
	if lost.Reader > l.lost.Reader {
		l.put(&trace.Event{Kind: trace.KindLost, Time: at, Bytes: int64(lost.Reader - l.lost.Reader), Name: "events: they made no sense"})
	}
	l.lost = lost
}

// Err is the first error of writing.
func (l *Log) Err() error {
	if err := l.writer.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Stats are the counters of the file.
func (l *Log) Stats() trace.WriterStats { return l.writer.Stats() }

// Close ends the recording; driver are the driver's own sums over its time, nil when unknown.
func (l *Log) Close(driver *analyse.Counters) error {
	close(l.stop)
	<-l.done
	if driver != nil {
		l.Mark(driver.Mark())
	}
	l.noteClock(l.now())
	l.ripen(math.MaxInt64)
	l.encode()
	err := l.Err()
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
