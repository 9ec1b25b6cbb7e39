package faults

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/penstock-gpu/penstock/trace"
)

// fakeKernel answers as a driver of one branch does. Descriptor 10 is the
// tools node; 20 is libcuda's second descriptor, 21 its address space.
type fakeKernel struct {
	branch   int // 535, 550, 560, 580
	openErr  error
	initErr  error
	dupErr   error
	fds      []int
	refuse   map[uintptr]uint32 // status by ioctl number
	env      Environment
	init     []byte // the block of the INIT that succeeded, as sent
	enabled  uint64
	disabled bool
	flushes  int
	counting bool   // the next tools descriptor is for counters: 11
	counters uint64 // that are on
	open     map[int]bool
}

func newFake(branch int) *fakeKernel {
	return &fakeKernel{branch: branch, fds: []int{20, 21}, open: map[int]bool{}, refuse: map[uintptr]uint32{}}
}

func (k *fakeKernel) openTools() (int, error) {
	if k.openErr != nil {
		return -1, k.openErr
	}
	fd := 10
	if k.counting {
		fd = 11
	}
	k.open[fd] = true
	return fd, nil
}

func (k *fakeKernel) spaces() ([]int, error) { return k.fds, nil }

func (k *fakeKernel) duplicate(fd int) (int, error) {
	if k.dupErr != nil {
		return -1, k.dupErr
	}
	k.open[fd+100] = true
	return fd + 100, nil
}

func (k *fakeKernel) close(fd int) error {
	if !k.open[fd] {
		return syscall.EBADF
	}
	delete(k.open, fd)
	return nil
}

func (k *fakeKernel) environment() Environment { return k.env }

func (k *fakeKernel) ioctl(fd int, number uintptr, b []byte) error {
	le := binary.LittleEndian
	status := k.refuse[number]
	switch {
	case fd == 11 && number == ioctlEnableCounters:
		k.counters = le.Uint64(b)
		le.PutUint32(b[8:], status)
	case number == ioctlValidate:
		if fd != 21 || le.Uint64(b) != 0x7f1000000000 {
			status = 0x1e
		}
		le.PutUint32(b[16:], status)
	case (fd == 10 || fd == 11) && number == ioctlInit:
		if k.initErr != nil {
			return k.initErr
		}
		sent := bytes.Clone(b)
		at := 48
		switch k.branch {
		case 550: // status 48, requested version 52, granted version 56
			if v := le.Uint32(b[52:]); v != 1 && v != 2 {
				status = 0x1f
			}
			le.PutUint32(b[56:], 1)
		case 560: // version 48, status 52
			if v := le.Uint32(b[48:]); v != 1 && v != 2 {
				status = 0x1f
			}
			at = 52
		}
		if own := le.Uint32(b[44:]); status == 0 && own != 21 && own != 121 {
			status = 0x16 // not an address space
		}
		if le.Uint64(b)%4096 != 0 || le.Uint64(b[16:])%4096 != 0 {
			status = 0x1e
		}
		if status == 0 {
			k.init = sent
		}
		le.PutUint32(b[at:], status)
	case fd == 10 && number == ioctlEnable:
		if k.init == nil {
			status = 0x40
		}
		k.enabled = le.Uint64(b)
		le.PutUint32(b[8:], status)
	case fd == 10 && number == ioctlDisable:
		k.disabled = le.Uint64(b) == k.enabled
		le.PutUint32(b[8:], status)
	case fd == 121 && number == ioctlFlush:
		k.flushes++
		le.PutUint32(b, status)
	default:
		return syscall.EINVAL
	}
	return nil
}

func TestQueue(t *testing.T) {
	for _, branch := range []int{535, 550, 560, 580} {
		k := newFake(branch)
		s, err := open(Options{Entries: 64}, k)
		if err != nil {
			t.Fatalf("driver %d: %v", branch, err)
		}
		if k.enabled != 0x0c {
			t.Errorf("driver %d: events %#x are on, want 0xc", branch, k.enabled)
		}
		if got := binary.LittleEndian.Uint64(k.init[8:]); got != 64 {
			t.Errorf("driver %d was told of %d entries, want 64", branch, got)
		}
		if binary.LittleEndian.Uint64(k.init) != uint64(uintptr(unsafe.Pointer(&s.queue[0]))) ||
			binary.LittleEndian.Uint64(k.init[16:]) != uint64(uintptr(unsafe.Pointer(&s.controls[0]))) {
			t.Errorf("driver %d was given other memory than is read", branch)
		}
		p := &producer{queue: s.queue[:64*EntryBytes], control: s.controls, mask: 63}
		now := Clock()
		p.send(faultEntry(2, 1, 1, 0x7f0000200000, uint64(now), 3))
		p.send(migrationEntry(2, 0, 1, 0x7f0000200000, 2<<20, uint64(now), uint64(now+1000)))
		if s.Waiting() != 2 {
			t.Errorf("driver %d: %d waiting", branch, s.Waiting())
		}
		events := s.Drain(nil)
		if len(events) != 2 || events[0].Kind != trace.KindFault || events[1].Cause != trace.CauseCoherence {
			t.Fatalf("driver %d: %+v", branch, events)
		}
		if d := events[0].Trace(s.OriginNanos()).Time; d < 0 {
			t.Errorf("driver %d: an event %v after opening", branch, d)
		}
		for range 70 {
			p.send(faultEntry(2, 1, 1, 0x1000, uint64(now), 3))
		}
		if s.Dropped() != 7 {
			t.Errorf("driver %d: %d dropped, want 7", branch, s.Dropped())
		}
		if err := s.Flush(); err != nil || k.flushes != 1 {
			t.Errorf("driver %d: flush %v, %d times", branch, err, k.flushes)
		}
		for range 2 {
			if err := s.Close(); err != nil {
				t.Errorf("driver %d: close: %v", branch, err)
			}
		}
		if len(k.open) != 0 || !k.disabled {
			t.Errorf("driver %d: left open %v, events disabled %v", branch, k.open, k.disabled)
		}
		if s.Dropped() != 7 || s.Unknown() != 0 || s.Waiting() != 0 || len(s.Drain(nil)) != 0 || s.Flush() == nil {
			t.Errorf("driver %d: a closed source: %d dropped", branch, s.Dropped())
		}
	}
}

func TestOpenRefused(t *testing.T) {
	notFound := &os.PathError{Op: "open", Path: toolsNode, Err: syscall.ENOENT}
	forbidden := &os.PathError{Op: "open", Path: toolsNode, Err: syscall.EACCES}
	tests := []struct {
		name   string
		change func(k *fakeKernel)
		why    string
		cause  error
	}{
		{"no module", func(k *fakeKernel) { k.openErr = notFound }, "module is not loaded: run `nvidia-modprobe", fs.ErrNotExist},
		{"no node", func(k *fakeKernel) { k.openErr = notFound; k.env.UVMLoaded = true }, "is missing: run `nvidia-modprobe", fs.ErrNotExist},
		{"container without node", func(k *fakeKernel) { k.openErr = notFound; k.env = Environment{UVMLoaded: true, Container: true} }, "--device", fs.ErrNotExist},
		{"container forbids", func(k *fakeKernel) { k.openErr = forbidden; k.env = Environment{UVMLoaded: true, Container: true} }, "may not open", fs.ErrPermission},
		{"forbidden", func(k *fakeKernel) { k.openErr = forbidden; k.env.UVMLoaded = true }, "chmod", fs.ErrPermission},
		{"gVisor without node", func(k *fakeKernel) { k.openErr = notFound; k.env = Environment{GVisor: true} }, "gVisor does not forward", fs.ErrNotExist},
		{"gVisor with node", func(k *fakeKernel) { k.initErr = syscall.EINVAL; k.env = Environment{GVisor: true} }, "gVisor does not forward", syscall.EINVAL},
		{"node without driver", func(k *fakeKernel) { k.openErr = syscall.ENXIO }, "no driver behind it", syscall.ENXIO},
		{"no context yet", func(k *fakeKernel) { k.fds = nil }, "no context in this process yet", nil},
		{"only the second descriptor", func(k *fakeKernel) { k.fds = []int{20} }, "NV_ILLEGAL_ACTION", Status(0x16)},
		{"filtered ioctl", func(k *fakeKernel) { k.initErr = syscall.ENOTTY }, "sandboxes", syscall.ENOTTY},
		{"no memory", func(k *fakeKernel) { k.refuse[ioctlInit] = 0x51 }, "smaller ring", Status(0x51)},
		{"events refused", func(k *fakeKernel) { k.refuse[ioctlEnable] = 0x1f }, "switching the events on failed (NV_INVALID_ARGUMENT)", Status(0x1f)},
		{"a status of the future", func(k *fakeKernel) { k.refuse[ioctlInit] = 0x7777 }, "NV_STATUS(0x7777)", Status(0x7777)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := newFake(580)
			tt.change(k)
			s, err := open(Options{Entries: 64}, k)
			var u *Unavailable
			if s != nil || !errors.As(err, &u) {
				t.Fatalf("got %v, %v", s, err)
			}
			if u.Why == "" || u.WhatToDo == "" || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), tt.why) {
				t.Errorf("%q does not contain %q", err, tt.why)
			}
			if tt.cause != nil && !errors.Is(err, tt.cause) {
				t.Errorf("%v does not wrap %v", err, tt.cause)
			}
			if len(k.open) != 0 {
				t.Errorf("left open: %v", k.open)
			}
		})
	}
}

func TestOpenFailsHalfWay(t *testing.T) {
	k := newFake(580)
	k.dupErr = syscall.EMFILE
	if _, err := open(Options{}, k); !errors.Is(err, syscall.EMFILE) || len(k.open) != 0 {
		t.Errorf("%v, left open %v", err, k.open)
	}
	for _, entries := range []int{-1, 1, 3, 1 << 25} {
		if s, err := open(Options{Entries: entries}, newFake(580)); err == nil {
			s.Close()
			t.Errorf("a ring of %d entries was taken", entries)
		}
	}
}

func TestFlushRefused(t *testing.T) {
	k := newFake(580)
	s, err := open(Options{Entries: 64}, k)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	k.refuse[ioctlFlush] = 0x40
	if err := s.Flush(); !errors.Is(err, Status(0x40)) || !strings.Contains(err.Error(), "NV_INVALID_STATE") {
		t.Errorf("flush: %v", err)
	}
}

// The real kernel: with no CUDA context in this process there is nothing to
// bind to, with or without a GPU.
func TestOpenHere(t *testing.T) {
	s, err := Open(Options{})
	var u *Unavailable
	if s != nil || !errors.As(err, &u) {
		t.Fatalf("got %v, %v", s, err)
	}
	t.Log(err)
}

func TestSpacesFindsOnlyUVM(t *testing.T) {
	f, err := os.Open("/dev/null") // a character device, but not ours
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fds, err := linux{}.spaces()
	if err != nil || len(fds) != 0 {
		t.Errorf("descriptors %v, %v", fds, err)
	}
}

func TestClock(t *testing.T) {
	a := Clock()
	if b := Clock(); a <= 0 || b < a {
		t.Errorf("clock went from %d to %d", a, b)
	}
}

func TestEnvironment(t *testing.T) {
	for version, want := range map[string]bool{
		"Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n": true,
		"Linux version 4.19.0-gvisor #1 SMP\n":                      true,
		"Linux version 6.8.0-45-generic (buildd@x) #45-Ubuntu SMP":  false,
		"": false,
	} {
		if isGVisor(version) != want {
			t.Errorf("%q: %v", version, !want)
		}
	}
	devices := "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
	if !listsDriver(devices, "nvidia-uvm") || listsDriver(devices, "nvidia-uv") || listsDriver("", "nvidia-uvm") {
		t.Error("/proc/devices is read wrongly")
	}
}
