//go:build cgo && linux

package cuda

// #include "libcuda.h"
import "C"

func (n *Native) location(l Location) C.psk_location {
	if l == Host {
		return C.psk_location{_type: C.PSK_LOCATION_HOST}
	}
	return C.psk_location{_type: C.PSK_LOCATION_DEVICE, id: n.device}
}

// legacyDevice is what the unversioned functions take: a device, or -1 for the host.
func (n *Native) legacyDevice(l Location) C.int {
	if l == Host {
		return -1
	}
	return n.device
}

// split makes the arrays that batch calls take.
func split(ranges []Range) ([]C.uint64_t, []C.size_t) {
	bases := make([]C.uint64_t, len(ranges))
	sizes := make([]C.size_t, len(ranges))
	for i, r := range ranges {
		bases[i], sizes[i] = C.uint64_t(r.Base), C.size_t(r.Bytes)
	}
	return bases, sizes
}

func checkRanges(call string, ranges []Range) error {
	for i, r := range ranges {
		if r.Base == 0 || r.Bytes <= 0 {
			return invalid(call, "range %d is %d bytes at %#x", i, r.Bytes, uint64(r.Base))
		}
	}
	return nil
}

// isDefault says whether s is the legacy default stream, by either of its handles.
func isDefault(s Stream) bool { return s == 0 || s == 1 }

// Prefetch migrates managed ranges. Several ranges go in one call where the
// driver has it; its one restriction is that the stream is not the legacy one.
func (n *Native) Prefetch(ranges []Range, to Location, s Stream) error {
	const batch, single = "cuMemPrefetchBatchAsync", "cuMemPrefetchAsync"
	if err := checkRanges(single, ranges); err != nil {
		return err
	}
	if len(ranges) > 1 && n.caps.PrefetchBatch && !isDefault(s) {
		bases, sizes := split(ranges)
		loc, first := n.location(to), C.size_t(0)
		return check(C.psk_cuMemPrefetchBatchAsync(n.fn, pointer(bases), pointer(sizes), C.size_t(len(ranges)),
			&loc, &first, 1, 0, C.uintptr_t(s)), batch)
	}
	for _, r := range ranges {
		if err := n.prefetchOne(r, to, s); err != nil {
			return err
		}
	}
	return nil
}

func (n *Native) prefetchOne(r Range, to Location, s Stream) error {
	const call = "cuMemPrefetchAsync"
	if n.fn.cuMemPrefetchAsync_v2 != nil {
		return check(C.psk_cuMemPrefetchAsync_v2(n.fn, C.uint64_t(r.Base), C.size_t(r.Bytes), n.location(to), 0, C.uintptr_t(s)), call)
	}
	return check(C.psk_cuMemPrefetchAsync(n.fn, C.uint64_t(r.Base), C.size_t(r.Bytes), n.legacyDevice(to), C.uintptr_t(s)), call)
}

// Discard tells the driver that managed ranges hold nothing of value.
func (n *Native) Discard(ranges []Range, s Stream) error {
	const call = "cuMemDiscardBatchAsync"
	if len(ranges) == 0 {
		return nil
	}
	if err := checkDiscard(call, n.caps.DiscardBatch, ranges, s); err != nil {
		return err
	}
	bases, sizes := split(ranges)
	return check(C.psk_cuMemDiscardBatchAsync(n.fn, pointer(bases), pointer(sizes), C.size_t(len(ranges)), 0, C.uintptr_t(s)), call)
}

// DiscardAndPrefetch gives ranges memory on a side without moving their old
// contents: the cheapest way to make room for a new allocation on the device.
func (n *Native) DiscardAndPrefetch(ranges []Range, to Location, s Stream) error {
	const call = "cuMemDiscardAndPrefetchBatchAsync"
	if len(ranges) == 0 {
		return nil
	}
	able := n.caps.DiscardBatch && n.fn.cuMemDiscardAndPrefetchBatchAsync != nil
	if err := checkDiscard(call, able, ranges, s); err != nil {
		return err
	}
	bases, sizes := split(ranges)
	loc, first := n.location(to), C.size_t(0)
	return check(C.psk_cuMemDiscardAndPrefetchBatchAsync(n.fn, pointer(bases), pointer(sizes), C.size_t(len(ranges)),
		&loc, &first, 1, 0, C.uintptr_t(s)), call)
}

func checkDiscard(call string, able bool, ranges []Range, s Stream) error {
	if !able {
		return NewError(codeNotSupported, call).WithDetail(errDiscardOld)
	}
	if isDefault(s) {
		return NewError(codeInvalidValue, call).WithDetail(errDefaultStream)
	}
	return checkRanges(call, ranges)
}

// Advise gives a hint about a managed range.
func (n *Native) Advise(r Range, a Advice, l Location) error {
	const call = "cuMemAdvise"
	if err := checkRanges(call, []Range{r}); err != nil {
		return err
	}
	if a < SetReadMostly || a > UnsetAccessedBy {
		return invalid(call, "unknown advice %d", a)
	}
	code := C.int(a) + 1 // CU_MEM_ADVISE_SET_READ_MOSTLY is 1, and the rest follow in our order
	if n.fn.cuMemAdvise_v2 != nil {
		return check(C.psk_cuMemAdvise_v2(n.fn, C.uint64_t(r.Base), C.size_t(r.Bytes), code, n.location(l)), call)
	}
	return check(C.psk_cuMemAdvise(n.fn, C.uint64_t(r.Base), C.size_t(r.Bytes), code, n.legacyDevice(l)), call)
}
