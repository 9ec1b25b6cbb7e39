package managed

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// Mover carries out moves on one stream of its own.
type Mover struct {
	driver cuda.Driver
	stream cuda.Stream
}

// New returns a Mover for the calling thread, which must be bound to the device.
func New(d cuda.Driver) (*Mover, error) {
	s, err := d.StreamCreate()
	if err != nil {
		return nil, fmt.Errorf("managed mover: %w", err)
	}
	return &Mover{driver: d, stream: s}, nil
}

// Do carries out a move and returns when it has been carried out.
func (m *Mover) Do(x *um.Move) error {
	if len(x.Touch) > 0 {
		if err := m.driver.Prefetch(x.Touch, cuda.Device, m.stream); err != nil {
			return err
		}
	}
	if err := m.queue(x); err != nil {
		return fmt.Errorf("%s: %w", x.Kind, err)
	}
	return m.driver.StreamSynchronize(m.stream)
}

func (m *Mover) queue(x *um.Move) error {
	switch x.Kind {
	case um.MoveFetch:
		return m.driver.Prefetch(x.Ranges, cuda.Device, m.stream)
	case um.MovePopulate:
		if x.StaleFirst {
			if err := m.driver.Discard(x.Ranges, m.stream); err != nil {
				return err
			}
		}
		return m.driver.Prefetch(x.Ranges, cuda.Device, m.stream)
	case um.MoveEvict:
		return m.driver.Prefetch(x.Ranges, cuda.Host, m.stream)
	case um.MoveDiscard:
		return m.driver.Discard(x.Ranges, m.stream)
	}
	panic("managed: unknown kind of move")
}

// Close gives the stream back.
func (m *Mover) Close() error { return m.driver.StreamDestroy(m.stream) }
