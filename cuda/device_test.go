//go:build cgo && linux

package cuda

import (
	"errors"
	"runtime"
	"testing"
	"unsafe"
)

// device opens the real GPU, or skips. These tests use at most 64 MiB of managed memory.
func device(t *testing.T) *Native {
	t.Helper()
	n, err := OpenNative(Options{ManagedLimitBytes: 64 << 20})
	if err != nil {
		t.Skipf("no GPU here: %v", err)
	}
	runtime.LockOSThread()
	check1(t, n.BindThread())
	t.Cleanup(func() {
		runtime.UnlockOSThread()
		if n.ManagedBytes() != 0 {
			t.Errorf("%d bytes of managed memory left", n.ManagedBytes())
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// bytesAt is pinned or managed memory seen from the CPU.
func bytesAt(p Ptr, bytes int64) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), bytes)
}

func newStream(t *testing.T, n *Native) Stream {
	t.Helper()
	s := must[Stream](t)(n.StreamCreate())
	t.Cleanup(func() { check1(t, n.StreamDestroy(s)) })
	return s
}

func pinned(t *testing.T, n *Native, bytes int64) Ptr {
	t.Helper()
	p := must[Ptr](t)(n.HostAlloc(bytes))
	t.Cleanup(func() { check1(t, n.HostFree(p)) })
	return p
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i>>12)*31 + byte(i) + seed
	}
}

func expectFilled(t *testing.T, b []byte, seed byte) {
	t.Helper()
	for i := range b {
		if want := byte(i>>12)*31 + byte(i) + seed; b[i] != want {
			t.Fatalf("byte %d is %d, want %d", i, b[i], want)
		}
	}
}

func TestDeviceManagedKeepsItsBytes(t *testing.T) {
	n := device(t)
	if err := ManagedEngineError(n.Capabilities()); err != nil {
		t.Skip(err)
	}
	const bytes, half = 32 << 20, 16 << 20
	s := newStream(t, n)
	in, out := pinned(t, n, bytes), pinned(t, n, bytes)
	m := must[Ptr](t)(n.MemAllocManaged(bytes))
	defer func() { check1(t, n.MemFree(m)) }()
	if _, err := n.MemAllocManaged(64 << 20); !errors.Is(err, ErrManagedLimit) {
		t.Errorf("past the limit: %v", err)
	}
	ranges := []Range{{m, half}, {m + half, half}}
	fill(bytesAt(in, bytes), 7)
	check1(t, n.Prefetch(ranges, Device, s))
	check1(t, n.CopyAsync(m, in, bytes, s))
	for range 2 { // through both sides, and one range alone
		check1(t, n.Prefetch(ranges, Host, s))
		check1(t, n.Prefetch(ranges[:1], Device, s))
	}
	check1(t, n.CopyAsync(out, m, bytes, s))
	check1(t, n.StreamSynchronize(s))
	expectFilled(t, bytesAt(out, bytes), 7)

	// Read-duplication, and its free drop.
	whole := Range{m, bytes}
	check1(t, n.Advise(whole, SetReadMostly, Device))
	check1(t, n.Prefetch([]Range{whole}, Device, s))
	check1(t, n.Advise(whole, UnsetReadMostly, Device))
	check1(t, n.Advise(whole, SetPreferredLocation, Device))
	check1(t, n.Advise(whole, UnsetPreferredLocation, Device))
	check1(t, n.Advise(whole, SetAccessedBy, Device))
	check1(t, n.Advise(whole, UnsetAccessedBy, Device))
	check1(t, n.StreamSynchronize(s))
	expectFilled(t, bytesAt(m, bytes), 7)
}

func TestDeviceDiscardedMemoryLivesAgain(t *testing.T) {
	n := device(t)
	if !n.Capabilities().DiscardBatch {
		t.Skip("this driver has no discard")
	}
	const bytes = 8 << 20
	s := newStream(t, n)
	in, out := pinned(t, n, bytes), pinned(t, n, bytes)
	m := must[Ptr](t)(n.MemAllocManaged(bytes))
	defer func() { check1(t, n.MemFree(m)) }()
	r := []Range{{m, bytes / 2}, {m + bytes/2, bytes / 2}}
	fill(bytesAt(in, bytes), 3)
	check1(t, n.Prefetch(r, Device, s))
	check1(t, n.Discard(r, s))
	check1(t, n.Prefetch(r, Host, s))
	check1(t, n.DiscardAndPrefetch(r, Device, s))
	check1(t, n.CopyAsync(m, in, bytes, s))
	check1(t, n.CopyAsync(out, m, bytes, s))
	check1(t, n.StreamSynchronize(s))
	expectFilled(t, bytesAt(out, bytes), 3)
}

func TestDeviceVirtualMemory(t *testing.T) {
	n := device(t)
	if !n.Capabilities().VirtualMemory {
		t.Skip("no virtual memory management")
	}
	g := n.Granularity()
	s := newStream(t, n)
	in, out := pinned(t, n, g), pinned(t, n, g)
	base := must[Ptr](t)(n.AddressReserve(2*g, 0, 0))
	defer func() { check1(t, n.AddressFree(base, 2*g)) }()
	h := must[Handle](t)(n.MemCreate(g, Device))
	defer func() { check1(t, n.MemRelease(h)) }()
	fill(bytesAt(in, g), 9)
	// Written at one address, read at another: the bytes are the handle's.
	for i, at := range []Ptr{base, base + Ptr(g)} {
		check1(t, n.Map(at, g, h))
		check1(t, n.SetAccess(at, g))
		if i == 0 {
			check1(t, n.CopyAsync(at, in, g, s))
		} else {
			check1(t, n.CopyAsync(out, at, g, s))
		}
		check1(t, n.StreamSynchronize(s))
		check1(t, n.Unmap(at, g))
	}
	expectFilled(t, bytesAt(out, g), 9)
	if n.Capabilities().HostNUMA {
		check1(t, n.MemRelease(must[Handle](t)(n.MemCreate(g, Host))))
	}
}

func TestDeviceEventsOrderStreams(t *testing.T) {
	n := device(t)
	const bytes = 16 << 20
	a, b := newStream(t, n), newStream(t, n)
	in, out := pinned(t, n, bytes), pinned(t, n, bytes)
	m := must[Ptr](t)(n.MemAlloc(bytes))
	defer func() { check1(t, n.MemFree(m)) }()
	e := must[Event](t)(n.EventCreate())
	defer func() { check1(t, n.EventDestroy(e)) }()
	fill(bytesAt(in, bytes), 1)
	check1(t, n.CopyAsync(m, in, bytes, a))
	check1(t, n.EventRecord(e, a))
	check1(t, n.StreamWaitEvent(b, e))
	check1(t, n.CopyAsync(out, m, bytes, b))
	check1(t, n.StreamSynchronize(b))
	for _, query := range []func() (bool, error){func() (bool, error) { return n.EventQuery(e) }, func() (bool, error) { return n.StreamQuery(b) }} {
		if done, err := query(); !done || err != nil {
			t.Errorf("done %v, %v", done, err)
		}
	}
	check1(t, n.EventSynchronize(e))
	expectFilled(t, bytesAt(out, bytes), 1)
	free, total, err := n.MemInfo()
	if err != nil || free <= 0 || free > total || total > n.Info().TotalBytes {
		t.Errorf("free %d of %d (device %d), %v", free, total, n.Info().TotalBytes, err)
	}
	if _, err := n.MemAlloc(1 << 50); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("a pebibyte: %v", err)
	}
	t.Logf("%+v\n%+v", n.Info(), n.Capabilities())
}
