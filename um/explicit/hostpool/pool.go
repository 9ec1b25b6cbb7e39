package hostpool

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/internal/hostmem"
	"github.com/penstock-gpu/penstock/internal/size"
)

// Granularity is the unit of all sizes and addresses: a huge page.
const Granularity = 2 << 20

// Extent is a piece of pinned memory. Host and device use the same addresses.
type Extent = cuda.Range

// Config says how large the pool may get and how it grows.
type Config struct {
	// BudgetBytes is the most pinned memory; it is rounded down to Granularity.
	BudgetBytes int64
	// SegmentBytes is how much is pinned at a time, less after a failure; 0 is 1 GiB.
	SegmentBytes int64
	// AheadBytes is how much free memory the pool keeps ready; 0 is 4 GiB.
	AheadBytes int64
}

// filled has the values that 0 stands for, in whole units.
func (c Config) filled() Config {
	if c.SegmentBytes == 0 {
		c.SegmentBytes = defaultSegment
	}
	if c.AheadBytes == 0 {
		c.AheadBytes = defaultAhead
	}
	c.BudgetBytes = c.BudgetBytes / Granularity * Granularity
	c.SegmentBytes = roundUp(c.SegmentBytes)
	return c
}

// MostPinned is the most that a pool pins of which so much is in use at most, unless more is announced: what it keeps
// ready comes on top, in whole segments.
func (c Config) MostPinned(inUse int64) int64 {
	c = c.filled()
	wanted := roundUp(inUse) + c.AheadBytes
	return min((wanted+c.SegmentBytes-1)/c.SegmentBytes*c.SegmentBytes, c.BudgetBytes)
}

const (
	defaultSegment = 1 << 30
	defaultAhead   = 4 << 30
	// leftToOthers is available memory that the pool does not take.
	leftToOthers = 256 << 20
	// firstPause is how long the pool waits after a failure before it tries again, twice as long after each that
	// follows, up to longestPause.
	firstPause   = time.Second
	longestPause = 8 * time.Second
)

// Pool is the pinned host memory of one process. Its methods may be called from any thread.
type Pool struct {
	driver  cuda.Driver
	log     *zap.Logger
	config  Config
	memory  space // the addresses; everything below base+grown is pinned
	inline  bool  // grown in Take: simulated
	stopped chan struct{}

	mu       sync.Mutex
	changed  sync.Cond
	free     freeList
	grown    int64
	inUse    int64
	peak     int64
	promised int64 // to Takes that wait
	expected int64
	waiting  int
	segment  int64 // how much is pinned next
	failures int   // of growing
	failure  error // the last one; nil when growing has succeeded since
	pause    time.Duration
	retry    time.Time // not before that, after a failure
	closed   bool
	waits    int64
	waited   time.Duration
	growing  time.Duration
}

// ErrHostBudget is in the chain of the error of a Take that does not fit the budget.
var ErrHostBudget = errors.New("host budget spent")

// ErrClosed is the error of a Take from a closed pool.
var ErrClosed = errors.New("the pool of pinned host memory is closed")

// HostBudgetError says what did not fit.
type HostBudgetError struct{ AskedBytes, InUseBytes, BudgetBytes int64 }

func (e *HostBudgetError) Error() string {
	return fmt.Sprintf("%s of host memory asked for with %s in use would exceed the host budget of %s: raise --host-budget or use less",
		size.Text(e.AskedBytes), size.Text(e.InUseBytes), size.Text(e.BudgetBytes))
}

// Is matches ErrHostBudget.
func (e *HostBudgetError) Is(target error) bool { return target == ErrHostBudget }

// GrowthError is a Take that the machine, not the budget, could not serve.
type GrowthError struct {
	AskedBytes, GrownBytes, BudgetBytes int64
	Cause                               error
}

func (e *GrowthError) Error() string {
	return fmt.Sprintf("%s of host memory asked for, but the pinned pool cannot grow past %s of its budget of %s: %v",
		size.Text(e.AskedBytes), size.Text(e.GrownBytes), size.Text(e.BudgetBytes), e.Cause)
}

// Unwrap is the cause.
func (e *GrowthError) Unwrap() error { return e.Cause }

func roundUp(bytes int64) int64 { return (bytes + Granularity - 1) / Granularity * Granularity }

// checkBudget compares the budget with the memory there is.
func checkBudget(budget int64, m hostmem.Memory) error {
	switch room := m.AvailableBytes - leftToOthers; {
	case room < Granularity:
		return fmt.Errorf("a host budget of %s is impossible: %s leaves %s", size.Text(budget), m.LimitedBy, size.Text(m.AvailableBytes))
	case budget > room:
		return fmt.Errorf("the host budget of %s is more than can be pinned: %s leaves %s, of which %s are for others: give --host-budget %dMiB or less",
			size.Text(budget), m.LimitedBy, size.Text(m.AvailableBytes), size.Text(leftToOthers), room>>20)
	}
	return nil
}

// New reserves addresses for the budget and begins to grow.
func New(d cuda.Driver, c Config, log *zap.Logger) (*Pool, error) {
	if c.BudgetBytes < Granularity || c.SegmentBytes < 0 || c.AheadBytes < 0 {
		return nil, fmt.Errorf("a host budget of %d bytes is too small: give at least %s", c.BudgetBytes, size.Text(Granularity))
	}
	c = c.filled()
	p := &Pool{driver: d, log: log, config: c, segment: c.SegmentBytes, inline: d.Info().SimulatedHardware, stopped: make(chan struct{})}
	p.changed.L = &p.mu
	if p.inline {
		p.memory = imaginary{}
		close(p.stopped)
	} else {
		m, err := hostmem.Available()
		if err != nil {
			return nil, err
		}
		if err := checkBudget(c.BudgetBytes, m); err != nil {
			return nil, err
		}
		if p.memory, err = reserve(c.BudgetBytes); err != nil {
			return nil, err
		}
		warnWithoutHugePages(log)
	}
	p.free.origin = p.memory.base()
	if !p.inline {
		go p.grow()
	}
	return p, nil
}

// Take gives out at least that much memory, rounded up to Granularity. It waits
// while growing is behind. The contents are unspecified.
func (p *Pool) Take(bytes int64) ([]Extent, error) {
	if bytes <= 0 || bytes > p.config.BudgetBytes {
		if bytes <= 0 {
			return nil, fmt.Errorf("%d bytes of host memory asked for", bytes)
		}
		return nil, &HostBudgetError{bytes, p.Stats().InUseBytes, p.config.BudgetBytes}
	}
	need := roundUp(bytes)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inUse+p.promised+need > p.config.BudgetBytes {
		return nil, &HostBudgetError{need, p.inUse + p.promised, p.config.BudgetBytes}
	}
	p.promised += need
	defer func() { p.promised -= need }()
	if err := p.await(need); err != nil {
		return nil, err
	}
	taken := p.free.take(need)
	p.inUse += need
	p.peak = max(p.peak, p.inUse)
	p.changed.Broadcast() // less is free: the pool may have to grow
	return taken, nil
}

// TryTake is Take for a caller that cannot wait: ready is false while growing is
// behind, and the pool then grows for it. A *GrowthError says that it has not been able to
// when it last tried: it goes on trying, so that the caller may ask again.
func (p *Pool) TryTake(bytes int64) (extents []Extent, ready bool, err error) {
	need := roundUp(max(bytes, 1))
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, false, ErrClosed
	case p.inUse+p.promised+need > p.config.BudgetBytes:
		return nil, false, &HostBudgetError{need, p.inUse + p.promised, p.config.BudgetBytes}
	case p.free.bytes < need+p.promised && !p.inline:
		if want := min(p.inUse+need, p.config.BudgetBytes); want > p.expected {
			p.expected = want
			p.changed.Broadcast()
		}
		if p.failure != nil {
			return nil, false, &GrowthError{need, p.grown, p.config.BudgetBytes, p.failure}
		}
		return nil, false, nil
	case p.free.bytes < need:
		if err := p.await(need); err != nil {
			return nil, false, err
		}
	}
	extents = p.free.take(need)
	p.inUse += need
	p.peak = max(p.peak, p.inUse)
	p.changed.Broadcast()
	return extents, true, nil
}

// await waits until that much is free. Under mu.
func (p *Pool) await(need int64) error {
	if p.closed {
		return ErrClosed
	}
	if p.free.bytes >= need {
		return nil
	}
	failures, began := p.failures, time.Now()
	p.waits++
	p.waiting++
	p.retry = time.Time{}
	p.changed.Broadcast()
	for p.free.bytes < need && !p.closed && p.failures == failures {
		if p.inline {
			p.extend(p.next(), p.driver.HostRegister(p.next().Base, p.next().Bytes))
		} else {
			p.changed.Wait()
		}
	}
	p.waiting--
	p.waited += time.Since(began)
	switch {
	case p.closed:
		return ErrClosed
	case p.free.bytes < need:
		return &GrowthError{need, p.grown, p.config.BudgetBytes, p.failure}
	}
	return nil
}

// Give takes extents back, whole or in parts. Nothing may use them any more.
// Memory that is not in use is refused, and none of the call's extents is taken back then.
func (p *Pool) Give(extents []Extent) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range extents {
		err := p.free.give(e)
		if err != nil {
			for _, done := range extents[:i] {
				p.free.remove(done)
			}
			return err
		}
	}
	for _, e := range extents {
		p.inUse -= e.Bytes
	}
	p.changed.Broadcast()
	return nil
}

// Expect announces that so much memory in all will be in use: the pool grows to
// it, within its budget, without waiting for it to be asked for.
func (p *Pool) Expect(bytes int64) {
	p.mu.Lock()
	p.expected = min(roundUp(max(bytes, 0)), p.config.BudgetBytes)
	p.mu.Unlock()
	p.changed.Broadcast()
}

// Stats is the state of a pool.
type Stats struct {
	BudgetBytes int64
	// GrownBytes are pinned, InUseBytes of them taken; PeakBytes were at any time.
	GrownBytes, InUseBytes, PeakBytes int64
	// FreeExtents are the free pieces, LargestFreeBytes the largest of them.
	FreeExtents      int
	LargestFreeBytes int64
	// Waits are the Takes that had to wait for the pool to grow, Waited for how long in all.
	Waits  int64
	Waited time.Duration
	// Growing is the time spent making memory.
	Growing time.Duration
	// Failure is why the pool last could not grow; nil when it always could.
	Failure error
}

// Stats reads the state.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{BudgetBytes: p.config.BudgetBytes, GrownBytes: p.grown, InUseBytes: p.inUse, PeakBytes: p.peak,
		FreeExtents: len(p.free.extents), Waits: p.waits, Waited: p.waited, Growing: p.growing, Failure: p.failure}
	for _, e := range p.free.extents {
		s.LargestFreeBytes = max(s.LargestFreeBytes, e.Bytes)
	}
	return s
}
