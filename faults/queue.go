package faults

import (
	"encoding/binary"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ioctl numbers: bare integers, without direction or size.
const (
	ioctlInit    = 56 // on the tools node
	ioctlEnable  = 58
	ioctlDisable = 59
	ioctlFlush   = 67 // on the address space
)

// DefaultEntries holds the faults of about 64 MiB arriving page by page between two calls of Drain, many times over.
const DefaultEntries = 1 << 16

// Options of Open. The zero value is right for the engine.
type Options struct {
	Entries int // of the ring, a power of two; 0 is DefaultEntries
	// SpaceFD is the descriptor of the address space to listen to, where it is
	// known; 0 takes the first of libcuda's that accepts a listener. A process can
	// have several.
	SpaceFD int
	// Kinds of event to ask for; 0 is what the engine needs, GPU faults and migrations.
	Kinds Kinds
}

// Kinds is a set of kinds of event.
type Kinds uint64

// Sets of kinds. The driver delivers a fault at once and a migration when it notices its end.
const (
	Faults     Kinds = 1 << typeGPUFault
	Migrations Kinds = 1 << typeMigration
	CPUFaults  Kinds = 1 << typeCPUFault
	Thrashing  Kinds = 1 << typeThrashing
	Remote     Kinds = 1 << typeMapRemote

	Basic      = Faults | Migrations
	Everything = Basic | CPUFaults | Thrashing | Remote
)

// Queue is an open event queue of one address space's unified memory. It is a Source.
type Queue struct {
	kernel      kernel
	originNanos int64

	flushing sync.Mutex // taken before mu; while it is held spaceFD stays open
	mu       sync.Mutex
	closed   bool
	kinds    Kinds
	toolsFD  int
	spaceFD  int // our duplicate of libcuda's descriptor
	ring     *ring
	dropped  uint64 // as it was at Close
	unknown  uint64
	queue    []byte
	controls []byte
}

// kernel is the part of the operating system that a Queue talks to; a seam for tests.
type kernel interface {
	openTools() (fd int, err error)
	// spaces lists descriptors of /dev/nvidia-uvm in this process.
	spaces() ([]int, error)
	ioctl(fd int, number uintptr, block []byte) error
	duplicate(fd int) (int, error)
	close(fd int) error
	environment() Environment
}

// Clock reads CLOCK_MONOTONIC_RAW in nanoseconds, the clock of the events.
func Clock() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &t) != nil {
		return 0
	}
	return t.Nano()
}

// Open starts listening to this process's unified memory. CUDA must have made
// its first context. When the queue cannot be had the error is *Unavailable.
func Open(o Options) (*Queue, error) { return open(o, linux{}) }

func open(o Options, k kernel) (_ *Queue, err error) {
	entries := o.Entries
	if entries == 0 {
		entries = DefaultEntries
	}
	if entries < 2 || entries > 1<<24 || entries&(entries-1) != 0 {
		return nil, fmt.Errorf("faults: a ring of %d entries: choose a power of two from 2 to %d", entries, 1<<24)
	}
	kinds := o.Kinds
	if kinds == 0 {
		kinds = Basic
	}
	if kinds&^Everything != 0 {
		return nil, fmt.Errorf("faults: kinds %#x of event: choose among %#x", uint64(kinds), uint64(Everything))
	}
	s := &Queue{kernel: k, kinds: kinds, toolsFD: -1, spaceFD: -1, originNanos: Clock()}
	if s.toolsFD, err = k.openTools(); err != nil {
		return nil, openFailure(err, k.environment())
	}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if err := s.mapRing(entries); err != nil {
		return nil, &Unavailable{Why: "no memory for the event ring (" + err.Error() + ")", WhatToDo: "raise the limit on locked memory (ulimit -l)", Cause: err}
	}
	if err := s.bind(o.SpaceFD); err != nil {
		return nil, err
	}
	if st, err := s.call(s.toolsFD, ioctlEnable, s.maskBlock(), 8); err != nil || st != statusOK {
		return nil, refused("switching the events on", st, err)
	}
	return s, nil
}

// anonymous maps memory that the driver may pin: after a fork, a write would move ours elsewhere.
func anonymous(bytes int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, err
	}
	return b, unix.Madvise(b, unix.MADV_DONTFORK)
}

func (s *Queue) mapRing(entries int) (err error) {
	page := unix.Getpagesize()
	if s.queue, err = anonymous((entries*EntryBytes + page - 1) / page * page); err != nil {
		return err
	}
	if s.controls, err = anonymous(page); err != nil {
		return err
	}
	s.ring, err = newRing(s.queue[:entries*EntryBytes], s.controls)
	return err
}

// bind finds the descriptor of libcuda's address space. libcuda opens the
// device more than once; only the right one accepts a tracker, and a refusal
// has no effect.
func (s *Queue) bind(known int) error {
	fds, err := s.kernel.spaces()
	if known > 0 {
		fds = []int{known}
	}
	if err != nil {
		return &Unavailable{Why: "cannot list this process's descriptors (" + err.Error() + ")", WhatToDo: "mount /proc", Cause: err}
	}
	var last error
	for _, fd := range fds {
		block := initBlock(s.queue, len(s.ring.queue)/EntryBytes, s.controls, fd)
		if err := s.kernel.ioctl(s.toolsFD, ioctlInit, block); err != nil {
			last = refused("binding the event queue", 0, err)
			continue
		}
		if st := initStatus(block); st != statusOK {
			last = refused("binding the event queue", st, nil)
			continue
		}
		if s.spaceFD, err = s.kernel.duplicate(fd); err != nil {
			return fmt.Errorf("faults: duplicate the descriptor of the address space: %w", err)
		}
		return nil
	}
	if last != nil {
		if s.kernel.environment().GVisor {
			return openFailure(last, s.kernel.environment())
		}
		return last
	}
	return &Unavailable{Why: "CUDA has made no context in this process yet", WhatToDo: "open the event queue after the first allocation"}
}

// initBlock is the parameter block of INIT_EVENT_TRACKER that every driver
// from 535 to 595 understands: 550 and 555 read a requested version at 52, 560
// at 48, and the others nothing there.
func initBlock(queue []byte, entries int, control []byte, fd int) []byte {
	b := make([]byte, 64)
	le := binary.LittleEndian
	le.PutUint64(b[0:], uint64(uintptr(unsafe.Pointer(&queue[0]))))
	le.PutUint64(b[8:], uint64(entries))
	le.PutUint64(b[16:], uint64(uintptr(unsafe.Pointer(&control[0]))))
	le.PutUint32(b[44:], uint32(fd))
	le.PutUint32(b[48:], 1)
	le.PutUint32(b[52:], 1)
	return b
}

// initStatus finds the status in a block that the driver has answered: at 48,
// but at 52 for driver 560, which leaves the version at 48 as it was.
func initStatus(b []byte) uint32 {
	at48, at52 := binary.LittleEndian.Uint32(b[48:]), binary.LittleEndian.Uint32(b[52:])
	if at48 == 1 && at52 != 1 {
		return at52
	}
	return at48
}

func (s *Queue) maskBlock() []byte {
	b := make([]byte, 16)
	binary.LittleEndian.PutUint64(b, uint64(s.kinds))
	return b
}

// call makes an ioctl and reads its status: the system call succeeds even when the request fails.
func (s *Queue) call(fd int, number uintptr, block []byte, statusAt int) (uint32, error) {
	if err := s.kernel.ioctl(fd, number, block); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(block[statusAt:]), nil
}

// OriginNanos is the reading of Clock when the source was opened.
func (s *Queue) OriginNanos() int64 { return s.originNanos }

// Drain appends the events that have arrived to dst. It makes no system call and never blocks.
func (s *Queue) Drain(dst []Event) []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return dst
	}
	return s.ring.drain(dst)
}

// Waiting is about how many events Drain would return.
func (s *Queue) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0
	}
	return s.ring.waiting()
}

// Dropped is how many events the driver lost because the ring was full.
func (s *Queue) Dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.dropped
	}
	return s.ring.dropped()
}

// Unknown is how many entries made no sense: not 0 means a driver that this package does not know.
func (s *Queue) Unknown() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.unknown
	}
	return s.ring.unknown
}

// Lost says how many events never reached Drain's caller.
func (s *Queue) Lost() Lost { return Lost{Driver: s.Dropped(), Reader: s.Unknown()} }

// Coverage says what this queue can see.
func (s *Queue) Coverage() Coverage {
	return Coverage{Source: "uvm-tools", Kinds: s.kinds, Lacks: []string{
		"evictions are seen as migrations to the host; memory that is discarded leaves without an event",
		"service times of faults are not in the queue",
	}}
}

// Flush makes the driver queue the events of GPU work that is already done. It
// waits for the driver, but holds nobody up who drains.
func (s *Queue) Flush() error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return fmt.Errorf("faults: flush of a closed source")
	}
	if st, err := s.call(s.spaceFD, ioctlFlush, make([]byte, 4), 0); err != nil || st != statusOK {
		return fmt.Errorf("faults: flush events: %w", reason(st, err))
	}
	return nil
}

// Close stops the events and gives everything back. Counts stay readable. It may be called again.
func (s *Queue) Close() error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	// Best effort: closing the descriptor ends the tracker anyway.
	_, _ = s.call(s.toolsFD, ioctlDisable, s.maskBlock(), 8)
	s.dropped, s.unknown = s.ring.dropped(), s.ring.unknown
	return s.release()
}

// release closes the descriptors, and only then takes the memory away.
func (s *Queue) release() error {
	var first error
	keep := func(err error) {
		if first == nil && err != nil {
			first = fmt.Errorf("faults: close: %w", err)
		}
	}
	for _, fd := range []int{s.toolsFD, s.spaceFD} {
		if fd >= 0 {
			keep(s.kernel.close(fd))
		}
	}
	for _, b := range [][]byte{s.queue, s.controls} {
		if b != nil {
			keep(unix.Munmap(b))
		}
	}
	s.toolsFD, s.spaceFD, s.queue, s.controls, s.ring = -1, -1, nil, nil, nil
	return first
}
