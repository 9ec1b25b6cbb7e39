//go:build linux

package bpf

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/faults"
)

// DefaultRingBytes holds about 230,000 records.
const DefaultRingBytes = 16 << 20

// Options of Open. The zero value watches all processes.
type Options struct {
	Process   int    // only this process and its descendants; 0 is all
	Cgroup    string // only this control group and those below it, such as a container's; "" is all
	Attach    Attach
	RingBytes int    // a power of two, at least 64 KiB; 0 is DefaultRingBytes
	Version   string // of the driver; "" asks the loaded module
	NoBTF     bool   // take the layout from the table even where the module has type information
}

// maxSpans bounds the spans that wait to be taken.
const maxSpans = 1 << 16

// Source is the running programs. It is a faults.Source.
type Source struct {
	coverage  faults.Coverage
	layout    string
	numbering numbering

	mu        sync.Mutex
	closed    bool
	loader    *loader
	reader    *ringbuf.Reader
	record    ringbuf.Record
	processes *processes
	spans     []Span
	stats     Stats
}

// Stats counts what became of the records.
type Stats struct {
	Sent       uint64 // put into the ring by the programs
	Full       uint64 // lost: the ring was full
	Missed     uint64 // lost: the kernel skipped a program because one was running on that processor
	Unreadable uint64 // lost: the driver's memory could not be read
	Filtered   uint64 // of processes that are not asked for, dropped by the programs or here
	Mismatched uint64 // the layout contradicted itself: nothing is lost, but the processes of migrations may be wrong
	Read       uint64 // taken out of the ring
	Nonsense   uint64 // lost: read, but not understood
	SpansLost  uint64 // nobody took them with Spans
}

// Open loads the programs and attaches them. Where that is not possible the
// error is *faults.Unavailable and names what is missing.
func Open(o Options) (*Source, error) {
	if o.RingBytes == 0 {
		o.RingBytes = DefaultRingBytes
	}
	if o.RingBytes < 1<<16 || o.RingBytes > 1<<30 || bits.OnesCount(uint(o.RingBytes)) != 1 {
		return nil, fmt.Errorf("bpf: a ring of %d bytes: choose a power of two from %d to %d", o.RingBytes, 1<<16, 1<<30)
	}
	switch o.Attach {
	case "", AttachKprobe, AttachFentry:
	default:
		return nil, fmt.Errorf("bpf: unknown way in %q: choose %s or %s", o.Attach, AttachKprobe, AttachFentry)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	// Before Linux 5.11 maps count as locked memory. Where the limit cannot be
	// raised, the kernel's refusal says so.
	_ = rlimit.RemoveMemlock()
	if missing := firstMissing(Needs(o)); missing != nil {
		return nil, missing
	}
	s := &Source{processes: newProcesses(o)}
	layout, err := s.chooseLayout(o)
	if err != nil {
		return nil, &faults.Unavailable{Why: err.Error(), WhatToDo: "use the driver's event queue (uvm-tools), or build the driver's module with type information (BTF)", Cause: err}
	}
	if s.loader, err = newLoader(layout, uvmDevice(), o.RingBytes); err != nil {
		return nil, refused(err)
	}
	if err := s.start(o); err != nil {
		_ = s.loader.detach()
		s.loader.close()
		return nil, refused(err)
	}
	return s, nil
}

// chooseLayout prefers what the module says of itself to the table.
func (s *Source) chooseLayout(o Options) (uvmLayout, error) {
	version := o.Version
	if version == "" {
		version = moduleVersion()
	}
	major, versionErr := branchOf(version)
	s.numbering.partitions = versionErr != nil || major >= subProcessorsFrom
	btfErr := errors.New("not asked for")
	if !o.NoBTF {
		var spec *btf.Spec
		if spec, btfErr = btf.LoadKernelModuleSpec("nvidia_uvm"); btfErr == nil {
			var l uvmLayout
			if l, btfErr = layoutFromBTF(spec); btfErr == nil {
				s.layout = "the module's type information"
				return l, nil
			}
		}
	}
	if versionErr != nil {
		return uvmLayout{}, fmt.Errorf("the driver's version cannot be told (%w) and its type information is no help (%w)", versionErr, btfErr)
	}
	l, err := layoutOf(major)
	if err != nil {
		return l, fmt.Errorf("%w, and the module's type information is no help (%w)", err, btfErr)
	}
	s.layout = fmt.Sprintf("the table for driver %d", major)
	return l, nil
}

// start attaches to what can be attached to; only the first point is indispensable.
func (s *Source) start(o Options) error {
	s.coverage = faults.Coverage{Source: "ebpf", Kinds: faults.Basic | faults.CPUFaults, System: o.Process == 0}
	how := o.Attach
	for i, p := range points {
		var err error
		if how != "" {
			err = s.loader.attach(p, how)
		} else if err = s.loader.attach(p, AttachKprobe); err == nil {
			how = AttachKprobe
		} else if fentry := s.loader.attach(p, AttachFentry); fentry == nil {
			how, err = AttachFentry, nil
		} else {
			err = fmt.Errorf("no kprobe (%w) and no fentry (%w)", err, fentry)
		}
		switch {
		case err == nil:
		case i == 0:
			return err
		default:
			s.lacks("%s (%v)", p.lacks, err)
		}
	}
	if err := s.loader.findSpaces(); err != nil {
		s.lacks("processes that use CUDA already are not told apart (%v)", err)
	}
	s.lacks("no end times of migrations, no thrashing, no remote mappings; faults that the driver merges are one")
	var err error
	s.reader, err = ringbuf.NewReader(s.loader.maps[uvmMapRing])
	return err
}

func (s *Source) lacks(format string, args ...any) {
	s.coverage.Lacks = append(s.coverage.Lacks, fmt.Sprintf(format, args...))
}

// Layout says where the knowledge of the driver's structures came from.
func (s *Source) Layout() string { return s.layout }

// Coverage implements faults.Source.
func (s *Source) Coverage() faults.Coverage { return s.coverage }

// Drain implements faults.Source.
func (s *Source) Drain(dst []faults.Event) []faults.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return dst
	}
	offset := clockOffset()
	s.reader.SetDeadline(time.Unix(1, 0)) // what is there, without waiting
	// At most a ring's worth: a producer that is always faster must not hold the caller.
	for range s.reader.BufferSize() / recordBytes {
		if err := s.reader.ReadInto(&s.record); err != nil {
			break
		}
		s.stats.Read++
		dst = s.take(dst, s.record.RawSample, offset)
	}
	return dst
}

func (s *Source) take(dst []faults.Event, raw []byte, offset int64) []faults.Event {
	r, err := decode(raw)
	if err != nil {
		s.stats.Nonsense++
		return dst
	}
	switch r.Kind {
	case kindSpaceBorn:
		if r.Pid == s.processes.self || !s.processes.wants(r.Pid) {
			s.ignore(r.Pid, true)
		}
	case kindSpaceGone:
		s.processes.forget(r.Pid)
		s.ignore(r.Pid, false)
	case kindEviction, kindService:
		if len(s.spans) < maxSpans {
			s.spans = append(s.spans, span(&r, offset))
		} else {
			s.stats.SpansLost++
		}
	default:
		if !s.processes.wants(r.Pid) {
			s.stats.Filtered++
			return dst
		}
		e, ok := s.numbering.event(&r, offset)
		if !ok {
			s.stats.Nonsense++
			return dst
		}
		if s.processes.process != 0 && e.Process == s.processes.process {
			e.Process = 0 // the process that is listened to
		}
		dst = append(dst, e)
	}
	return dst
}

// ignore tells the programs whom not to send. That it can fail (a full map)
// costs work and nothing else.
func (s *Source) ignore(pid uint32, yes bool) {
	if s.loader == nil {
		return
	}
	if m := s.loader.maps[uvmMapUnwanted]; yes {
		_ = m.Put(pid, uint8(1))
	} else {
		_ = m.Delete(pid)
	}
}

// Spans appends the driver's own work since the last call: evictions and runs of its fault handler.
func (s *Source) Spans(dst []Span) []Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	dst = append(dst, s.spans...)
	s.spans = s.spans[:0]
	return dst
}

// Flush implements faults.Source: the programs hold nothing back.
func (s *Source) Flush() error { return nil }

// Lost implements faults.Source.
func (s *Source) Lost() faults.Lost {
	st := s.Stats()
	return faults.Lost{Driver: st.Full + st.Missed + st.Unreadable, Reader: st.Nonsense}
}

// Stats counts what became of the records; after Close, up to then.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.stats
	}
	return s.counted()
}

// counted adds the programs' own counts.
func (s *Source) counted() Stats {
	st := s.stats
	for i, to := range []*uint64{&st.Sent, &st.Full, &st.Filtered, &st.Unreadable, &st.Mismatched} {
		var perCPU []uint64
		if err := s.loader.maps[uvmMapCounters].Lookup(uint32(i), &perCPU); err != nil {
			continue
		}
		for _, n := range perCPU {
			*to += n
		}
	}
	st.Missed = s.loader.missed()
	return st
}

// Close ends the programs. Drain before it, or what is in the ring is gone.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := s.loader.detach()
	s.stats = s.counted()
	s.closed = true
	err = errors.Join(err, s.reader.Close())
	s.loader.close()
	return err
}

// clockOffset takes the programs' clock to that of events. The two cannot be read
// at once: of a few tries the one with the least time between them counts.
func clockOffset() (offset int64) {
	const tries, good = 8, 2000 // ns
	for i, least := 0, int64(math.MaxInt64); i < tries && least > good; i++ {
		before := monotonic()
		raw := faults.Clock()
		after := monotonic()
		if gap := after - before; gap < least {
			least, offset = gap, raw-(before+gap/2)
		}
	}
	return offset
}

// monotonic reads the clock of the programs.
func monotonic() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return t.Nano()
}

// uvmDevice is the number of /dev/nvidia-uvm as the kernel itself writes it: the
// major number above 20 bits of minor.
func uvmDevice() uint32 {
	devices, _ := os.ReadFile("/proc/devices")
	return majorIn(string(devices), "nvidia-uvm") << 20
}
