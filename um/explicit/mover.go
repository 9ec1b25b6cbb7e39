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

// issued is one of the launches with memory of the engine's in the place of what the job has freed.
func (m *Move) issued(i int, temps cuda.Ptr) *cuda.RecordedLaunch {
	l := m.Launches[i]
	for _, x := range m.Temps[i] {
		l = l.Redirected(x.At, temps+cuda.Ptr(x.Offset))
	}
	return l
}

// Verify carries a MoveVerify out, in scratch memory of Config.ScratchBytes, which is done when the word has reached the ticket; one that is proven
// has none where there is nothing to copy.
func (v *Mover) Verify(m *Move, scratch cuda.Ptr) (ticket uint32, err error) {
	if m.Proven {
		if len(m.Clones) == 0 {
			return 0, nil
		}
		return v.marks.next(v.driver, v.stream)
	}
	from := cuda.Range{Base: m.Chunk.Base, Bytes: m.Bytes}
	temps := scratch + cuda.Ptr(wholeUnits(m.Bytes))
	if err := v.zero(m, temps); err != nil {
		return 0, err
	}
	copies, err := v.isolate(m, temps+cuda.Ptr(m.tempsBytes()))
	defer func() {
		if err != nil {
			v.tried = nil
		}
	}()
	if err != nil {
		return 0, err
	}
	for i := range m.Launches {
		l := m.issued(i, temps).Redirected(from, scratch)
		for k, to := range copies {
			l = l.Redirected(m.Inputs[k], to)
		}
		if err := v.driver.LaunchAgain(l, v.stream); err != nil {
			return 0, fmt.Errorf("a launch that is verified: %w", err)
		}
	}
	if err := v.sumAt(m, scratch); err != nil {
		return 0, err
	}
	for k, to := range copies {
		for i, at := range []cuda.Ptr{m.Inputs[k].Base, to} {
			if err := v.kernels.Checksum(cuda.Range{Base: at, Bytes: m.Inputs[k].Bytes}, v.trial[2*k+i], v.stream); err != nil {
				return 0, err
			}
		}
	}
	return v.marks.next(v.driver, v.stream)
}

// isolate queues copies of what a trial's launches read, and answers where these are; none of a move that is no trial.
func (v *Mover) isolate(m *Move, at cuda.Ptr) (copies []cuda.Ptr, err error) {
	if !m.Isolated {
		return nil, nil
	}
	v.tried = m
	for _, r := range m.Inputs {
		if err := v.driver.CopyAsync(at, r.Base, r.Bytes, v.stream); err != nil {
			return nil, fmt.Errorf("copying what a trial reads: %w", err)
		}
		copies = append(copies, at)
		at += cuda.Ptr(wholeUnits(r.Bytes))
	}
	return copies, nil
}

// MayTry says whether a trial can be begun, in scratch memory of a size: none is under way, and there is room for copies of all that it reads.
func (v *Mover) MayTry(m *Move, scratchBytes int64) bool {
	bytes := wholeUnits(m.Bytes) + m.tempsBytes()
	for _, r := range m.Inputs {
		bytes += wholeUnits(r.Bytes)
	}
	return v.tried == nil && len(m.Inputs) <= MostTrialInputs && bytes <= scratchBytes
}

// Tried notes which inputs a trial's launches have written to, once its ticket has been reached.
func (v *Mover) Tried(m *Move) {
	for k, r := range m.Inputs {
		if v.kernels.Sum(r.Bytes, v.trial[2*k]) != v.kernels.Sum(r.Bytes, v.trial[2*k+1]) {
			m.Changed = append(m.Changed, r)
		}
	}
	v.tried = nil
}

// zero clears the scratch memory that a move's launches are given.
func (v *Mover) zero(m *Move, temps cuda.Ptr) error {
	for _, all := range m.Temps {
		for _, x := range all {
			if !x.Scratch {
				continue
			}
			if err := v.driver.ZeroAsync(temps+cuda.Ptr(x.Offset), x.At.Bytes, v.stream); err != nil {
				return fmt.Errorf("clearing scratch memory: %w", err)
			}
		}
	}
	return nil
}

// tempsBytes is how much memory a move's launches need for what they name of memory that the engine has to provide.
func (m *Move) tempsBytes() (n int64) {
	for _, all := range m.Temps {
		for _, x := range all {
			n = max(n, x.Offset+wholeUnits(x.At.Bytes))
		}
	}
	return n
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

// Make queues the launches that make a move's contents again, with scratch memory for what they make on the way, and their checksum, which has been taken when the word has reached the
// ticket. A launch that is refused is an error.
func (v *Mover) Make(m *Move, scratch cuda.Ptr) (ticket uint32, err error) {
	if err := v.zero(m, scratch); err != nil {
		return 0, err
	}
	for i := range m.Launches {
		if err := v.driver.LaunchAgain(m.issued(i, scratch), v.stream); err != nil {
			return 0, fmt.Errorf("a launch that is issued again: %w", err)
		}
	}
	if err := v.sum(m); err != nil {
		return 0, err
	}
	return v.marks.next(v.driver, v.stream)
}

// Made says whether what a move made is what left, once the ticket of its making has been reached.
func (v *Mover) Made(m *Move) bool { return v.found(m) == m.Sum }

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
