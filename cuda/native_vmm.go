//go:build cgo && linux

package cuda

// #include "libcuda.h"
import "C"

// physical describes memory on a side: on the device, or on the host node closest to it. It is not
// asked to be GPUDirect RDMA capable: a network card would reach it by its address, seen by nobody, also when it has left.
func (n *Native) physical(l Location) C.psk_alloc_prop {
	p := C.psk_alloc_prop{_type: 1 /* pinned */, location: C.psk_location{_type: C.PSK_LOCATION_DEVICE, id: n.device}}
	if n.exportable {
		p.handle_types = 1 // file descriptors
	}
	if l == Host {
		p.location = C.psk_location{_type: C.PSK_LOCATION_HOST_NUMA, id: n.numa}
	}
	return p
}

// MemCreate makes physical memory; bytes is a multiple of Granularity. Memory
// on the host is of the NUMA node closest to the device; once mapped, SetAccess
// lets kernels and copy engines reach it over the bus.
func (n *Native) MemCreate(bytes int64, l Location) (Handle, error) {
	const call = "cuMemCreate"
	if bytes <= 0 {
		return 0, invalid(call, "cannot create %d bytes", bytes)
	}
	prop := n.physical(l)
	var h C.uint64_t
	err := check(C.psk_relaxed_cuMemCreate(n.fn, &h, C.size_t(bytes), &prop), call)
	return Handle(h), err
}

// MemRelease releases physical memory; it goes when its last mapping does.
func (n *Native) MemRelease(h Handle) error {
	return check(C.psk_relaxed_cuMemRelease(n.fn, C.uint64_t(h)), "cuMemRelease")
}

// AddressReserve reserves addresses; align 0 is the driver's choice, hint 0 is anywhere.
func (n *Native) AddressReserve(bytes, align int64, hint Ptr) (Ptr, error) {
	const call = "cuMemAddressReserve"
	if bytes <= 0 || align < 0 {
		return 0, invalid(call, "cannot reserve %d bytes aligned to %d", bytes, align)
	}
	var p C.uint64_t
	err := check(C.psk_cuMemAddressReserve(n.fn, &p, C.size_t(bytes), C.size_t(align), C.uint64_t(hint), 0), call)
	return Ptr(p), err
}

// AddressFree gives reserved addresses back.
func (n *Native) AddressFree(p Ptr, bytes int64) error {
	return check(C.psk_cuMemAddressFree(n.fn, C.uint64_t(p), C.size_t(bytes)), "cuMemAddressFree")
}

// Map puts physical memory behind reserved addresses, without access yet.
func (n *Native) Map(p Ptr, bytes int64, h Handle) error {
	return check(C.psk_relaxed_cuMemMap(n.fn, C.uint64_t(p), C.size_t(bytes), C.uint64_t(h)), "cuMemMap")
}

// Unmap takes the memory away from the addresses.
func (n *Native) Unmap(p Ptr, bytes int64) error {
	return check(C.psk_relaxed_cuMemUnmap(n.fn, C.uint64_t(p), C.size_t(bytes)), "cuMemUnmap")
}

// SetAccess lets the device read and write mapped addresses.
func (n *Native) SetAccess(p Ptr, bytes int64) error {
	desc := C.psk_access_desc{location: C.psk_location{_type: C.PSK_LOCATION_DEVICE, id: n.device}, flags: 3 /* read, write */}
	return check(C.psk_relaxed_cuMemSetAccess(n.fn, C.uint64_t(p), C.size_t(bytes), &desc), "cuMemSetAccess")
}
