package cuda

import (
	"encoding/binary"
	"slices"
	"time"
)

// Ptr is a device (or managed, or mapped host) virtual address.
type Ptr uint64

// Range is Bytes bytes of address space from Base.
type Range struct {
	Base  Ptr
	Bytes int64
}

// End is the first address after the range.
func (r Range) End() Ptr { return r.Base + Ptr(r.Bytes) }

// Location is a side of the bus that memory can be on.
type Location int

// The two sides.
const (
	Host Location = iota
	Device
)

func (l Location) String() string {
	if l == Host {
		return "host"
	}
	return "device"
}

// Stream, Event and Handle are opaque driver objects. Stream 0 is the legacy default stream.
type (
	Stream uintptr
	Event  uintptr
	Handle uint64 // physical memory made by MemCreate
	// Module is loaded device code, Function a kernel in it.
	Module   uintptr
	Function uintptr
)

// RecordedLaunch is a launch as it was made, with all that makes it again.
type RecordedLaunch struct {
	Seq         uint64 // of the operation, as the launch hook counts them
	Function    Function
	Grid, Block [3]uint32
	Cluster     [3]uint32 // blocks of a cluster; zeros for none
	// ClusterPolicy is the CUclusterSchedulingPolicy, 0 for the driver's own.
	ClusterPolicy uint32
	SharedBytes   uint32   // of dynamic shared memory
	Starts        []uint32 // of each parameter, the first byte in Params
	Params        []byte   // as CU_LAUNCH_PARAM_BUFFER_POINTER takes them
	Addresses     []uint32 // offsets in Params of all words that are addresses, where that is known
	Stale         []uint32 // of words that were addresses of nothing alive when it was made: what earlier launches left there
}

// Address is the address at an offset in the parameters.
func (l *RecordedLaunch) Address(offset uint32) Ptr {
	return Ptr(binary.LittleEndian.Uint64(l.Params[offset:]))
}

// WithAddress is the launch with one more word that is an address.
func (l *RecordedLaunch) WithAddress(offset uint32) *RecordedLaunch {
	c := *l
	c.Addresses = append(slices.Clone(l.Addresses), offset)
	return &c
}

// Redirected is the launch with the addresses in one range moved to another of that size.
func (l *RecordedLaunch) Redirected(from Range, to Ptr) *RecordedLaunch {
	moved := l
	for _, at := range l.Addresses {
		p := l.Address(at)
		if p < from.Base || p >= from.End() {
			continue
		}
		if moved == l {
			c := *l
			c.Params = slices.Clone(c.Params)
			moved = &c
		}
		binary.LittleEndian.PutUint64(moved.Params[at:], uint64(to+(p-from.Base)))
	}
	return moved
}

// Advice is a hint about a managed range.
type Advice int

// The hints Penstock uses.
const (
	SetReadMostly Advice = iota
	UnsetReadMostly
	SetPreferredLocation
	UnsetPreferredLocation
	SetAccessedBy
	UnsetAccessedBy
)

// DeviceInfo describes the GPU a Driver is bound to.
type DeviceInfo struct {
	Ordinal           int
	Name              string
	UUID              string
	TotalBytes        int64
	ComputeMajor      int
	ComputeMinor      int
	Multiprocessors   int    // 0 when unknown
	DriverVersion     string // of the kernel driver, such as "580.159.03"; empty when unknown
	CUDAVersion       int    // 13000 for 13.0
	SimulatedHardware bool
}

// Capabilities says what this driver and card can do. It is probed once, when
// the driver is opened, and is a plain value from then on.
type Capabilities struct {
	ManagedMemory           bool // cuMemAllocManaged
	ConcurrentManagedAccess bool // CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: false under WSL
	PageableMemoryAccess    bool // HMM or ATS
	VirtualMemory           bool // cuMemCreate and friends
	PrefetchBatch           bool // cuMemPrefetchBatchAsync (13.0)
	DiscardBatch            bool // cuMemDiscardBatchAsync (13.0)
	StreamMemOps            bool // cuStreamWaitValue32 / cuStreamWriteValue32
	FunctionParamInfo       bool // cuFuncGetParamInfo (12.4)
	HostNUMA                bool // physical host memory through cuMemCreate
	Kernels                 bool // device code of our own: LoadModule and Launch
}

// Driver is the part of the CUDA driver that Penstock uses, on one device. The
// real driver and the simulated GPU of cuda/sim implement it. Every error is a
// *Error that carries the CUDA name. Methods may be called from several
// threads; each thread calls BindThread first.
type Driver interface {
	Info() DeviceInfo
	Capabilities() Capabilities
	// BindThread makes the device's primary context current on the calling OS thread.
	BindThread() error
	// Now is the driver's clock: monotonic time, virtual in the simulator.
	Now() time.Duration
	// MemInfo reports free and total device memory in bytes.
	MemInfo() (free, total int64, err error)

	MemAlloc(bytes int64) (Ptr, error)
	MemFree(p Ptr) error
	// HostAlloc returns pinned host memory, of zeros, that the device can access at the same address.
	HostAlloc(bytes int64) (Ptr, error)
	HostFree(p Ptr) error
	// HostRegister pins host memory that the caller mapped; the device can
	// access it at the same address until HostUnregister. Both ends are at page boundaries.
	HostRegister(p Ptr, bytes int64) error
	HostUnregister(p Ptr) error
	// AllocationAt is the allocation that p lies in, whoever in this process made it, when kernels of
	// this device can read it at these addresses: pinned host memory, managed memory, and memory of the
	// device that was allocated as a whole. Not what is mapped piece by piece (AddressReserve), which
	// whoever mapped it may unmap at any time.
	AllocationAt(p Ptr) (r Range, ok bool)

	// MemAllocManaged returns unified memory attached globally. Nothing is resident until touched or prefetched.
	MemAllocManaged(bytes int64) (Ptr, error)
	// Prefetch migrates managed ranges to a side, in order on the stream.
	Prefetch(ranges []Range, to Location, s Stream) error
	// Discard tells the driver that the contents of managed ranges are dead. The
	// caller guarantees that no unfinished work touches them; the next write or
	// prefetch brings a range back to life with unspecified contents.
	Discard(ranges []Range, s Stream) error
	Advise(r Range, a Advice, l Location) error

	StreamCreate() (Stream, error) // non-blocking
	StreamDestroy(s Stream) error
	StreamSynchronize(s Stream) error
	Synchronize() error // waits for all work of the process on the device
	StreamQuery(s Stream) (done bool, err error)
	StreamCapturing(s Stream) bool // what is put on it becomes part of a graph
	StreamWaitEvent(s Stream, e Event) error
	EventCreate() (Event, error)
	EventDestroy(e Event) error
	EventRecord(e Event, s Stream) error
	EventQuery(e Event) (done bool, err error)
	EventSynchronize(e Event) error

	// CopyAsync copies bytes from src to dst (any of device, managed, pinned), in order on the stream.
	CopyAsync(dst, src Ptr, bytes int64, s Stream) error
	// ZeroAsync fills device memory with zeros, in order on the stream.
	ZeroAsync(p Ptr, bytes int64, s Stream) error
	// StreamWriteValue32 writes v to p (device or pinned memory, a multiple of 4)
	// after everything queued on the stream before it, which is then visible to
	// whoever sees v.
	StreamWriteValue32(s Stream, p Ptr, v uint32) error

	// LoadModule loads device code: PTX text, which the driver compiles. Loading
	// may wait for the device.
	LoadModule(image []byte) (Module, error)
	UnloadModule(m Module) error
	// ModuleFunction finds a kernel of a module by its name.
	ModuleFunction(m Module, name string) (Function, error)
	// Launch queues a kernel, all of whose parameters are 8 bytes wide, in order
	// on the stream. It is not seen by the launch hook.
	Launch(f Function, grid, block [3]uint32, s Stream, args ...uint64) error
	// LaunchAgain queues a launch that the program has made, on another stream. It is not seen by the launch hook.
	LaunchAgain(l *RecordedLaunch, s Stream) error

	// Virtual memory management: physical handles, reserved ranges, mappings.
	// On the host (HostNUMA) kernels and copies reach mapped memory over the bus.
	MemCreate(bytes int64, l Location) (Handle, error)
	MemRelease(h Handle) error
	AddressReserve(bytes, align int64, hint Ptr) (Ptr, error)
	AddressFree(p Ptr, bytes int64) error
	Map(p Ptr, bytes int64, h Handle) error
	Unmap(p Ptr, bytes int64) error
	SetAccess(p Ptr, bytes int64) error
	// Granularity is the smallest unit of MemCreate and Map in bytes.
	Granularity() int64
}
