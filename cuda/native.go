//go:build cgo && linux

package cuda

// #cgo LDFLAGS: -ldl
// #include "libcuda.h"
// static __thread uintptr_t psk_displaced; /* the context that was current before ours; 0: none */
// static void psk_displace(uintptr_t context) { psk_displaced = context; }
// static uintptr_t psk_take_displaced(void)
// {
//     uintptr_t context = psk_displaced;
//     psk_displaced = 0;
//     return context;
// }
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"
)

// Native is the real CUDA driver on one device.
type Native struct {
	fn      *C.psk_driver // written by Open only
	device  C.int
	context C.uintptr_t
	numa    C.int // the host NUMA node closest to the device
	devices int   // that this process sees
	info    DeviceInfo
	caps    Capabilities
	granule int64
	start   time.Time
	managed managedLedger

	exportable bool // physical memory
}

var _ Driver = (*Native)(nil)

// check turns a CUresult into an error that names the call.
func check(r C.psk_result, call string) error {
	if r == 0 {
		return nil
	}
	return NewError(int(r), call)
}

func invalid(call, format string, args ...any) error {
	return NewError(codeInvalidValue, call).WithDetail(fmt.Errorf(format, args...))
}

// Info describes the device.
func (n *Native) Info() DeviceInfo { return n.info }

// Capabilities says what driver and device can do.
func (n *Native) Capabilities() Capabilities { return n.caps }

// Granularity is the smallest unit of MemCreate and Map in bytes, 0 without virtual memory management.
func (n *Native) Granularity() int64 { return n.granule }

// Now is monotonic time since Open.
func (n *Native) Now() time.Duration { return time.Since(n.start) }

// BindThread makes the primary context current on the calling OS thread. The
// caller holds runtime.LockOSThread or runs in a callback from C.
func (n *Native) BindThread() error {
	var current C.uintptr_t
	if r := C.psk_cuCtxGetCurrent(n.fn, &current); r == 0 && current == n.context {
		return nil
	}
	if err := check(C.psk_cuCtxSetCurrent(n.fn, n.context), "cuCtxSetCurrent"); err != nil || current == 0 {
		return err
	}
	C.psk_displace(current)
	displacedBy.Store(n)
	displaced.Add(1)
	return nil
}

// How many threads have their context displaced, and whose functions put it back.
var (
	displaced   atomic.Int32
	displacedBy atomic.Pointer[Native]
)

// LeaveThread gives a thread of the job back the context that was current before BindThread. One that had none keeps
// the primary context, as after a call of the CUDA runtime.
func LeaveThread() {
	if displaced.Load() == 0 {
		return
	}
	if context := C.psk_take_displaced(); context != 0 {
		displaced.Add(-1)
		C.psk_cuCtxSetCurrent(displacedBy.Load().fn, context) // it was current until now; there is nobody to tell
	}
}

// Close gives the primary context back. Memory and streams made through n belong to the context and stay.
func (n *Native) Close() error {
	return check(C.psk_cuDevicePrimaryCtxRelease_v2(n.fn, n.device), "cuDevicePrimaryCtxRelease")
}

// MemInfo reports free and total device memory in bytes.
func (n *Native) MemInfo() (free, total int64, err error) {
	var f, t C.size_t
	err = check(C.psk_cuMemGetInfo_v2(n.fn, &f, &t), "cuMemGetInfo")
	return int64(f), int64(t), err
}

// MemAlloc allocates device memory.
func (n *Native) MemAlloc(bytes int64) (Ptr, error) {
	if bytes <= 0 {
		return 0, invalid("cuMemAlloc", "cannot allocate %d bytes", bytes)
	}
	var p C.uint64_t
	err := check(C.psk_relaxed_cuMemAlloc_v2(n.fn, &p, C.size_t(bytes)), "cuMemAlloc")
	return Ptr(p), err
}

// MemAllocManaged allocates unified memory, within Options.ManagedLimitBytes.
func (n *Native) MemAllocManaged(bytes int64) (Ptr, error) {
	const call = "cuMemAllocManaged"
	if bytes <= 0 {
		return 0, invalid(call, "cannot allocate %d bytes", bytes)
	}
	if err := n.managed.reserve(bytes); err != nil {
		return 0, NewError(codeOutOfMemory, call).WithDetail(err)
	}
	var p C.uint64_t
	if err := check(C.psk_relaxed_cuMemAllocManaged(n.fn, &p, C.size_t(bytes), 1 /* attach global */), call); err != nil {
		n.managed.cancel(bytes)
		return 0, err
	}
	n.managed.commit(Ptr(p), bytes)
	return Ptr(p), nil
}

// ManagedBytes is the sum of live managed memory.
func (n *Native) ManagedBytes() int64 { return n.managed.live() }

// MemFree frees device or managed memory.
func (n *Native) MemFree(p Ptr) error {
	bytes, managed := n.managed.take(p)
	err := check(C.psk_relaxed_cuMemFree_v2(n.fn, C.uint64_t(p)), "cuMemFree")
	if managed {
		if err != nil {
			n.managed.commit(p, bytes)
		} else {
			n.managed.cancel(bytes)
		}
	}
	return err
}

// HostAlloc returns pinned host memory of zeros, visible to every context at the same
// address. The driver gives out again what was freed as it is: what another library
// in the process left there would be taken for a number that the device has written.
func (n *Native) HostAlloc(bytes int64) (Ptr, error) {
	if bytes <= 0 {
		return 0, invalid("cuMemHostAlloc", "cannot allocate %d bytes", bytes)
	}
	var p C.uint64_t
	err := check(C.psk_relaxed_cuMemHostAlloc(n.fn, &p, C.size_t(bytes), 1|2 /* portable, mapped */), "cuMemHostAlloc")
	if err == nil {
		C.psk_zero(p, C.size_t(bytes))
	}
	return Ptr(p), err
}

// HostFree frees memory of HostAlloc.
func (n *Native) HostFree(p Ptr) error {
	return check(C.psk_relaxed_cuMemFreeHost(n.fn, C.uint64_t(p)), "cuMemFreeHost")
}

// HostRegister pins host memory that the caller mapped. For large amounts this
// is many times faster than HostAlloc when the pages are huge and touched.
func (n *Native) HostRegister(p Ptr, bytes int64) error {
	if bytes <= 0 {
		return invalid("cuMemHostRegister", "cannot register %d bytes", bytes)
	}
	return check(C.psk_relaxed_cuMemHostRegister_v2(n.fn, C.uint64_t(p), C.size_t(bytes), 1|2 /* portable, mapped */), "cuMemHostRegister")
}

// HostUnregister undoes HostRegister.
func (n *Native) HostUnregister(p Ptr) error {
	return check(C.psk_relaxed_cuMemHostUnregister(n.fn, C.uint64_t(p)), "cuMemHostUnregister")
}

// AllocationAt asks the driver for the allocation that p lies in.
func (n *Native) AllocationAt(p Ptr) (r Range, ok bool) {
	var m C.psk_memory
	if C.psk_memory_at(n.fn, C.uint64_t(p), &m) != 0 {
		return Range{}, false
	}
	r = Range{Base: Ptr(m.base), Bytes: int64(m.bytes)}
	switch {
	case r.Base > p || r.End() <= p || Ptr(m.at) != p:
		return Range{}, false
	case m.managed != 0 || m._type == 1:
		return r, true
	}
	return r, m._type == 2 && C.int(m.device) == C.int(n.info.Ordinal) && (m.legacy != 0 || m.pool != 0)
}

// ZeroAsync queues a fill with zeros.
func (n *Native) ZeroAsync(p Ptr, bytes int64, s Stream) error {
	if bytes < 0 {
		return invalid("cuMemsetD8Async", "cannot fill %d bytes", bytes)
	}
	return check(C.psk_cuMemsetD8Async(n.fn, C.uint64_t(p), 0, C.size_t(bytes), C.uintptr_t(s)), "cuMemsetD8Async")
}

// CopyAsync copies between any two addresses the device can reach.
func (n *Native) CopyAsync(dst, src Ptr, bytes int64, s Stream) error {
	if bytes < 0 {
		return invalid("cuMemcpyAsync", "cannot copy %d bytes", bytes)
	}
	return check(C.psk_cuMemcpyAsync(n.fn, C.uint64_t(dst), C.uint64_t(src), C.size_t(bytes), C.uintptr_t(s)), "cuMemcpyAsync")
}

// StreamCreate makes a stream that does not synchronise with the legacy default stream.
func (n *Native) StreamCreate() (Stream, error) {
	var s C.uintptr_t
	err := check(C.psk_cuStreamCreate(n.fn, &s, 1 /* non-blocking */), "cuStreamCreate")
	return Stream(s), err
}

// StreamDestroy destroys a stream; queued work still runs.
func (n *Native) StreamDestroy(s Stream) error {
	return check(C.psk_cuStreamDestroy_v2(n.fn, C.uintptr_t(s)), "cuStreamDestroy")
}

// StreamSynchronize waits for the stream's work.
func (n *Native) StreamSynchronize(s Stream) error {
	return check(C.psk_relaxed_cuStreamSynchronize(n.fn, C.uintptr_t(s)), "cuStreamSynchronize")
}

// StreamCapturing says whether what is put on the stream becomes part of a graph. Where the driver does not say, as of
// the legacy stream while another one captures, it may.
func (n *Native) StreamCapturing(s Stream) bool {
	var status C.int
	code := C.psk_cuStreamIsCapturing(n.fn, C.uintptr_t(s), &status)
	return code != C.PSK_NOT_SUPPORTED && (code != 0 || status != 0)
}

// Synchronize waits for all work on the device.
func (n *Native) Synchronize() error {
	return check(C.psk_relaxed_cuCtxSynchronize(n.fn, 0), "cuCtxSynchronize")
}

// StreamQuery says whether the stream's work is done.
func (n *Native) StreamQuery(s Stream) (bool, error) {
	return ready(C.psk_relaxed_cuStreamQuery(n.fn, C.uintptr_t(s)), "cuStreamQuery")
}

// StreamWaitEvent makes later work of the stream wait for an event.
func (n *Native) StreamWaitEvent(s Stream, e Event) error {
	return check(C.psk_cuStreamWaitEvent(n.fn, C.uintptr_t(s), C.uintptr_t(e), 0), "cuStreamWaitEvent")
}

// StreamWriteValue32 makes the device write v to p when it gets there in the
// stream, after all memory operations queued before. p is device memory or
// pinned host memory, at a multiple of 4.
func (n *Native) StreamWriteValue32(s Stream, p Ptr, v uint32) error {
	return check(C.psk_cuStreamWriteValue32_v2(n.fn, C.uintptr_t(s), C.uint64_t(p), C.uint32_t(v), 0), "cuStreamWriteValue32")
}

// EventCreate makes an event without timing, the cheapest kind.
func (n *Native) EventCreate() (Event, error) {
	var e C.uintptr_t
	err := check(C.psk_cuEventCreate(n.fn, &e, 2 /* timing disabled */), "cuEventCreate")
	return Event(e), err
}

// EventDestroy destroys an event.
func (n *Native) EventDestroy(e Event) error {
	return check(C.psk_cuEventDestroy_v2(n.fn, C.uintptr_t(e)), "cuEventDestroy")
}

// EventRecord records an event on a stream.
func (n *Native) EventRecord(e Event, s Stream) error {
	return check(C.psk_cuEventRecord(n.fn, C.uintptr_t(e), C.uintptr_t(s)), "cuEventRecord")
}

// EventQuery says whether an event has happened.
func (n *Native) EventQuery(e Event) (bool, error) {
	return ready(C.psk_relaxed_cuEventQuery(n.fn, C.uintptr_t(e)), "cuEventQuery")
}

// EventSynchronize waits for an event.
func (n *Native) EventSynchronize(e Event) error {
	return check(C.psk_relaxed_cuEventSynchronize(n.fn, C.uintptr_t(e)), "cuEventSynchronize")
}

// ready reads a query's result: "not ready" is an answer, not an error.
func ready(r C.psk_result, call string) (bool, error) {
	if r == codeNotReady {
		return false, nil
	}
	return r == 0, check(r, call)
}

// errDiscardOld is the detail of a Discard that this driver cannot do.
var errDiscardOld = errors.New("needs driver 580 (CUDA 13.0) or newer")

// errDefaultStream is the detail of a batch call on stream 0.
var errDefaultStream = errors.New("does not work on the legacy default stream: create one")

// pointer avoids arithmetic on Go pointers in callers.
func pointer[T any](s []T) *T { return unsafe.SliceData(s) }
