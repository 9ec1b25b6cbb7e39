package um

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock-gpu/penstock/correlate"
	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um/internal/queue"
)

// Tensor is what both engines know of an allocation of 1 MiB and more; an engine's own embeds it.
type Tensor struct {
	Slot     uint32
	Stream   int   // that it was allocated for
	Others   []int // other streams that use it
	Instance correlate.InstanceID
	Queued   queue.Positions // of unfinished operations that name it
	LastUse  int64           // position of the last operation that named it
	Named    bool            // an operation has named it
	Freed    bool            // it is dead; operations queued before may still need its memory
}

// Common is the part of an engine's tensor that both have.
func (t *Tensor) Common() *Tensor { return t }

// Busy says whether unfinished operations use it.
func (t *Tensor) Busy() bool { return t.Queued.Len() > 0 }

// UsedOn notes that work on a stream uses it.
func (t *Tensor) UsedOn(stream int) {
	if stream != t.Stream && !slices.Contains(t.Others, stream) {
		t.Others = append(t.Others, stream)
	}
}

// Operation is what both engines know of one that was reported and has not finished; an engine's own embeds it.
type Operation[T any] struct {
	Position int64 // in the history
	Seq      uint64
	Stream   int
	Name     string
	Tensors  []T
}

// Mark is a moment on a stream: the end of one of its operations.
type Mark struct {
	Stream int
	Seq    uint64
}

// Base is what both engines embed: the tensors by slot and by address, the operations that are
// pending and how far each stream is, the history, and accounts. T is a pointer to an engine's
// tensor, X one to its operation.
type Base[T interface {
	comparable
	Common() *Tensor
}, X comparable] struct {
	History    *correlate.History
	Slots      Slots[T]
	ByPtr      map[cuda.Ptr]T // live allocations
	Pending    queue.Queue[X]
	Stalls     Stalls[X]
	PlainBytes int64 // device memory that is taken outside the engine

	streams  []stream
	reported uint64                 // the last operation that was reported, of all streams
	touched  []correlate.InstanceID // what the operation that has begun names
	epoch    uint64

	liveBytes, livePeak int64 // as asked for
	devicePeak          int64
}

// stream is how far one is.
type stream struct {
	reported uint64 // the last operation that it was given
	finished uint64 // up to this one
}

// Clock tells the time, for accounting.
type Clock interface{ Now() time.Duration }

// Init makes a Base ready.
func (b *Base[T, X]) Init(c Clock) {
	b.History = correlate.NewHistory(correlate.HistoryConfig{})
	b.ByPtr = map[cuda.Ptr]T{}
	b.Stalls.clock = c
}

// Happened notes an event that may change what to do.
func (b *Base[T, X]) Happened() { b.epoch++ }

// Epoch changes with every event that may change what to do.
func (b *Base[T, X]) Epoch() uint64 { return b.epoch }

// Find is the tensor that was allocated at an address.
func (b *Base[T, X]) Find(p cuda.Ptr) (T, error) {
	t, ok := b.ByPtr[p]
	if !ok {
		return t, fmt.Errorf("%w: %#x", ErrNotOurs, uint64(p))
	}
	return t, nil
}

// SlotOf is the slot of the tensor that was allocated at an address, 0 when none was.
func (b *Base[T, X]) SlotOf(p cuda.Ptr) uint32 {
	if t, ok := b.ByPtr[p]; ok {
		return t.Common().Slot
	}
	return 0
}

// LiveAt is the live tensor of a slot, nil when there is none.
func (b *Base[T, X]) LiveAt(slot uint32) (none T) {
	if t := b.Slots.At(slot); t != none && !t.Common().Freed {
		return t
	}
	return none
}

// RecordStream says that work on another stream uses the allocation.
func (b *Base[T, X]) RecordStream(p cuda.Ptr, stream int) error {
	t, err := b.Find(p)
	if err == nil {
		t.Common().UsedOn(stream)
	}
	return err
}

// Begin makes x, which is new, an operation as it is reported: what is alive of what it names is named by it from now on. What is not
// was freed by another thread meanwhile: the job's own race.
func (b *Base[T, X]) Begin(o *Op, x *Operation[T]) {
	x.Position, x.Seq, x.Stream, x.Name, x.Tensors = b.History.Now(), o.Seq, o.Stream, o.Name, make([]T, 0, len(o.Slots))
	b.touched = b.touched[:0]
	var none T
	for _, s := range o.Slots {
		t := b.Slots.At(s)
		if t == none {
			continue
		}
		c := t.Common()
		if c.Freed {
			continue
		}
		c.Named, c.LastUse = true, x.Position
		c.Queued.Add(x.Position)
		x.Tensors, b.touched = append(x.Tensors, t), append(b.touched, c.Instance)
	}
}

// Enter enters the operation that has begun, as x, into the history and among the pending ones.
func (b *Base[T, X]) Enter(x X, begun *Operation[T], signature uint64) {
	b.History.Observe(signature, b.touched)
	b.Pending.Add(begun.Stream, begun.Seq, x)
	s := b.stream(begun.Stream)
	s.reported, b.reported = max(s.reported, begun.Seq), max(b.reported, begun.Seq)
}

func (b *Base[T, X]) stream(number int) *stream {
	for len(b.streams) <= number {
		b.streams = append(b.streams, stream{})
	}
	return &b.streams[number]
}

// Finished notes that a stream has finished every operation up to seq; false when that was known. The operations are
// still pending.
func (b *Base[T, X]) Finished(stream int, seq uint64) bool {
	s := b.stream(stream)
	if seq <= s.finished {
		return false
	}
	s.finished = seq
	return true
}

// Passed says whether a stream has finished an operation.
func (b *Base[T, X]) Passed(m Mark) bool {
	return m.Seq == 0 || m.Stream < len(b.streams) && b.streams[m.Stream].finished >= m.Seq
}

// Reported is the last operation that was reported.
func (b *Base[T, X]) Reported() uint64 { return b.reported }

// Streams is how many there are.
func (b *Base[T, X]) Streams() int { return len(b.streams) }

// ReportedOn is the last operation that a stream was given, 0 when there is none.
func (b *Base[T, X]) ReportedOn(stream int) uint64 {
	if stream >= len(b.streams) {
		return 0
	}
	return b.streams[stream].reported
}

// Queued is how many operations are queued and not finished.
func (b *Base[T, X]) Queued() int { return b.Pending.Len() }

// LiveBytes are the bytes of live tensors, as asked for.
func (b *Base[T, X]) LiveBytes() int64 { return b.liveBytes }

// AddLive notes that there are so many more, or less.
func (b *Base[T, X]) AddLive(bytes int64) {
	b.liveBytes += bytes
	b.livePeak = max(b.livePeak, b.liveBytes)
}

// NotePeak notes what tensors take of the device, beside plain memory.
func (b *Base[T, X]) NotePeak(bytes int64) { b.devicePeak = max(b.devicePeak, bytes+b.PlainBytes) }

// Account completes counters with what the Base counts, where tensors take so much of the device.
func (b *Base[T, X]) Account(s *Stats, bytes int64) {
	s.LiveBytes, s.LivePeakBytes, s.PlainBytes = b.liveBytes, b.livePeak, b.PlainBytes
	s.DeviceBytes, s.DevicePeakBytes = bytes+b.PlainBytes, b.devicePeak
	s.Stall, s.History = b.Stalls.Spent, b.History.Stats()
}

// Slots are the numbers by which the launch hook and an engine speak of tensors; 0 is nobody's.
type Slots[T comparable] struct {
	of   []T
	free []uint32
}

// Take gives a tensor a slot.
func (s *Slots[T]) Take(t T) (slot uint32) {
	if k := len(s.free); k > 0 {
		slot, s.free = s.free[k-1], s.free[:k-1]
		s.of[slot] = t
		return slot
	}
	if len(s.of) == 0 {
		s.of = make([]T, 1)
	}
	s.of = append(s.of, t)
	return uint32(len(s.of) - 1)
}

// Give takes a slot back.
func (s *Slots[T]) Give(slot uint32) {
	var none T
	s.of[slot] = none
	s.free = append(s.free, slot)
}

// At is the tensor of a slot, nil when it has none.
func (s *Slots[T]) At(slot uint32) (t T) {
	if int(slot) < len(s.of) {
		t = s.of[slot]
	}
	return t
}

// All are the tensors by slot; nil where one is free.
func (s *Slots[T]) All() []T { return s.of }

// StallCause is why an operation waits with nothing before it left to run.
type StallCause int

// Causes of a stall.
const (
	ForFetch    StallCause = iota // its data is on the way; it may have been launched, and its stream waits
	ForSpace                      // nothing can come before something has left
	ForMap                        // fresh memory is being mapped
	StallCauses                   // so many there are
)

// Stalls measures for how long the oldest operation waits that has nothing before it on its stream left to run.
type Stalls[X comparable] struct {
	Of    X          // that waits; nil when none does
	Cause StallCause // of its wait
	Spent [StallCauses]time.Duration
	since time.Duration
	clock Clock
	// Ended hears of each wait that is over; may be nil.
	Ended func(x X, cause StallCause, from, to time.Duration)
}

// Wait says which operation waits from now on, and why.
func (s *Stalls[X]) Wait(x X, cause StallCause) {
	if x != s.Of {
		s.end()
		s.Of, s.Cause = x, cause
	}
}

// Blame says what the one that waits does so for from now on.
func (s *Stalls[X]) Blame(cause StallCause) {
	if s.Of != *new(X) && cause != s.Cause {
		s.end()
		s.Cause = cause
	}
}

// end adds the time until now to what it was spent for.
func (s *Stalls[X]) end() {
	now := s.clock.Now()
	if s.Of != *new(X) {
		s.Spent[s.Cause] += now - s.since
		if s.Ended != nil {
			s.Ended(s.Of, s.Cause, s.since, now)
		}
	}
	s.since = now
}
