package export

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-gpu/penstock/faults/symbol"
	"github.com/penstock-gpu/penstock/trace"
)

// Tracks of the Chrome export, as thread numbers of one process.
const (
	trackFaults = 1 + iota
	trackFaultedIn
	trackFetched
	trackOut
	trackEvicted
	trackMarks
	trackStreams // and above: one for each stream
)

var trackNames = map[int]string{trackFaults: "GPU faults", trackFaultedIn: "migrated HtoD by faults", trackFetched: "prefetched HtoD",
	trackOut: "migrated DtoH", trackEvicted: "evicted DtoH by the driver", trackMarks: "marks"}

const (
	// mergeGap joins migrations on a track that are no farther apart.
	mergeGap   = 5 * time.Microsecond
	maxStreams = 1000
	maxQueued  = 1 << 12 // more than the driver queues
	maxNames   = 1 << 16
	// processNumber keeps clear of the process numbers of torch.profiler.
	processNumber = 999_000_001
	counterWidth  = 5 * time.Millisecond
)

// Chrome writes Chrome's trace JSON. Times are microseconds since
// baseTimeNanoseconds (since 1970), as torch.profiler has it: the day on which the
// recording began. Since 1970 they would have more digits than readers, who
// often take them for floating-point numbers, keep.
func Chrome(w io.Writer, in io.Reader) error {
	r, err := trace.NewReader(in)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 1<<18)
	c := &chrome{out: out}
	if began := r.Header().Started; !began.IsZero() {
		c.base = began.Truncate(24 * time.Hour).UnixNano()
	}
	if _, err := out.WriteString(`{"displayTimeUnit":"ms","baseTimeNanoseconds":` + strconv.FormatInt(c.base, 10) + `,"traceEvents":[`); err != nil {
		return err
	}
	return c.run(r, func() error {
		if _, err := out.WriteString("\n]}\n"); err != nil {
			return err
		}
		return out.Flush()
	})
}

// chrome gathers events into slices.
type chrome struct {
	out     *bufio.Writer
	base    int64
	started bool
	clock   wallClock
	failed  error

	fault   slice
	moves   [trackMarks]slice
	names   map[uint32]kernelName
	streams map[uint64]*chromeStream
	number  uint64
	counted time.Duration
	ends    map[int]micros // by track, of the last slice
	sums    [3]int64       // faults, bytes in, bytes out of the counters' current stretch
	last    time.Duration
}

type slice struct {
	open       bool
	begin, end time.Duration
	n, bytes   int64
	batch      uint32
	address    uint64
}

type chromeStream struct {
	track  int
	handle uint64
	queued []chromeOp
	done   time.Duration // when it was last seen to have finished something
}

type chromeOp struct {
	number   uint64
	launched time.Duration
	name     kernelName
}

// kernelName is a name for people, and as the driver has it where that is another.
type kernelName struct{ readable, symbol string }

func nameOf(symbolName string) kernelName {
	k := kernelName{readable: clipped(symbol.Readable(symbolName))}
	if k.readable != symbolName {
		k.symbol = clipped(symbolName)
	}
	return k
}

type chromeEvent struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"`
	TS    micros         `json:"ts"`
	Dur   *micros        `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Scope string         `json:"s,omitempty"`
	Args  map[string]any `json:"args,omitempty"`
}

// micros prints nanoseconds as microseconds, exactly.
type micros int64

func (m micros) MarshalJSON() ([]byte, error) {
	sign, n := "", int64(m)
	if n < 0 {
		sign, n = "-", -n
	}
	return fmt.Appendf(nil, "%s%d.%03d", sign, n/1000, n%1000), nil
}

func (c *chrome) run(r *trace.Reader, finish func() error) error {
	h := r.Header()
	c.clock.start(h)
	c.names, c.streams, c.ends = map[uint32]kernelName{}, map[uint64]*chromeStream{}, map[int]micros{}
	c.emit(chromeEvent{Name: "process_name", Phase: "M", PID: processNumber, Args: map[string]any{"name": "Penstock: " + clipped(h.Command)}})
	for t := trackFaults; t < trackStreams; t++ {
		c.track(t, trackNames[t])
	}
	return events(r, func(e *trace.Event) error {
		c.add(e)
		return c.failed
	}, func() error {
		c.closeFault()
		for t := range c.moves {
			c.closeMove(t)
		}
		c.count(c.last)
		if c.failed != nil {
			return c.failed
		}
		return finish()
	})
}

func clipped(s string) string {
	const most = 400
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

func (c *chrome) track(id int, name string) {
	c.emit(chromeEvent{Name: "thread_name", Phase: "M", PID: processNumber, TID: id, Args: map[string]any{"name": name}})
	c.emit(chromeEvent{Name: "thread_sort_index", Phase: "M", PID: processNumber, TID: id, Args: map[string]any{"sort_index": id}})
}

func (c *chrome) emit(e chromeEvent) {
	if c.failed != nil {
		return
	}
	text, err := json.Marshal(e)
	if err != nil {
		c.failed = err
		return
	}
	sep := ",\n"
	if !c.started {
		sep, c.started = "\n", true
	}
	if _, err = c.out.WriteString(sep); err == nil {
		_, err = c.out.Write(text)
	}
	c.failed = err
}

func (c *chrome) at(t time.Duration) micros { return micros(c.clock.unix(t) - c.base) }

// slice is a slice of a track. Readers drop slices of a track that overlap by as
// little as a nanosecond, which rounding and slewing clocks bring about: a slice
// begins where the one before it ends.
func (c *chrome) slice(track int, name string, begin, end time.Duration, args map[string]any) {
	from := c.at(begin)
	if before := c.ends[track] - from; before > 0 && before < micros(time.Millisecond) { // more is a clock that was set
		from += before
	}
	took := max(c.at(end)-from, 0)
	c.ends[track] = from + took
	c.emit(chromeEvent{Name: name, Phase: "X", TS: from, Dur: &took, PID: processNumber, TID: track, Args: args})
}

func (c *chrome) add(e *trace.Event) {
	c.last = max(c.last, e.Time)
	switch e.Kind {
	case trace.KindFault:
		c.counters(e.Time)
		c.sums[0]++
		if c.fault.open && c.fault.batch != e.Batch {
			c.closeFault()
		}
		f := &c.fault
		if !f.open {
			*f = slice{open: true, begin: e.Time, end: e.Time, batch: e.Batch, address: e.Address}
		}
		f.begin, f.end = min(f.begin, e.Time), max(f.end, e.Time)
		f.n++
	case trace.KindMigration:
		c.move(e)
	case trace.KindFunction:
		if len(c.names) < maxNames {
			c.names[e.Function] = nameOf(e.Name)
		}
	case trace.KindLaunch:
		c.operation(e, c.names[e.Function])
	case trace.KindCopy:
		c.operation(e, kernelName{readable: e.Copy.String()})
	case trace.KindProgress:
		c.progress(e)
	case trace.KindMark:
		if rest, ok := strings.CutPrefix(e.Name, "clock "); ok {
			c.clock.pair(e.Time, rest)
			return
		}
		c.emit(chromeEvent{Name: clipped(e.Name), Phase: "i", Scope: "p", TS: c.at(e.Time), PID: processNumber, TID: trackMarks})
	case trace.KindLost:
		c.emit(chromeEvent{Name: "lost events", Phase: "i", Scope: "p", TS: c.at(e.Time), PID: processNumber, TID: trackMarks, Args: map[string]any{"events": e.Bytes}})
	}
}

func (c *chrome) closeFault() {
	if f := &c.fault; f.open {
		c.slice(trackFaults, "fault batch", f.begin, f.end+time.Microsecond, map[string]any{"batch": f.batch, "faults": f.n, "first_address": fmt.Sprintf("%#x", f.address)})
		*f = slice{}
	}
}

func (c *chrome) move(e *trace.Event) {
	c.counters(e.Time)
	track := trackOut
	switch in := e.To == trace.SideDevice; {
	case in && e.Cause == trace.CauseUser:
		track = trackFetched
	case in:
		track = trackFaultedIn
	case e.Cause == trace.CauseEviction:
		track = trackEvicted
	}
	if e.To == trace.SideDevice {
		c.sums[1] += e.Bytes
	} else {
		c.sums[2] += e.Bytes
	}
	s := &c.moves[track]
	end := e.Time + max(0, e.Duration)
	if s.open && (e.Time > s.end+mergeGap || end < s.begin) {
		c.closeMove(track)
	}
	if !s.open {
		*s = slice{open: true, begin: e.Time, end: end, address: e.Address}
	}
	s.begin, s.end = min(s.begin, e.Time), max(s.end, end)
	s.n++
	s.bytes += e.Bytes
}

func (c *chrome) closeMove(track int) {
	if s := &c.moves[track]; s.open {
		c.slice(track, strconv.FormatInt(s.bytes>>10, 10)+" KiB", s.begin, s.end, map[string]any{"bytes": s.bytes, "migrations": s.n, "first_address": fmt.Sprintf("%#x", s.address)})
		*s = slice{}
	}
}

// counters closes a stretch of the counter tracks when its time is over.
func (c *chrome) counters(t time.Duration) {
	if t-c.counted >= counterWidth {
		c.count(t)
	}
}

func (c *chrome) count(t time.Duration) {
	for i, name := range []string{"GPU faults", "HtoD bytes", "DtoH bytes"} {
		c.emit(chromeEvent{Name: name, Phase: "C", TS: c.at(c.counted), PID: processNumber, Args: map[string]any{"in 5 ms": c.sums[i]}})
		if t-c.counted > 2*counterWidth {
			c.emit(chromeEvent{Name: name, Phase: "C", TS: c.at(c.counted + counterWidth), PID: processNumber, Args: map[string]any{"in 5 ms": 0}})
		}
	}
	c.counted, c.sums = t, [3]int64{}
}

func (c *chrome) operation(e *trace.Event, name kernelName) {
	c.number++
	s := c.streams[e.Stream]
	if s == nil {
		if len(c.streams) >= maxStreams {
			return
		}
		s = &chromeStream{track: trackStreams + len(c.streams), handle: e.Stream, done: e.Time}
		c.streams[e.Stream] = s
		c.track(s.track, fmt.Sprintf("stream %#x", e.Stream))
	}
	if len(s.queued) < maxQueued {
		s.queued = append(s.queued, chromeOp{c.number, e.Time, name})
	}
}

// progress makes slices of what has finished since the stream was last looked at.
func (c *chrome) progress(e *trace.Event) {
	s := c.streams[e.Stream]
	if s == nil {
		return
	}
	n := 0
	for n < len(s.queued) && s.queued[n].number <= e.Alloc {
		n++
	}
	if n == 0 {
		return
	}
	begin := max(s.done, s.queued[0].launched)
	step := max(e.Time-begin, 0) / time.Duration(n)
	for i, o := range s.queued[:n] {
		at := begin + time.Duration(i)*step
		args := map[string]any{}
		if n > 1 {
			args["approximate"] = true
		}
		if o.name.symbol != "" {
			args["symbol"] = o.name.symbol
		}
		name := o.name.readable
		if name == "" {
			name = "(unnamed)"
		}
		c.slice(s.track, name, at, at+step, args)
	}
	s.queued = append(s.queued[:0], s.queued[n:]...)
	s.done = e.Time
}

// wallClock turns a recording's time into nanoseconds since 1970, by the pairs of
// both that were recorded.
type wallClock struct {
	known   bool
	at      time.Duration // of the last pair
	then    int64
	perNano float64 // wall nanoseconds a nanosecond, from the last two pairs
}

func (w *wallClock) start(h trace.Header) {
	w.perNano = 1
	if !h.Started.IsZero() {
		w.known, w.then = true, h.Started.UnixNano()
	}
}

func (w *wallClock) pair(at time.Duration, text string) {
	unix, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return
	}
	if w.known && at-w.at > time.Second {
		// More than a thousandth off is no slewing: somebody set the clock.
		if rate := float64(unix-w.then) / float64(at-w.at); rate > 0.999 && rate < 1.001 {
			w.perNano = rate
		}
	}
	w.known, w.at, w.then = true, at, unix
}

func (w *wallClock) unix(t time.Duration) int64 {
	d := t - w.at
	return w.then + int64(d) + int64(float64(d)*(w.perNano-1))
}
