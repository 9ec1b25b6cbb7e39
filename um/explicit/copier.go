package explicit

import (
	"fmt"

	"github.com/penstock-gpu/penstock/cuda"
)

// PieceBytes is how much is copied out at a time. The copy engine that copies to
// the host is also the one that writes page tables when access to mapped memory is
// set: measured on an H200 (bench/results/vmm-threads.json), cuMemSetAccess takes 17 us,
// but 1.03 ms, a time slice of the engine, while another copy out is always queued
// behind the one that runs. With one piece of 8 MiB at a time it waits for that
// piece, 0.14 ms; copies out lose 4 % of their speed, 10 % beside copies in and mapping. So only while memory
// is mapped or unmapped is it one at a time (package live, lane).
// No other way to copy escapes it (bench/results/vmm-copy-kinds.json: two-dimensional,
// device to device into host memory that is mapped, a stream of high priority, batches);
// kernels do, but take 8 multiprocessors and slow unmapping and copies in.
const PieceBytes = 8 << 20

// Copier queues copies of what leaves to the host, one piece at a time. When the caller asks for the next decides
// whether mapping gets its turn between them.
type Copier struct {
	driver cuda.Driver
	stream cuda.Stream
	marks  marks
}

// NewCopier makes a copier with a stream of its own. The word is 4 bytes of pinned
// memory at zero.
func NewCopier(d cuda.Driver, word cuda.Ptr) (*Copier, error) {
	s, err := d.StreamCreate()
	if err != nil {
		return nil, err
	}
	return &Copier{driver: d, stream: s, marks: marks{word: word}}, nil
}

// Check is the error that has ended the stream, if one has.
func (c *Copier) Check() error {
	if _, err := c.driver.StreamQuery(c.stream); err != nil {
		return fmt.Errorf("a copy has failed on its way: %w", err)
	}
	return nil
}

// Stream is the stream of the copies.
func (c *Copier) Stream() cuda.Stream { return c.stream }

// Piece is a part of a move out that has been queued.
type Piece struct {
	Ticket uint32 // it is copied when the word has reached this
	Bytes  int64
	Last   bool // of its move
}

// Next queues the next piece, of so many bytes at most, of a move out that a mover has begun.
func (c *Copier) Next(m *Move, most int64) (p Piece, err error) {
	at := m.copied
	from := int64(0)
	for _, h := range m.Host {
		if at < from+h.Bytes {
			p.Bytes = min(most, from+h.Bytes-at, m.Bytes-at)
			if err := c.driver.CopyAsync(h.Base+cuda.Ptr(at-from), m.Chunk.Base+cuda.Ptr(at), p.Bytes, c.stream); err != nil {
				return p, fmt.Errorf("copying %d bytes out: %w", p.Bytes, err)
			}
			break
		}
		from += h.Bytes
	}
	if p.Bytes == 0 {
		return p, fmt.Errorf("host memory of %d bytes is too small for the %d of a chunk", at, m.Bytes)
	}
	m.copied += p.Bytes
	p.Last = m.copied == m.Bytes
	p.Ticket, err = c.marks.next(c.driver, c.stream)
	return p, err
}
