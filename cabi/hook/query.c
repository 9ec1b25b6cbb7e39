/*
 * What the driver says of an address. It knows nothing of a tensor that is away, and a library that asks
 * (CUDA-aware MPI, __cuda_array_interface__) would take its address for host memory. Where the driver knows nothing
 * and a live allocation of the engine's is there, the answer is the one that it would have on the device. Also while
 * it is being made ready: memory that is mapped and may not be reached yet has a memory type, and no device pointer.
 */
#include "address.h"
#include "real.h"
#include "shared.h"

enum { /* CUpointer_attribute */
    CONTEXT = 1,
    DEVICE_POINTER = 3,
    SYNC_MEMOPS = 6,
    BUFFER_ID = 7,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    RANGE_START_ADDR = 11,
    RANGE_SIZE = 12,
};

/* Whether an address lies in a live allocation of the engine's that may leave the device. */
static bool may_leave(uint64_t p, uint32_t *slot) { return PSK_LOAD(psk_S.mode) == PSK_MODE_STRICT && (*slot = psk_slot_of(p)); }

/* The blocks of the live allocation that an address lies in; false when there is none that may leave. */
static bool allocation(uint64_t p, uint32_t *slot, uint64_t *base, uint64_t *bytes) {
    if (!may_leave(p, slot)) return false;
    uint64_t first = p >> PSK_BLOCK_SHIFT, end = first + 1;
    while (first > 0 && psk_published((first - 1) << PSK_BLOCK_SHIFT) == *slot) first--;
    while (psk_published(end << PSK_BLOCK_SHIFT) == *slot) end++;
    *base = first << PSK_BLOCK_SHIFT;
    *bytes = (end - first) << PSK_BLOCK_SHIFT;
    return true;
}

/* An attribute of a tensor's address; false for those that device memory does not have, or that are not known. */
static bool answer(void *data, int attribute, uint64_t p, uint32_t slot, uint64_t base, uint64_t bytes) {
    typedef CUresult (*ask_fn)(void *);
    ask_fn ask;
    switch (attribute) {
    case CONTEXT:
        ask = (ask_fn)psk_driver_symbol("cuCtxGetCurrent");
        return ask && ask(data) == CUDA_SUCCESS;
    case DEVICE_ORDINAL:
        ask = (ask_fn)psk_driver_symbol("cuCtxGetDevice");
        return ask && ask(data) == CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = CU_MEMORYTYPE_DEVICE; return true;
    case DEVICE_POINTER: *(CUdeviceptr *)data = p; return true;
    case BUFFER_ID: *(unsigned long long *)data = 1ull << 48 | slot; return true;
    case SYNC_MEMOPS: case IS_MANAGED: case IS_LEGACY_CUDA_IPC_CAPABLE: *(unsigned *)data = 0; return true;
    case RANGE_START_ADDR: *(CUdeviceptr *)data = base; return true;
    case RANGE_SIZE: *(size_t *)data = bytes; return true;
    }
    return false;
}

CUresult psk_w_cuPointerGetAttribute(void *data, int attribute, CUdeviceptr p) {
    uint32_t slot;
    uint64_t base, bytes;
    CUresult r = PSK_REAL(cuPointerGetAttribute)(data, attribute, p);
    if (r == CUDA_SUCCESS || !data || !allocation(p, &slot, &base, &bytes)) return r;
    return answer(data, attribute, p, slot, base, bytes) ? CUDA_SUCCESS : r;
}

/* Which answers with zeros where the driver knows nothing, so that each is asked for by itself. */
CUresult psk_w_cuPointerGetAttributes(unsigned n, int *attributes, void **data, CUdeviceptr p) {
    uint32_t slot;
    CUresult r = PSK_REAL(cuPointerGetAttributes)(n, attributes, data, p);
    if (r != CUDA_SUCCESS || !may_leave(p, &slot)) return r;
    for (unsigned i = 0; i < n; i++) psk_w_cuPointerGetAttribute(data[i], attributes[i], p);
    return r;
}

CUresult psk_w_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
    uint32_t slot;
    uint64_t at, n;
    CUresult r = PSK_REAL(cuMemGetAddressRange_v2)(base, bytes, p);
    if (r == CUDA_SUCCESS || !allocation(p, &slot, &at, &n)) return r;
    if (base) *base = at;
    if (bytes) *bytes = n;
    return CUDA_SUCCESS;
}
