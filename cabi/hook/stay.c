/*
 * Addresses that the driver keeps in an object which kernels read through (textures over linear memory), those that it
 * reads or writes for a stream itself (the program's own memory operations), and memory that others reach without a launch: its
 * handle is given away, as to a network card, or it is bound to an object of several GPUs. No launch shows them. Such a tensor is on the device
 * when the call goes on, and stays from then on, for as long as it lives.
 */
#include "stay.h"
#include "address.h"
#include "issue.h"
#include "names.h"
#include "op.h"
#include "real.h"
#include "strict.h"
#include "within.h"

CUresult psk_stay(const uint64_t *addrs, size_t n) {
    CUresult r = CUDA_SUCCESS;
    if (PSK_LOAD(psk_S.mode) != PSK_MODE_STRICT || (psk_in_hook && !psk_within)) return r;
    int was = psk_in_hook;
    for (size_t i = 0; i < n && !r;) {
        if (!psk_slot_of(addrs[i])) {
            i++;
            continue;
        }
        psk_op op;
        psk_op_begin(&op, PSK_REC_STAY, 0, NULL, 0);
        op.flags = PSK_FLAG_KEEP; /* whatever is being captured */
        for (; i < n && op.n < PSK_OP_MAX_SLOTS; i++) psk_op_address(&op, addrs[i]);
        psk_op *outer = psk_within ? psk_within_locked() : NULL;
        r = outer ? psk_strict_within(&op, outer) : psk_strict_stay(&op);
        psk_in_hook = was;
    }
    return r;
}

static CUresult stay(uint64_t addr) { return psk_stay(&addr, 1); }

#define WRAP(name, args, call, first)                   \
    CUresult psk_w_##name args {                        \
        CUresult r = first;                             \
        return r ? r : PSK_REAL(name) call;             \
    }

/* ---- textures ---- */

static uint64_t linear(const CUDA_RESOURCE_DESC *d) { return d && (d->resType == CU_RESOURCE_TYPE_LINEAR || d->resType == CU_RESOURCE_TYPE_PITCH2D) ? d->res.devPtr : 0; }

WRAP(cuTexObjectCreate, (uint64_t *object, const CUDA_RESOURCE_DESC *resource, const void *texture, const void *view), (object, resource, texture, view), stay(linear(resource)))
WRAP(cuTexRefSetAddress_v2, (size_t *offset, void *texture, CUdeviceptr addr, size_t bytes), (offset, texture, addr, bytes), stay(addr))
WRAP(cuTexRefSetAddress2D_v3, (void *texture, const void *array, CUdeviceptr addr, size_t pitch), (texture, array, addr, pitch), stay(addr))

/* ---- handles of memory: with one, others read and write it without a launch (dma_buf, mappings elsewhere) ---- */

CUresult psk_stay_range(uint64_t addr, uint64_t bytes) {
    if (PSK_LOAD(psk_S.mode) != PSK_MODE_STRICT) return CUDA_SUCCESS;
    CUresult r = CUDA_SUCCESS;
    uint32_t last = 0;
    for (uint64_t at = addr, end = addr + bytes; at < end && !r; at = ((at >> PSK_BLOCK_SHIFT) + 1) << PSK_BLOCK_SHIFT) {
        uint32_t slot = psk_slot_of(at);
        if (slot && slot != last) r = stay(at);
        last = slot;
    }
    return r;
}

WRAP(cuMemGetHandleForAddressRange, (void *handle, CUdeviceptr addr, size_t bytes, int type, unsigned long long flags), (handle, addr, bytes, type, flags), psk_stay_range(addr, bytes))
WRAP(cuMemRetainAllocationHandle, (uint64_t *handle, void *addr), (handle, addr), stay((uint64_t)(uintptr_t)addr))

/* ---- what is bound to an object of several GPUs, through which the others write ---- */

WRAP(cuMulticastBindAddr, (uint64_t object, size_t offset, CUdeviceptr addr, size_t bytes, unsigned long long flags), (object, offset, addr, bytes, flags), psk_stay_range(addr, bytes))
WRAP(cuMulticastBindAddr_v2, (uint64_t object, CUdevice device, size_t offset, CUdeviceptr addr, size_t bytes, unsigned long long flags), (object, device, offset, addr, bytes, flags), psk_stay_range(addr, bytes))
WRAP(cuLogicalEndpointBindAddr, (uint32_t id, CUdevice device, uint64_t offset, void *addr, uint64_t bytes, unsigned long long flags), (id, device, offset, addr, bytes, flags), psk_stay_range((uint64_t)(uintptr_t)addr, bytes))

/* ---- memory operations of streams ---- */

#define VALUE(name, type) WRAP(name, (CUstream s, CUdeviceptr addr, type value, unsigned flags), (s, addr, value, flags), stay(addr))
#define VALUES(name, type) VALUE(name, type) VALUE(name##_ptsz, type) VALUE(name##_v2, type) VALUE(name##_v2_ptsz, type)
VALUES(cuStreamWaitValue32, uint32_t)
VALUES(cuStreamWaitValue64, uint64_t)
VALUES(cuStreamWriteValue32, uint32_t)
VALUES(cuStreamWriteValue64, uint64_t)

uint64_t psk_memop_address(const CUstreamBatchMemOpParams *op) {
    switch (op->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: return op->value.address;
    case CU_STREAM_MEM_OP_ATOMIC_REDUCTION: return op->reduction.address;
    default: return 0; /* barriers and flushes */
    }
}

static CUresult stay_all(const CUstreamBatchMemOpParams *ops, unsigned n) {
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; ops && i < n && !r; i++) r = stay(psk_memop_address(&ops[i]));
    return r;
}

#define BATCH(name)                                                                                   \
    CUresult psk_w_##name(CUstream s, unsigned n, CUstreamBatchMemOpParams *ops, unsigned flags) {    \
        CUresult r = stay_all(ops, n);                                                                \
        return r ? r : PSK_REAL(name)(s, n, ops, flags);                                              \
    }
BATCH(cuStreamBatchMemOp)
BATCH(cuStreamBatchMemOp_ptsz)
BATCH(cuStreamBatchMemOp_v2)
BATCH(cuStreamBatchMemOp_v2_ptsz)
