/*
 * Copies and fills. A copy names its two addresses; either may be host memory,
 * which no slot has. Synchronous forms are ordered on the default stream (the
 * thread's own for _ptds), so a gate there holds them too: the caller waits.
 *
 * Strict mode must know which copies wait for their stream inside the driver
 * (op->waits): the synchronous ones, except between device memory, and the
 * asynchronous ones from or to pageable memory, which the driver stages. Small
 * ones from pageable memory it takes along.
 */
#include "address.h"
#include "issue.h"
#include "names.h"
#include "op.h"
#include "real.h"
#include "shared.h"
#include "words.h"

static void begin(psk_op *op, uint32_t id, CUstream s, int ptsz, uint64_t bytes) {
    psk_op_begin(op, PSK_REC_COPY, id, s, ptsz);
    op->grid = (uint32_t)(bytes ^ bytes >> 32);
    PSK_COUNT(psk_S.copies);
}

/* The destination goes first, so that the reader can tell it. */
static void ends(psk_op *op, uint64_t dst, uint64_t src) {
    if (psk_op_address(op, dst)) op->flags |= PSK_FLAG_HAS_DST;
    if (src) psk_op_address(op, src);
    if (op->mode == PSK_MODE_STRICT && !(op->flags & PSK_FLAG_CAPTURED)) op->flags |= PSK_FLAG_ACCESS;
}

/* ---- copies that wait inside the driver ---- */

#define STAGED_BYTES (64u << 10) /* the driver copies as much from pageable memory without waiting */

static bool pageable(uint64_t addr) { return addr && !psk_published(addr) && psk_memory_type(addr) == 0; }

static void async_form(psk_op *op, uint64_t dst, uint64_t src, uint64_t bytes) {
    if (PSK_LIKELY(op->mode != PSK_MODE_STRICT) || op->waits || op->id == PSK_COPY_D2D) return;
    op->waits = (op->id != PSK_COPY_H2D && pageable(dst)) || (op->id != PSK_COPY_D2H && bytes > STAGED_BYTES && pageable(src));
}

static void sync_form(psk_op *op) { op->waits = op->id != PSK_COPY_D2D; }

/* ---- addresses that are copied to where no launch will show them ---- */

/* A copy from the host to the globals of a module, or to device memory that a library has for itself, of addresses of
 * tensors: kernels may find them there without a parameter that leads to them. */
static void keep(psk_op *op, uint64_t dst, uint64_t src, uint64_t bytes) {
    if (PSK_LIKELY(op->mode != PSK_MODE_STRICT) || op->id == PSK_COPY_D2D || op->id == PSK_COPY_D2H) return;
    if (psk_published(dst) || !psk_from_host(src, bytes) || psk_memory_type(dst) != CU_MEMORYTYPE_DEVICE) return;
    if (psk_op_words(op, src, bytes, op->id == PSK_COPY_H2D)) op->flags |= PSK_FLAG_KEEP;
}

/* Of a form that has rows, one row is looked at. */
static void keep_row(psk_op *op, uint64_t dst, uint64_t src, uint64_t bytes, uint64_t rows) {
    if (rows <= 1) keep(op, dst, src, bytes);
}

/* One wrapper: its record is made by `describe`, which sees the arguments and op.
 * With `probe` it may be a probe of the self-test. */
#define WRAP_PROBED(name, args, call, probe, describe)                   \
    CUresult psk_w_##name args {                                         \
        if (PSK_UNLIKELY(probe) && psk_probe()) return CUDA_SUCCESS;     \
        if (!psk_active()) return PSK_REAL(name) call;                   \
        psk_op op;                                                       \
        describe;                                                        \
        return PSK_OP_CALL(&op, PSK_REAL(name) call);                    \
    }
#define WRAP(name, args, call, describe) WRAP_PROBED(name, args, call, false, describe)

/* ---- two addresses and a length ---- */
#define LINEAR(name, id, dst_t, src_t, ptsz)                                                                   \
    WRAP(name, (dst_t dst, src_t src, size_t bytes), (dst, src, bytes),                                        \
         (begin(&op, id, NULL, ptsz, bytes), ends(&op, (uint64_t)(dst), (uint64_t)(src)),                      \
          keep(&op, (uint64_t)(dst), (uint64_t)(src), bytes), sync_form(&op)))
#define LINEAR_ASYNC(name, id, dst_t, src_t, ptsz)                                                             \
    WRAP(name, (dst_t dst, src_t src, size_t bytes, CUstream s), (dst, src, bytes, s),                         \
         (begin(&op, id, s, ptsz, bytes), ends(&op, (uint64_t)(dst), (uint64_t)(src)),                         \
          keep(&op, (uint64_t)(dst), (uint64_t)(src), bytes), async_form(&op, (uint64_t)(dst), (uint64_t)(src), bytes)))
typedef const void *host_src;
typedef void *host_dst;
LINEAR(cuMemcpy, PSK_COPY_UNKNOWN, CUdeviceptr, CUdeviceptr, 0)
LINEAR(cuMemcpy_ptds, PSK_COPY_UNKNOWN, CUdeviceptr, CUdeviceptr, 1)
LINEAR(cuMemcpyHtoD_v2, PSK_COPY_H2D, CUdeviceptr, host_src, 0)
LINEAR(cuMemcpyHtoD_v2_ptds, PSK_COPY_H2D, CUdeviceptr, host_src, 1)
LINEAR(cuMemcpyDtoH_v2, PSK_COPY_D2H, host_dst, CUdeviceptr, 0)
LINEAR(cuMemcpyDtoH_v2_ptds, PSK_COPY_D2H, host_dst, CUdeviceptr, 1)
LINEAR(cuMemcpyDtoD_v2, PSK_COPY_D2D, CUdeviceptr, CUdeviceptr, 0)
LINEAR(cuMemcpyDtoD_v2_ptds, PSK_COPY_D2D, CUdeviceptr, CUdeviceptr, 1)
LINEAR_ASYNC(cuMemcpyAsync, PSK_COPY_UNKNOWN, CUdeviceptr, CUdeviceptr, 0)
LINEAR_ASYNC(cuMemcpyAsync_ptsz, PSK_COPY_UNKNOWN, CUdeviceptr, CUdeviceptr, 1)
LINEAR_ASYNC(cuMemcpyHtoDAsync_v2, PSK_COPY_H2D, CUdeviceptr, host_src, 0)
LINEAR_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, PSK_COPY_H2D, CUdeviceptr, host_src, 1)
LINEAR_ASYNC(cuMemcpyDtoHAsync_v2, PSK_COPY_D2H, host_dst, CUdeviceptr, 0)
LINEAR_ASYNC(cuMemcpyDtoHAsync_v2_ptsz, PSK_COPY_D2H, host_dst, CUdeviceptr, 1)
LINEAR_ASYNC(cuMemcpyDtoDAsync_v2, PSK_COPY_D2D, CUdeviceptr, CUdeviceptr, 0)
LINEAR_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, PSK_COPY_D2D, CUdeviceptr, CUdeviceptr, 1)

/* ---- between contexts ---- */
#define PEER(name, ptsz)                                                                                        \
    WRAP(name, (CUdeviceptr dst, CUcontext dc, CUdeviceptr src, CUcontext sc, size_t bytes), (dst, dc, src, sc, bytes), \
         (begin(&op, PSK_COPY_D2D, NULL, ptsz, bytes), ends(&op, dst, src)))
#define PEER_ASYNC(name, ptsz)                                                                                  \
    WRAP(name, (CUdeviceptr dst, CUcontext dc, CUdeviceptr src, CUcontext sc, size_t bytes, CUstream s),        \
         (dst, dc, src, sc, bytes, s), (begin(&op, PSK_COPY_D2D, s, ptsz, bytes), ends(&op, dst, src)))
PEER(cuMemcpyPeer, 0)
PEER(cuMemcpyPeer_ptds, 1)
PEER_ASYNC(cuMemcpyPeerAsync, 0)
PEER_ASYNC(cuMemcpyPeerAsync_ptsz, 1)

/* ---- to and from arrays ---- */
#define TO_ARRAY(name, ptsz)                                                                                    \
    WRAP(name, (CUarray dst, size_t offset, CUdeviceptr src, size_t bytes), (dst, offset, src, bytes),          \
         (begin(&op, PSK_COPY_D2D, NULL, ptsz, bytes), ends(&op, 0, src)))
#define FROM_ARRAY(name, ptsz)                                                                                  \
    WRAP(name, (CUdeviceptr dst, CUarray src, size_t offset, size_t bytes), (dst, src, offset, bytes),          \
         (begin(&op, PSK_COPY_D2D, NULL, ptsz, bytes), ends(&op, dst, 0)))
TO_ARRAY(cuMemcpyDtoA_v2, 0)
TO_ARRAY(cuMemcpyDtoA_v2_ptds, 1)
FROM_ARRAY(cuMemcpyAtoD_v2, 0)
FROM_ARRAY(cuMemcpyAtoD_v2_ptds, 1)

/* ---- described by a structure ---- */

/* The address of one end; unified addresses are passed in the device field. */
static uint64_t end_address(int type, const void *host, CUdeviceptr device, uint64_t offset) {
    switch (type) {
    case CU_MEMORYTYPE_HOST: return (uint64_t)(uintptr_t)host + offset;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: return device + offset;
    default: return 0; /* an array */
    }
}

static uint32_t copy_id(int dst, int src) {
    if (dst == CU_MEMORYTYPE_UNIFIED || src == CU_MEMORYTYPE_UNIFIED) return PSK_COPY_UNKNOWN;
    if (src == CU_MEMORYTYPE_HOST) return dst == CU_MEMORYTYPE_HOST ? PSK_COPY_UNKNOWN : PSK_COPY_H2D;
    return dst == CU_MEMORYTYPE_HOST ? PSK_COPY_D2H : PSK_COPY_D2D;
}

static void describe_2d(psk_op *op, const CUDA_MEMCPY2D *c, CUstream s, int ptsz) {
    begin(op, c ? copy_id(c->dstMemoryType, c->srcMemoryType) : PSK_COPY_UNKNOWN, s, ptsz, c ? c->WidthInBytes * c->Height : 0);
    if (!c) return; /* the driver will say so */
    uint64_t dst = end_address(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstY * c->dstPitch + c->dstXInBytes);
    uint64_t src = end_address(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcY * c->srcPitch + c->srcXInBytes);
    ends(op, dst, src);
    keep_row(op, dst, src, c->WidthInBytes, c->Height);
    async_form(op, dst, src, c->WidthInBytes * c->Height);
}

static void describe_3d(psk_op *op, const CUDA_MEMCPY3D *c, CUstream s, int ptsz) {
    begin(op, c ? copy_id(c->dstMemoryType, c->srcMemoryType) : PSK_COPY_UNKNOWN, s, ptsz, c ? c->WidthInBytes * c->Height * c->Depth : 0);
    if (!c) return;
    uint64_t dst = end_address(c->dstMemoryType, c->dstHost, c->dstDevice, (c->dstZ * c->dstHeight + c->dstY) * c->dstPitch + c->dstXInBytes);
    uint64_t src = end_address(c->srcMemoryType, c->srcHost, c->srcDevice, (c->srcZ * c->srcHeight + c->srcY) * c->srcPitch + c->srcXInBytes);
    ends(op, dst, src);
    keep_row(op, dst, src, c->WidthInBytes, c->Height * c->Depth);
    async_form(op, dst, src, c->WidthInBytes * c->Height * c->Depth);
}

#define STRUCT(name, type, describe, ptsz) WRAP(name, (const type *c), (c), (describe(&op, c, NULL, ptsz), sync_form(&op)))
#define STRUCT_ASYNC(name, type, describe, ptsz) WRAP(name, (const type *c, CUstream s), (c, s), describe(&op, c, s, ptsz))
STRUCT(cuMemcpy2D_v2, CUDA_MEMCPY2D, describe_2d, 0)
STRUCT(cuMemcpy2D_v2_ptds, CUDA_MEMCPY2D, describe_2d, 1)
STRUCT(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, describe_2d, 0)
STRUCT(cuMemcpy2DUnaligned_v2_ptds, CUDA_MEMCPY2D, describe_2d, 1)
STRUCT(cuMemcpy3D_v2, CUDA_MEMCPY3D, describe_3d, 0)
STRUCT(cuMemcpy3D_v2_ptds, CUDA_MEMCPY3D, describe_3d, 1)
STRUCT(cuMemcpy3DPeer, CUDA_MEMCPY3D, describe_3d, 0)
STRUCT(cuMemcpy3DPeer_ptds, CUDA_MEMCPY3D, describe_3d, 1)
STRUCT_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, describe_2d, 0)
STRUCT_ASYNC(cuMemcpy2DAsync_v2_ptsz, CUDA_MEMCPY2D, describe_2d, 1)
STRUCT_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, describe_3d, 0)
STRUCT_ASYNC(cuMemcpy3DAsync_v2_ptsz, CUDA_MEMCPY3D, describe_3d, 1)
STRUCT_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D, describe_3d, 0)
STRUCT_ASYNC(cuMemcpy3DPeerAsync_ptsz, CUDA_MEMCPY3D, describe_3d, 1)

/* ---- batches: several destinations, so none is marked, unless there is but one copy ---- */

/* A source may be read before the turn of its stream has come. */
static void order(psk_op *op, int src_access_order) { op->early |= src_access_order > CU_MEMCPY_SRC_ACCESS_ORDER_STREAM; }

static void describe_batch(psk_op *op, const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes, size_t n, const CUmemcpyAttributes *attrs, size_t nattrs, CUstream s, int ptsz) {
    uint64_t bytes = 0;
    for (size_t i = 0; sizes && i < n; i++) bytes += sizes[i];
    begin(op, PSK_COPY_UNKNOWN, s, ptsz, bytes);
    if (!dsts || !srcs || !sizes) return;
    if (n == 1) ends(op, dsts[0], srcs[0]);
    for (size_t i = 0; n > 1 && i < n; i++) psk_op_address(op, dsts[i]), psk_op_address(op, srcs[i]);
    for (size_t i = 0; i < n; i++) keep(op, dsts[i], srcs[i], sizes[i]), async_form(op, dsts[i], srcs[i], sizes[i]);
    for (size_t i = 0; attrs && i < nattrs; i++) order(op, attrs[i].srcAccessOrder);
}

#define DSTS_SRCS CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n, CUmemcpyAttributes *attrs, size_t *idxs, size_t nattrs
#define BATCH_V1(name, ptsz)                                                                                    \
    WRAP(name, (DSTS_SRCS, size_t *fail, CUstream s), (dsts, srcs, sizes, n, attrs, idxs, nattrs, fail, s),     \
         describe_batch(&op, dsts, srcs, sizes, n, attrs, nattrs, s, ptsz))
#define BATCH_V2(name, ptsz)                                                                                    \
    WRAP(name, (DSTS_SRCS, CUstream s), (dsts, srcs, sizes, n, attrs, idxs, nattrs, s),                         \
         describe_batch(&op, dsts, srcs, sizes, n, attrs, nattrs, s, ptsz))
BATCH_V1(cuMemcpyBatchAsync, 0)
BATCH_V1(cuMemcpyBatchAsync_ptsz, 1)
BATCH_V2(cuMemcpyBatchAsync_v2, 0)
BATCH_V2(cuMemcpyBatchAsync_v2_ptsz, 1)

static uint64_t operand_address(const CUmemcpy3DOperand *o) { return o->type == CU_MEMCPY_OPERAND_TYPE_POINTER ? o->op.ptr.ptr : 0; }

static void describe_batch_3d(psk_op *op, size_t n, const CUDA_MEMCPY3D_BATCH_OP *list, CUstream s, int ptsz) {
    uint64_t bytes = 0;
    for (size_t i = 0; list && i < n; i++) bytes += list[i].extent[0] * list[i].extent[1] * list[i].extent[2];
    begin(op, PSK_COPY_UNKNOWN, s, ptsz, bytes);
    if (!list) return;
    if (n == 1) ends(op, operand_address(&list[0].dst), operand_address(&list[0].src));
    for (size_t i = 0; n > 1 && i < n; i++) psk_op_address(op, operand_address(&list[i].dst)), psk_op_address(op, operand_address(&list[i].src));
    for (size_t i = 0; i < n; i++) {
        const CUDA_MEMCPY3D_BATCH_OP *c = &list[i];
        uint64_t dst = operand_address(&c->dst), src = operand_address(&c->src), rows = c->extent[1] * c->extent[2];
        keep_row(op, dst, src, c->extent[0], rows);
        async_form(op, dst, src, c->extent[0] * rows);
        order(op, c->srcAccessOrder);
    }
}

#define BATCH_3D_V1(name, ptsz)                                                                                       \
    WRAP(name, (size_t n, CUDA_MEMCPY3D_BATCH_OP *list, size_t *fail, unsigned long long flags, CUstream s),          \
         (n, list, fail, flags, s), describe_batch_3d(&op, n, list, s, ptsz))
#define BATCH_3D_V2(name, ptsz)                                                                                       \
    WRAP(name, (size_t n, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream s), (n, list, flags, s),   \
         describe_batch_3d(&op, n, list, s, ptsz))
BATCH_3D_V1(cuMemcpy3DBatchAsync, 0)
BATCH_3D_V1(cuMemcpy3DBatchAsync_ptsz, 1)
BATCH_3D_V2(cuMemcpy3DBatchAsync_v2, 0)
BATCH_3D_V2(cuMemcpy3DBatchAsync_v2_ptsz, 1)

/* One of either, and its attributes. */
#define ATTRIBUTES(name, ptsz)                                                                                        \
    WRAP(name, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUmemcpyAttributes *attr, CUstream s),                \
         (dst, src, bytes, attr, s), describe_batch(&op, &dst, &src, &bytes, 1, attr, 1, s, ptsz))
#define ATTRIBUTES_3D(name, ptsz)                                                                                     \
    WRAP(name, (CUDA_MEMCPY3D_BATCH_OP *p, unsigned long long flags, CUstream s), (p, flags, s), describe_batch_3d(&op, 1, p, s, ptsz))
ATTRIBUTES(cuMemcpyWithAttributesAsync, 0)
ATTRIBUTES(cuMemcpyWithAttributesAsync_ptsz, 1)
ATTRIBUTES_3D(cuMemcpy3DWithAttributesAsync, 0)
ATTRIBUTES_3D(cuMemcpy3DWithAttributesAsync_ptsz, 1)

/* ---- copies over a fabric: a batch; an endpoint is memory of another, or was bound (stay.c) ---- */

static uint64_t fabric_address(const CUfabricCpyOperand *o) { return o->type == CU_FABRIC_COPY_OPERAND_TYPE_POINTER ? o->op.ptr.ptr : 0; }

static void describe_fabric(psk_op *op, const CUDA_FABRIC_COPY_BATCH_OP *list, size_t n, CUstream s, int ptsz) {
    uint64_t bytes = 0;
    for (size_t i = 0; list && i < n; i++) bytes += list[i].size;
    begin(op, PSK_COPY_UNKNOWN, s, ptsz, bytes);
    for (size_t i = 0; list && i < n; i++) {
        uint64_t dst = fabric_address(&list[i].dst), src = fabric_address(&list[i].src);
        psk_op_address(op, dst), psk_op_address(op, src);
        keep(op, dst, src, list[i].size);
        async_form(op, dst, src, list[i].size);
    }
}

#define FABRIC(name, ptsz)                                                                                            \
    WRAP(name, (size_t n, CUDA_FABRIC_COPY_BATCH_OP *list, unsigned long long flags, CUstream s), (n, list, flags, s), \
         describe_fabric(&op, list, n, s, ptsz))
FABRIC(cuFabricCpyBatchAsync, 0)
FABRIC(cuFabricCpyBatchAsync_ptsz, 1)

/* ---- decompression: a batch, which also writes how much came out ---- */

static void describe_decompress(psk_op *op, const CUmemDecompressParams *list, size_t n, CUstream s, int ptsz) {
    uint64_t bytes = 0;
    for (size_t i = 0; list && i < n; i++) bytes += list[i].dstNumBytes;
    begin(op, PSK_COPY_UNKNOWN, s, ptsz, bytes);
    for (size_t i = 0; list && i < n; i++) {
        psk_op_address(op, (uint64_t)(uintptr_t)list[i].dst);
        psk_op_address(op, (uint64_t)(uintptr_t)list[i].src);
        psk_op_address(op, (uint64_t)(uintptr_t)list[i].dstActBytes);
    }
}

#define DECOMPRESS(name, ptsz)                                                                                        \
    WRAP(name, (CUmemDecompressParams *list, size_t n, unsigned flags, size_t *fail, CUstream s),                     \
         (list, n, flags, fail, s), describe_decompress(&op, list, n, s, ptsz))
DECOMPRESS(cuMemBatchDecompressAsync, 0)
DECOMPRESS(cuMemBatchDecompressAsync_ptsz, 1)

/* ---- fills ---- */
#define FILL(name, value_t, unit, ptsz)                                                                                             \
    WRAP_PROBED(name, (CUdeviceptr dst, value_t v, size_t n), (dst, v, n), dst == psk_S.probe_word,                                 \
         (begin(&op, PSK_COPY_FILL, NULL, ptsz, n * (unit)), ends(&op, dst, 0)))
#define FILL_ASYNC(name, value_t, unit, ptsz)                                                                                       \
    WRAP_PROBED(name, (CUdeviceptr dst, value_t v, size_t n, CUstream s), (dst, v, n, s), dst == psk_S.probe_word,                  \
         (begin(&op, PSK_COPY_FILL, s, ptsz, n * (unit)), ends(&op, dst, 0)))
#define FILL_2D(name, value_t, unit, ptsz)                                                                                          \
    WRAP_PROBED(name, (CUdeviceptr dst, size_t pitch, value_t v, size_t w, size_t h), (dst, pitch, v, w, h), dst == psk_S.probe_word,\
         (begin(&op, PSK_COPY_FILL, NULL, ptsz, w * h * (unit)), ends(&op, dst, 0)))
#define FILL_2D_ASYNC(name, value_t, unit, ptsz)                                                                                    \
    WRAP_PROBED(name, (CUdeviceptr dst, size_t pitch, value_t v, size_t w, size_t h, CUstream s), (dst, pitch, v, w, h, s),         \
         dst == psk_S.probe_word,                                                                                                   \
         (begin(&op, PSK_COPY_FILL, s, ptsz, w * h * (unit)), ends(&op, dst, 0)))
#define FILLS(bits, value_t)                                              \
    FILL(cuMemsetD##bits##_v2, value_t, bits / 8, 0)                      \
    FILL(cuMemsetD##bits##_v2_ptds, value_t, bits / 8, 1)                 \
    FILL_ASYNC(cuMemsetD##bits##Async, value_t, bits / 8, 0)              \
    FILL_ASYNC(cuMemsetD##bits##Async_ptsz, value_t, bits / 8, 1)         \
    FILL_2D(cuMemsetD2D##bits##_v2, value_t, bits / 8, 0)                 \
    FILL_2D(cuMemsetD2D##bits##_v2_ptds, value_t, bits / 8, 1)            \
    FILL_2D_ASYNC(cuMemsetD2D##bits##Async, value_t, bits / 8, 0)         \
    FILL_2D_ASYNC(cuMemsetD2D##bits##Async_ptsz, value_t, bits / 8, 1)
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
