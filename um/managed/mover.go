package managed

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
)

// Mover carries out moves, and returns from each when it has been carried out.
type Mover interface {
	Do(m *Move) error
	Close() error
}

// operations are what a move consists of.
type operations interface {
	prefetch(r []cuda.Range, to cuda.Location) error
	evict(r []cuda.Range) error
	touch(r []cuda.Range) error
	discard(r []cuda.Range) error
}

func carryOut(o operations, m *Move) error {
	if err := steps(o, m); err != nil {
		return fmt.Errorf("%s of %d ranges: %w", m.Kind, len(m.Ranges), err)
	}
	return nil
}

func steps(o operations, m *Move) error {
	switch m.Kind {
	case MoveFetch:
		return o.prefetch(m.Ranges, cuda.Device)
	case MoveTouch:
		return o.touch(m.Ranges)
	case MovePopulate:
		if m.StaleFirst {
			if err := o.discard(m.Ranges); err != nil {
				return err
			}
		}
		return o.prefetch(m.Ranges, cuda.Device)
	case MoveEvict:
		return o.evict(m.Ranges)
	case MoveDiscard:
		return o.discard(m.Ranges)
	case MovePrepare:
		return o.prefetch(m.Ranges, cuda.Host)
	}
	panic("managed: unknown kind of move")
}

// Streamed moves through libcuda.
type Streamed struct {
	driver cuda.Driver
	stream cuda.Stream
}

// NewStreamed returns a mover for the calling thread, which must be bound to the device.
func NewStreamed(d cuda.Driver) (*Streamed, error) {
	s, err := d.StreamCreate()
	if err != nil {
		return nil, fmt.Errorf("managed mover: %w", err)
	}
	return &Streamed{driver: d, stream: s}, nil
}

// Do carries out a move.
func (s *Streamed) Do(m *Move) error {
	if err := s.Start(m); err != nil {
		return err
	}
	return s.driver.StreamSynchronize(s.stream)
}

// Start queues a move on the mover's stream; it is done when the stream is.
func (s *Streamed) Start(m *Move) error { return carryOut(s, m) }

// Stream is the mover's stream.
func (s *Streamed) Stream() cuda.Stream { return s.stream }

func (s *Streamed) prefetch(r []cuda.Range, to cuda.Location) error {
	return s.driver.Prefetch(r, to, s.stream)
}

func (s *Streamed) evict(r []cuda.Range) error { return s.prefetch(r, cuda.Host) }
func (s *Streamed) touch(r []cuda.Range) error { return s.prefetch(r, cuda.Device) }

func (s *Streamed) discard(r []cuda.Range) error {
	if !s.driver.Capabilities().DiscardBatch {
		return nil // before 13.0: dead pages stay and are moved like others
	}
	return s.driver.Discard(r, s.stream)
}

// Close gives the stream back.
func (s *Streamed) Close() error { return s.driver.StreamDestroy(s.stream) }

// Space is the part of *uvm.Space that moves need. With kmod-patch in the driver,
// Evict and Touch are cheaper than the migrations that they are otherwise.
type Space interface {
	Migrate(r cuda.Range, to cuda.Location) error
	Evict(r cuda.Range) error
	Touch(r cuda.Range) error
	Discard(r cuda.Range) error
}

// Direct moves through the unified-memory driver.
type Direct struct{ space Space }

// NewDirect returns a mover. Several may share a space.
func NewDirect(s Space) *Direct { return &Direct{s} }

// Do carries out a move.
func (d *Direct) Do(m *Move) error { return carryOut(d, m) }

func (d *Direct) prefetch(ranges []cuda.Range, to cuda.Location) error {
	return each(ranges, func(r cuda.Range) error { return d.space.Migrate(r, to) })
}

func (d *Direct) evict(ranges []cuda.Range) error   { return each(ranges, d.space.Evict) }
func (d *Direct) touch(ranges []cuda.Range) error   { return each(ranges, d.space.Touch) }
func (d *Direct) discard(ranges []cuda.Range) error { return each(ranges, d.space.Discard) }

func each(ranges []cuda.Range, do func(cuda.Range) error) error {
	for _, r := range ranges {
		if err := do(r); err != nil {
			return err
		}
	}
	return nil
}

// Close does nothing: the space is its opener's.
func (d *Direct) Close() error { return nil }
