//go:build cgo && linux

package cuda

// #include "libcuda.h"
import "C"

import (
	"fmt"
	"os"
	"time"
	"unsafe"
)

const defaultLibrary = "libcuda.so.1"

// CU_DEVICE_ATTRIBUTE_* numbers.
const (
	attrMultiprocessors   = 16
	attrComputeMajor      = 75
	attrComputeMinor      = 76
	attrManagedMemory     = 83
	attrPageableAccess    = 88
	attrConcurrentManaged = 89
	attrVirtualMemory     = 102
	attrFileDescriptors   = 103 // of physical memory
	attrHostNUMA          = 134
	attrHostNUMAVirtual   = 141
)

// Open loads the CUDA driver, takes the device's primary context and probes
// what it can do. It changes nothing on the calling thread. Errors are *OpenError.
func Open(o Options) (Driver, error) {
	n, err := OpenNative(o)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// OpenNative is Open with the concrete type, for what only the real driver has.
func OpenNative(o Options) (*Native, error) {
	n := &Native{fn: (*C.psk_driver)(C.calloc(1, C.sizeof_psk_driver)), start: time.Now()}
	n.managed.limitBytes = o.ManagedLimitBytes
	n.exportable = o.Exportable
	if err := n.prepare(o); err != nil {
		C.free(unsafe.Pointer(n.fn))
		return nil, err
	}
	if o.Exportable && n.attribute(attrFileDescriptors) == 0 {
		C.free(unsafe.Pointer(n.fn))
		return nil, &OpenError{Reason: ErrUnavailable, What: "this card or driver gives no file descriptors of its memory, so that tensors cannot be sent to other processes",
			Do: "run without PENSTOCK_IPC (--ipc)"}
	}
	if err := check(C.psk_cuDevicePrimaryCtxRetain(n.fn, &n.context, n.device), "cuDevicePrimaryCtxRetain"); err != nil {
		C.free(unsafe.Pointer(n.fn))
		return nil, &OpenError{Reason: ErrUnavailable, What: fmt.Sprintf("no context on device %d (%v)", o.Ordinal, err),
			Do: "check that the GPU is healthy, not in exclusive use and not out of memory (nvidia-smi)", Cause: err}
	}
	return n, nil
}

// Probe is what Open would find, without taking a context: it costs no device memory.
func Probe(o Options) (Survey, error) {
	n := &Native{fn: (*C.psk_driver)(C.calloc(1, C.sizeof_psk_driver))}
	defer C.free(unsafe.Pointer(n.fn))
	if err := n.prepare(o); err != nil {
		return Survey{}, err
	}
	return Survey{Devices: n.devices, Info: n.info, Capabilities: n.caps}, nil
}

// prepare does all of Open but take the context.
func (n *Native) prepare(o Options) error {
	missing, err := n.load(o)
	if err != nil {
		return err
	}
	// The version comes first: it explains everything else that is missing.
	var version C.int
	if err := check(C.psk_cuDriverGetVersion(n.fn, &version), "cuDriverGetVersion"); err != nil {
		return initError(err.(*Error))
	}
	if version < MinimumCUDAVersion {
		return &OpenError{Reason: ErrDriverTooOld,
			What: fmt.Sprintf("the NVIDIA driver offers CUDA %s", FormatCUDAVersion(int(version))),
			Do:   fmt.Sprintf("install driver 525 or newer (CUDA %s; 580 is best)", FormatCUDAVersion(MinimumCUDAVersion))}
	}
	if missing != "" {
		return &OpenError{Reason: ErrDriverTooOld, What: "the CUDA driver has no function " + missing,
			Do: "install an NVIDIA driver of version 525 or newer (580 is best)"}
	}
	if err := check(C.psk_cuInit(n.fn, 0), "cuInit"); err != nil {
		return initError(err.(*Error))
	}
	n.info.CUDAVersion = int(version)
	n.info.DriverVersion = KernelDriverVersion()
	if err := n.selectDevice(o.Ordinal); err != nil {
		return err
	}
	n.probe()
	return nil
}

// load fills the function table and returns the first required function that is missing.
func (n *Native) load(o Options) (missing string, err error) {
	library := o.Library
	if library == "" {
		library = defaultLibrary
	}
	handle, why := openLibrary(library)
	resolve := o.Resolve
	if resolve == nil {
		if handle == nil {
			return "", &OpenError{Reason: ErrNoLibrary, What: library + " not found",
				Do: "install the NVIDIA driver, or use `penstock simulate`", Cause: fmt.Errorf("dlopen: %s", why)}
		}
		resolve = func(name string) unsafe.Pointer { return lookUp(handle, name) }
	}
	found := 0
	for i := C.int(0); i < C.PSK_SYMBOLS; i++ {
		symbol := C.psk_symbol_at(i)
		name := C.GoString(symbol.name)
		p := resolve(name)
		if p != nil {
			C.psk_set(n.fn, i, p)
			found++
		} else if symbol.required != 0 && missing == "" {
			missing = name
		}
	}
	if n.fn.cuInit == nil || n.fn.cuDriverGetVersion == nil {
		if handle == nil {
			return "", &OpenError{Reason: ErrNoLibrary, What: library + " not found",
				Do: "install the NVIDIA driver, or use `penstock simulate`", Cause: fmt.Errorf("dlopen: %s", why)}
		}
		return "", &OpenError{Reason: ErrUnavailable, What: fmt.Sprintf("%s is not a CUDA driver library (%d of its functions found)", library, found),
			Do: "check what LD_LIBRARY_PATH and LD_PRELOAD put in its place"}
	}
	return missing, nil
}

// openLibrary loads a library for good.
func openLibrary(path string) (handle unsafe.Pointer, why string) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var text *C.char
	handle = C.psk_open(p, &text)
	if handle == nil {
		return nil, C.GoString(text)
	}
	return handle, ""
}

func lookUp(handle unsafe.Pointer, name string) unsafe.Pointer {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return C.dlsym(handle, s)
}

// initError explains a failed cuInit.
func initError(e *Error) error {
	o := &OpenError{Reason: ErrUnavailable, Cause: e}
	switch e.Code {
	case codeNoDevice:
		o.Reason, o.What, o.Do = ErrNoDevice, "the driver sees no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES, or use `penstock simulate`"
	case codeStubLibrary:
		o.Reason, o.What, o.Do = ErrNoLibrary, "libcuda.so.1 is the toolkit's stub, not a driver", "take the stubs folder out of LD_LIBRARY_PATH"
	case codeNewerDriver:
		o.Reason, o.What, o.Do = ErrDriverTooOld, "the NVIDIA driver is too old", "install driver 525 or newer (580 is best)"
	case codeMismatch:
		o.What, o.Do = "libcuda.so.1 and the NVIDIA kernel module are of different versions", "reload the kernel module or reboot after a driver update"
	default:
		o.What, o.Do = fmt.Sprintf("the CUDA driver does not start (%v)", e), "check `nvidia-smi`, /dev/nvidia* and, in a container, that the GPU is passed in"
	}
	return o
}

func (n *Native) selectDevice(ordinal int) error {
	var count C.int
	if err := check(C.psk_cuDeviceGetCount(n.fn, &count), "cuDeviceGetCount"); err != nil {
		return initError(err.(*Error))
	}
	if count == 0 {
		return initError(NewError(codeNoDevice, "cuDeviceGetCount"))
	}
	if ordinal < 0 || ordinal >= int(count) {
		what := fmt.Sprintf("device %d does not exist: this process sees %d", ordinal, int(count))
		if v, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
			what += fmt.Sprintf(" (CUDA_VISIBLE_DEVICES=%s)", v)
		}
		return &OpenError{Reason: ErrNoDevice, What: what, Do: fmt.Sprintf("choose a device from 0 to %d", int(count)-1)}
	}
	if err := check(C.psk_cuDeviceGet(n.fn, &n.device, C.int(ordinal)), "cuDeviceGet"); err != nil {
		return initError(err.(*Error))
	}
	n.devices, n.info.Ordinal = int(count), ordinal
	var name [256]C.char
	if C.psk_cuDeviceGetName(n.fn, &name[0], C.int(len(name)-1), n.device) == 0 {
		n.info.Name = C.GoString(&name[0])
	}
	var total C.size_t
	if err := check(C.psk_cuDeviceTotalMem_v2(n.fn, &total, n.device), "cuDeviceTotalMem"); err != nil {
		return initError(err.(*Error))
	}
	n.info.TotalBytes = int64(total)
	n.info.ComputeMajor = n.attribute(attrComputeMajor)
	n.info.ComputeMinor = n.attribute(attrComputeMinor)
	n.info.Multiprocessors = n.attribute(attrMultiprocessors)
	n.info.UUID = n.uuid()
	return nil
}

// attribute reads a device attribute; one that the driver does not know is 0.
func (n *Native) attribute(attr C.int) int {
	var v C.int
	if C.psk_cuDeviceGetAttribute(n.fn, &v, attr, n.device) != 0 {
		return 0
	}
	return int(v)
}

func (n *Native) uuid() string {
	var u [16]byte
	r := C.psk_cuDeviceGetUuid_v2(n.fn, unsafe.Pointer(&u[0]), n.device)
	if r != 0 {
		r = C.psk_cuDeviceGetUuid(n.fn, unsafe.Pointer(&u[0]), n.device)
	}
	if r != 0 {
		return ""
	}
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// probe fills the capabilities. A capability needs both the function and the
// device's or kernel driver's consent: libcuda may be newer than the kernel
// module (forward compatibility), and then exports what the module cannot do.
func (n *Native) probe() {
	f := n.fn
	kernel := driverMajor(n.info.DriverVersion)
	since13 := n.info.CUDAVersion >= 13000 && (kernel == 0 || kernel >= 580)
	c := &n.caps
	c.ManagedMemory = f.cuMemAllocManaged != nil && (f.cuMemPrefetchAsync != nil || f.cuMemPrefetchAsync_v2 != nil) &&
		(f.cuMemAdvise != nil || f.cuMemAdvise_v2 != nil) && n.attribute(attrManagedMemory) != 0
	c.ConcurrentManagedAccess = c.ManagedMemory && n.attribute(attrConcurrentManaged) != 0
	c.PageableMemoryAccess = n.attribute(attrPageableAccess) != 0
	c.PrefetchBatch = c.ConcurrentManagedAccess && since13 && f.cuMemPrefetchBatchAsync != nil
	c.DiscardBatch = c.ConcurrentManagedAccess && since13 && f.cuMemDiscardBatchAsync != nil
	c.StreamMemOps = f.cuStreamWaitValue32_v2 != nil && f.cuStreamWriteValue32_v2 != nil
	c.FunctionParamInfo = f.cuFuncGetParamInfo != nil
	c.VirtualMemory = f.cuMemCreate != nil && f.cuMemRelease != nil && f.cuMemAddressReserve != nil && f.cuMemAddressFree != nil &&
		f.cuMemMap != nil && f.cuMemUnmap != nil && f.cuMemSetAccess != nil && n.attribute(attrVirtualMemory) != 0
	if c.VirtualMemory {
		prop := n.physical(Device)
		var g C.size_t
		if C.psk_cuMemGetAllocationGranularity(f, &g, &prop, 0 /* minimum */) == 0 {
			n.granule = int64(g)
		}
		c.VirtualMemory = n.granule > 0
	}
	if node := n.attribute(attrHostNUMA); node > 0 { // -1: no NUMA; then the only node is 0
		n.numa = C.int(node)
	}
	if c.VirtualMemory && n.attribute(attrHostNUMAVirtual) != 0 {
		prop := n.physical(Host)
		var g C.size_t
		c.HostNUMA = C.psk_cuMemGetAllocationGranularity(f, &g, &prop, 0) == 0
		n.granule = max(n.granule, int64(g))
	}
	c.Kernels = f.cuModuleLoadDataEx != nil && f.cuModuleGetFunction != nil && f.cuLaunchKernel != nil
}
