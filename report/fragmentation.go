package report

import (
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool"
	"github.com/penstock-gpu/penstock/trace"
)

// Where the reserved bytes of a Fragmentation come from.
const (
	ReservedRecorded  = "recorded"
	ReservedSimulated = "simulated"
)

// Fragmentation is what an allocator lost over the course of a trace. Reserved is
// what it held of the device; active what it had handed out, rounded up to its
// blocks; lost is the difference, memory that nobody else could use.
type Fragmentation struct {
	Trace              string       `json:"trace"`
	Source             string       `json:"source,omitempty"`
	Allocator          string       `json:"allocator"`
	Reserved           string       `json:"reserved"` // ReservedRecorded or ReservedSimulated
	Allocations        int          `json:"allocations"`
	PeakRequestedBytes int64        `json:"peak_requested_bytes"`
	PeakActiveBytes    int64        `json:"peak_active_bytes"`
	PeakReservedBytes  int64        `json:"peak_reserved_bytes"`
	LostBytes          int64        `json:"lost_bytes"`         // peak reserved less peak active: held, and never needed
	MostIdleBytes      int64        `json:"most_idle_bytes"`    // most reserved and not active at one time
	ReservedOverPeak   float64      `json:"reserved_over_peak"` // peak reserved over peak requested
	HasClock           bool         `json:"has_clock"`          // Seconds of the timeline mean something
	Timeline           []UseOfBytes `json:"timeline"`
}

// UseOfBytes is one moment.
type UseOfBytes struct {
	Operation      int     `json:"operation"` // allocations and frees before it
	Seconds        float64 `json:"seconds"`
	RequestedBytes int64   `json:"requested_bytes"`
	ActiveBytes    int64   `json:"active_bytes"`
	ReservedBytes  int64   `json:"reserved_bytes"`
}

// LostBytes is reserved and not active.
func (u UseOfBytes) LostBytes() int64 { return max(0, u.ReservedBytes-u.ActiveBytes) }

// FragmentationOf follows a trace. Where it does not say what was reserved, what
// PyTorch's caching allocator would have is simulated: on a card without end, so
// that it never has to give anything back.
func FragmentationOf(t *trace.Trace) (Fragmentation, error) {
	f := Fragmentation{Trace: t.Name, Source: t.Header.Source, Reserved: ReservedRecorded, Allocator: "the recorded process's own"}
	var m meter = &recordedMeter{reserved: t.Reserved, live: map[uint64]int64{}}
	if len(t.Reserved) == 0 {
		f.Reserved, f.Allocator = ReservedSimulated, "PyTorch's caching allocator, default settings"
		m = newSimulatedMeter()
	}
	requested := map[uint64]int64{}
	var now UseOfBytes
	var begun time.Duration
	for i := range t.Events {
		e := &t.Events[i]
		switch e.Kind {
		case trace.KindAlloc:
			requested[e.Alloc] = e.Bytes
			now.RequestedBytes += e.Bytes
			f.Allocations++
		case trace.KindFree:
			now.RequestedBytes -= requested[e.Alloc]
			delete(requested, e.Alloc)
		default:
			continue
		}
		var err error
		if now.ActiveBytes, now.ReservedBytes, err = m.step(i, e); err != nil {
			return f, fmt.Errorf("trace %s: event %d: %w", t.Name, i, err)
		}
		if now.Operation == 0 {
			begun = e.Time
		}
		now.Operation++
		now.Seconds = max(now.Seconds, (e.Time - begun).Seconds())
		f.Timeline = append(f.Timeline, now)
		f.PeakRequestedBytes = max(f.PeakRequestedBytes, now.RequestedBytes)
		f.PeakActiveBytes = max(f.PeakActiveBytes, now.ActiveBytes)
		f.PeakReservedBytes = max(f.PeakReservedBytes, now.ReservedBytes)
		f.MostIdleBytes = max(f.MostIdleBytes, now.LostBytes())
	}
	if f.PeakRequestedBytes == 0 {
		return f, fmt.Errorf("trace %s allocates nothing, so there is nothing to report: record a training run", t.Name)
	}
	f.LostBytes = max(0, f.PeakReservedBytes-f.PeakActiveBytes)
	f.ReservedOverPeak = float64(f.PeakReservedBytes) / float64(f.PeakRequestedBytes)
	f.HasClock = now.Seconds > 0
	return f, nil
}

// Thinned is the report with at most about n moments; no peak is lost, nor the
// least that was active.
func (f Fragmentation) Thinned(n int) Fragmentation {
	f.Timeline = thin(f.Timeline, n, func(u UseOfBytes) (a, b int64) { return u.ReservedBytes, u.ActiveBytes })
	return f
}

// meter says what is active and reserved after each allocation and free.
type meter interface {
	step(event int, e *trace.Event) (active, reserved int64, err error)
}

// blockBytes is what PyTorch's allocator rounds requests up to.
const blockBytes = 512

// recordedMeter has what was reserved from the trace.
type recordedMeter struct {
	reserved []trace.Reserved // what is still to come
	now      int64
	live     map[uint64]int64
	active   int64
}

func (m *recordedMeter) step(event int, e *trace.Event) (int64, int64, error) {
	for len(m.reserved) > 0 && m.reserved[0].Event <= event {
		m.now = m.reserved[0].Bytes
		m.reserved = m.reserved[1:]
	}
	if e.Kind == trace.KindAlloc {
		m.live[e.Alloc] = (e.Bytes + blockBytes - 1) / blockBytes * blockBytes
		m.active += m.live[e.Alloc]
	} else {
		m.active -= m.live[e.Alloc]
		delete(m.live, e.Alloc)
	}
	return m.active, m.now, nil
}

// simulatedMeter runs the caching allocator on addresses that cost nothing.
type simulatedMeter struct {
	pool   *pool.Caching
	live   map[uint64]cuda.Ptr
	active int64
}

func newSimulatedMeter() *simulatedMeter {
	return &simulatedMeter{pool: pool.NewCaching(&endless{next: 1 << 32}, nil), live: map[uint64]cuda.Ptr{}}
}

func (m *simulatedMeter) step(_ int, e *trace.Event) (int64, int64, error) {
	var err error
	if e.Kind == trace.KindAlloc && e.Bytes > 0 {
		var p cuda.Ptr
		if p, err = m.pool.Malloc(e.Bytes, e.Stream); err == nil {
			m.live[e.Alloc] = p
			m.active += m.pool.Bytes(p)
		}
	} else if p, ok := m.live[e.Alloc]; ok && e.Kind == trace.KindFree {
		m.active -= m.pool.Bytes(p)
		delete(m.live, e.Alloc)
		err = m.pool.Free(p)
	}
	return m.active, m.pool.Stats().ReservedBytes, err
}

// endless is a source of segments that are never given back.
type endless struct{ next cuda.Ptr }

func (s *endless) Acquire(bytes int64) (cuda.Ptr, error) {
	at := s.next
	s.next += cuda.Ptr(bytes)
	if s.next < at {
		return 0, fmt.Errorf("the segments add up to more than there are addresses")
	}
	return at, nil
}

func (s *endless) Release(cuda.Ptr, int64) error { return nil }
