/*
 * Addresses that the driver keeps in an object which kernels read through (textures over linear memory), and those that it
 * reads or writes for a stream itself (the program's own memory operations). No launch shows them. Such a tensor is on the device
 * when the call goes on, and stays from then on, for as long as it lives.
 */
#include "internal.h"

/* In strict mode, has what an address lies in stay on the device. Not CUDA_SUCCESS when the engine has failed. */
static CUresult stay(uint64_t addr) {
    if (!psk_active() || PSK_LOAD(psk_S.mode) != PSK_MODE_STRICT || !psk_slot_of(addr)) return CUDA_SUCCESS;
    psk_op op;
    psk_op_begin(&op, PSK_REC_STAY, 0, NULL, 0);
    op.flags = PSK_FLAG_KEEP; /* whatever is being captured */
    psk_op_address(&op, addr);
    CUresult r = psk_strict_stay(&op);
    psk_in_hook = 0;
    return r;
}

#define WRAP(name, args, call, addr)                    \
    CUresult psk_w_##name args {                        \
        CUresult r = stay(addr);                        \
        return r ? r : PSK_REAL(name) call;             \
    }

/* ---- textures ---- */

static uint64_t linear(const CUDA_RESOURCE_DESC *d) { return d && (d->resType == CU_RESOURCE_TYPE_LINEAR || d->resType == CU_RESOURCE_TYPE_PITCH2D) ? d->res.devPtr : 0; }

WRAP(cuTexObjectCreate, (uint64_t *object, const CUDA_RESOURCE_DESC *resource, const void *texture, const void *view), (object, resource, texture, view), linear(resource))

/* ---- memory operations of streams ---- */

#define VALUE(name, type) WRAP(name, (CUstream s, CUdeviceptr addr, type value, unsigned flags), (s, addr, value, flags), addr)
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
