package explicit

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/cuda/kernels"
)

// Mover carries moves of one direction out: it maps, queues copies in and checksums,
// and unmaps; copies out are a [Copier]'s, on a stream of their own: they do not wait
// for checksums, which wait for the job's kernels. It needs no lock of the Runtime,
// and waits for nothing but the driver's own lock.
type Mover struct {
	driver cuda.Driver
	stream cuda.Stream
	marks  marks

	kernels *kernels.Kernels // nil: there are no checksums
	verify  bool             // every move is checked
	sums    []cuda.Ptr       // pinned memory for checksums
	sumOf   map[*Move]cuda.Ptr
	trial   []cuda.Ptr // pinned memory for the checksums of a trial's inputs and their copies
	tried   *Move      // that has them

	spent Times
}

// Call is a kind of call of the driver that carries moves out.
type Call int

// Calls.
const (
	CallUnmap Call = iota
	CallRelease
	CallCreate
	CallMap
	CallAccess // setting access, which waits for copies out: see [PieceBytes]
	CallCopy   // queueing a copy in
	calls
)

func (c Call) String() string {
	return [...]string{"unmap", "release", "create", "map", "access", "copy"}[c]
}

// Times are durations by [Call].
type Times [calls]time.Duration

// Spent is the time that the mover has spent in calls.
func (v *Mover) Spent() Times { return v.spent }

// timed makes a call.
func (v *Mover) timed(c Call, f func() error) error {
	began := v.driver.Now()
	err := f()
	v.spent[c] += v.driver.Now() - began
	return err
}

// ErrNoMemory is a move for which the driver has no device memory: what it was to
// undo is undone, and nothing is mapped for it. See [Runtime.Failed].
var ErrNoMemory = errors.New("no device memory for a move")

// ErrMismatch is a move after which memory did not contain what it should.
var ErrMismatch = errors.New("verification failed")

// Checksums lets the mover take the checksums that moves ask for, with up to that
// many moves in flight; to verify is to take that of every move and to compare what
// comes in with what left.
func (v *Mover) Checksums(k *kernels.Kernels, depth int, verify bool) error {
	v.kernels, v.verify, v.sumOf = k, verify, map[*Move]cuda.Ptr{}
	size := (k.SumBytes() + 15) &^ 15
	p, err := v.driver.HostAlloc(size * int64(depth))
	if err != nil {
		return fmt.Errorf("pinned memory for checksums: %w", err)
	}
	for i := range depth {
		v.sums = append(v.sums, p+cuda.Ptr(int64(i)*size))
	}
	if p, err = v.driver.HostAlloc(size * 2 * MostTrialInputs); err != nil {
		return fmt.Errorf("pinned memory for checksums: %w", err)
	}
	for i := range 2 * MostTrialInputs {
		v.trial = append(v.trial, p+cuda.Ptr(int64(i)*size))
	}
	return nil
}

// sum queues the checksum of a move's chunk.
func (v *Mover) sum(m *Move) error { return v.sumAt(m, m.Chunk.Base) }

// sumAt queues the checksum of as much as a move's chunk contains, at an address.
func (v *Mover) sumAt(m *Move, at cuda.Ptr) error {
	if len(v.sums) == 0 {
		return errors.New("more moves are in flight than checksums were provided for")
	}
	out := v.sums[len(v.sums)-1]
	v.sums = v.sums[:len(v.sums)-1]
	v.sumOf[m] = out
	return v.kernels.Checksum(cuda.Range{Base: at, Bytes: m.Bytes}, out, v.stream)
}

// found reads the checksum of a move, which has been taken.
func (v *Mover) found(m *Move) kernels.Sum128 {
	out := v.sumOf[m]
	delete(v.sumOf, m)
	v.sums = append(v.sums, out)
	return v.kernels.Sum(m.Bytes, out)
}

// Summed reads the checksum of what leaves, or of what launches have made that are verified, once its ticket has been
// reached: m.Clean says then whether there is nothing to copy.
func (v *Mover) Summed(m *Move) {
	if m.Kind == MoveVerify && m.Proven {
		return
	}
	sum := v.found(m)
	m.Clean = m.Proven || m.Compare && sum == m.Sum
	m.Sum, m.Summed = sum, true
}

// marks are the tickets that a stream writes to a word when it gets there.
type marks struct {
	word cuda.Ptr // in pinned memory: the last ticket that was reached
	last uint32
}

// next queues the next ticket.
func (k *marks) next(d cuda.Driver, s cuda.Stream) (uint32, error) {
	k.last++
	if k.last == 0 {
		k.last = 1 // 0 means none
	}
	if err := d.StreamWriteValue32(s, k.word, k.last); err != nil {
		return 0, fmt.Errorf("marking a copy: %w", err)
	}
	return k.last, nil
}

// NewMover makes a mover with a stream of its own. The word is 4 bytes of pinned
// memory at zero, for its tickets.
func NewMover(d cuda.Driver, word cuda.Ptr) (*Mover, error) {
	s, err := d.StreamCreate()
	if err != nil {
		return nil, err
	}
	return &Mover{driver: d, stream: s, marks: marks{word: word}}, nil
}

// Check is the error that has ended the stream, if one has.
func (v *Mover) Check() error {
	if _, err := v.driver.StreamQuery(v.stream); err != nil {
		return fmt.Errorf("a copy or a checksum has failed on its way: %w", err)
	}
	return nil
}

// Stream is the stream of the copies in, or of the checksums of what leaves.
func (v *Mover) Stream() cuda.Stream { return v.stream }

// Close gives the stream back. Nothing may be in flight.
func (v *Mover) Close() error { return v.driver.StreamDestroy(v.stream) }

// Begin undoes what has to go, maps what comes, and queues the copy of what comes in,
// or the checksum of what leaves, which is done when the word has reached the ticket;
// ticket 0 means that there is none.
func (v *Mover) Begin(m *Move) (ticket uint32, err error) {
	d := v.driver
	for _, x := range m.Unmap {
		if err := v.timed(CallUnmap, func() error { return d.Unmap(x.Base, x.Bytes) }); err != nil {
			return 0, fmt.Errorf("unmapping dead memory at %#x: %w", uint64(x.Base), err)
		}
	}
	for _, h := range m.Release {
		if err := v.timed(CallRelease, func() error { return d.MemRelease(h) }); err != nil {
			return 0, fmt.Errorf("releasing dead memory: %w", err)
		}
	}
	if m.Kind == MoveFetch || m.Kind == MoveMap || m.Kind == MovePlace || m.Kind == MoveMake {
		side := cuda.Device
		if m.Kind == MovePlace {
			side = cuda.Host
		}
		if m.Handle == 0 {
			err = v.timed(CallCreate, func() (err error) {
				m.Handle, err = d.MemCreate(m.Chunk.Bytes, side)
				return err
			})
			if errors.Is(err, cuda.ErrOutOfMemory) && side == cuda.Device {
				return 0, fmt.Errorf("%w: %d bytes: %w", ErrNoMemory, m.Chunk.Bytes, err)
			} else if err != nil {
				return 0, fmt.Errorf("%d bytes of %s memory: %w", m.Chunk.Bytes, side, err)
			}
		}
		if err := v.timed(CallMap, func() error { return d.Map(m.Chunk.Base, m.Chunk.Bytes, m.Handle) }); err != nil {
			return 0, fmt.Errorf("mapping %d bytes at %#x: %w", m.Chunk.Bytes, uint64(m.Chunk.Base), err)
		}
		if err := v.timed(CallAccess, func() error { return d.SetAccess(m.Chunk.Base, m.Chunk.Bytes) }); err != nil {
			return 0, fmt.Errorf("setting access to %d bytes at %#x: %w", m.Chunk.Bytes, uint64(m.Chunk.Base), err)
		}
	}
	if m.Kind == MoveEvict {
		if !m.Checksum && !v.verify {
			return 0, nil
		}
		if err := v.sum(m); err != nil {
			return 0, err
		}
		return v.marks.next(d, v.stream)
	}
	if len(m.Host) == 0 || len(m.Launches) > 0 {
		return 0, nil
	}
	return v.CopyIn(m)
}

// CopyIn queues the copy of what comes in, which is done when the word has reached the ticket.
func (v *Mover) CopyIn(m *Move) (ticket uint32, err error) {
	d := v.driver
	at, end := m.Chunk.Base, m.Chunk.Base+cuda.Ptr(m.Bytes)
	for _, h := range m.Host {
		n := min(h.Bytes, int64(end-at))
		if n == 0 {
			break // the allocation does not use the rest
		}
		if err := v.timed(CallCopy, func() error { return d.CopyAsync(at, h.Base, n, v.stream) }); err != nil {
			return 0, fmt.Errorf("copying %d bytes in: %w", n, err)
		}
		at += cuda.Ptr(n)
	}
	if v.verify {
		if err := v.sum(m); err != nil {
			return 0, err
		}
	}
	return v.marks.next(d, v.stream)
}

// Finish ends a move whose copy is done, or that needs none: what leaves is unmapped.
func (v *Mover) Finish(m *Move) error {
	if m.Kind != MoveEvict {
		if v.verify && len(m.Host) > 0 && len(m.Launches) == 0 {
			if sum := v.found(m); m.Summed && sum != m.Sum {
				return fmt.Errorf("%w: %s came back different from what left (%v, not %v)", ErrMismatch, m.What(), sum, m.Sum)
			}
		}
		return nil
	}
	if err := v.timed(CallUnmap, func() error { return v.driver.Unmap(m.Chunk.Base, m.Chunk.Bytes) }); err != nil {
		return fmt.Errorf("unmapping %d bytes at %#x: %w", m.Chunk.Bytes, uint64(m.Chunk.Base), err)
	}
	if m.Placed {
		if err := v.timed(CallRelease, func() error { return v.driver.MemRelease(m.Handle) }); err != nil {
			return fmt.Errorf("releasing host memory: %w", err)
		}
	}
	return nil
}
