/* The copy and fill entry points: all of them become one 3D copy or one 2D fill. */
#define _GNU_SOURCE
#include "base.h"
#include "contexts.h"
#include "ranges.h"
#include "streams.h"
#include "work.h"

#include <string.h>

/* Whether a call that is synchronous by its name waits: between device memory, and for fills of it, the driver does
 * not ("API synchronization behavior" of the CUDA manual). */
typedef enum { ASYNC, DEVICE_ONLY, WAITS } sync_kind;

static CUresult submit(const work *w, CUstream h, int ptsz, sync_kind sync) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (sync && s->capture) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (s->capture && w->type == CU_GRAPH_NODE_TYPE_MEMCPY && !(stub_known(w->copy.dstDevice) && stub_known(w->copy.srcDevice))) return CUDA_ERROR_INVALID_VALUE;
    if (sync != WAITS) return stub_submit(s, w);
    stub_api_lock();
    CUresult rc = stub_submit(s, w);
    if (rc == CUDA_SUCCESS) rc = stub_wait_idle(s);
    stub_api_unlock();
    return rc;
}

static CUresult linear(uint64_t dst, uint64_t src, size_t bytes, CUstream s, int ptsz, sync_kind sync) {
    if (sync == ASYNC && stub_should_fail("cuMemcpyAsync")) return CUDA_ERROR_OUT_OF_MEMORY;
    work w = {.type = CU_GRAPH_NODE_TYPE_MEMCPY,
              .copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = src, .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = dst, .WidthInBytes = bytes, .Height = 1, .Depth = 1}};
    return submit(&w, s, ptsz, sync);
}

#define U(x) ((uint64_t)(x))
#define SYNC(name, dst_t, src_t, sync)                                                                     \
    CUresult name(dst_t d, src_t s, size_t n) { return linear(U(d), U(s), n, NULL, 0, sync); }             \
    CUresult name##_ptds(dst_t d, src_t s, size_t n) { return linear(U(d), U(s), n, NULL, 1, sync); }
#define ASYNC(name, dst_t, src_t)                                                                          \
    CUresult name(dst_t d, src_t s, size_t n, CUstream h) { return linear(U(d), U(s), n, h, 0, ASYNC); }   \
    CUresult name##_ptsz(dst_t d, src_t s, size_t n, CUstream h) { return linear(U(d), U(s), n, h, 1, ASYNC); }
SYNC(cuMemcpy, CUdeviceptr, CUdeviceptr, WAITS)
SYNC(cuMemcpyHtoD_v2, CUdeviceptr, const void *, WAITS)
SYNC(cuMemcpyDtoH_v2, void *, CUdeviceptr, WAITS)
SYNC(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, DEVICE_ONLY)
ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
ASYNC(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)

#define PEER_ARGS CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n
CUresult cuMemcpyPeer(PEER_ARGS) { return (void)dc, (void)sc, linear(d, s, n, NULL, 0, DEVICE_ONLY); }
CUresult cuMemcpyPeer_ptds(PEER_ARGS) { return (void)dc, (void)sc, linear(d, s, n, NULL, 1, DEVICE_ONLY); }
CUresult cuMemcpyPeerAsync(PEER_ARGS, CUstream h) { return (void)dc, (void)sc, linear(d, s, n, h, 0, ASYNC); }
CUresult cuMemcpyPeerAsync_ptsz(PEER_ARGS, CUstream h) { return (void)dc, (void)sc, linear(d, s, n, h, 1, ASYNC); }

/* No arrays here. */
CUresult cuMemcpyDtoA_v2(CUarray d, size_t o, CUdeviceptr s, size_t n) { return (void)d, (void)o, (void)s, (void)n, CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuMemcpyDtoA_v2_ptds(CUarray d, size_t o, CUdeviceptr s, size_t n) { return (void)d, (void)o, (void)s, (void)n, CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuMemcpyAtoD_v2(CUdeviceptr d, CUarray s, size_t o, size_t n) { return (void)d, (void)o, (void)s, (void)n, CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr d, CUarray s, size_t o, size_t n) { return (void)d, (void)o, (void)s, (void)n, CUDA_ERROR_NOT_SUPPORTED; }

static CUresult copy_2d(const CUDA_MEMCPY2D *c, CUstream s, int ptsz, sync_kind sync) {
    work w = {.type = CU_GRAPH_NODE_TYPE_MEMCPY,
              .copy = {.srcXInBytes = c->srcXInBytes, .srcY = c->srcY, .srcMemoryType = c->srcMemoryType, .srcHost = c->srcHost, .srcDevice = c->srcDevice, .srcPitch = c->srcPitch,
                       .dstXInBytes = c->dstXInBytes, .dstY = c->dstY, .dstMemoryType = c->dstMemoryType, .dstHost = c->dstHost, .dstDevice = c->dstDevice, .dstPitch = c->dstPitch,
                       .WidthInBytes = c->WidthInBytes, .Height = c->Height, .Depth = 1}};
    return submit(&w, s, ptsz, sync);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *c) { return copy_2d(c, NULL, 0, WAITS); }
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *c) { return copy_2d(c, NULL, 1, WAITS); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c) { return copy_2d(c, NULL, 0, WAITS); }
CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *c) { return copy_2d(c, NULL, 1, WAITS); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream s) { return copy_2d(c, s, 0, ASYNC); }
CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *c, CUstream s) { return copy_2d(c, s, 1, ASYNC); }

static CUresult copy_3d(const CUDA_MEMCPY3D *c, CUstream s, int ptsz, sync_kind sync) {
    work w = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *c};
    return submit(&w, s, ptsz, sync);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *c) { return copy_3d(c, NULL, 0, WAITS); }
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *c) { return copy_3d(c, NULL, 1, WAITS); }
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D *c) { return copy_3d(c, NULL, 0, WAITS); }
CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D *c) { return copy_3d(c, NULL, 1, WAITS); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *c, CUstream s) { return copy_3d(c, s, 0, ASYNC); }
CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *c, CUstream s) { return copy_3d(c, s, 1, ASYNC); }
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *c, CUstream s) { return copy_3d(c, s, 0, ASYNC); }
CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D *c, CUstream s) { return copy_3d(c, s, 1, ASYNC); }

static CUresult batch(CUdeviceptr *d, CUdeviceptr *s, size_t *n, size_t count, size_t *fail, CUstream h, int ptsz) {
    if (fail) *fail = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        CUresult rc = linear(d[i], s[i], n[i], h, ptsz, ASYNC);
        if (rc == CUDA_SUCCESS) continue;
        if (fail) *fail = i;
        return rc;
    }
    return CUDA_SUCCESS;
}
#define BATCH_ARGS CUdeviceptr *d, CUdeviceptr *s, size_t *n, size_t count, CUmemcpyAttributes *a, size_t *ai, size_t na
CUresult cuMemcpyBatchAsync(BATCH_ARGS, size_t *fail, CUstream h) { return (void)a, (void)ai, (void)na, batch(d, s, n, count, fail, h, 0); }
CUresult cuMemcpyBatchAsync_ptsz(BATCH_ARGS, size_t *fail, CUstream h) { return (void)a, (void)ai, (void)na, batch(d, s, n, count, fail, h, 1); }
CUresult cuMemcpyBatchAsync_v2(BATCH_ARGS, CUstream h) { return (void)a, (void)ai, (void)na, batch(d, s, n, count, NULL, h, 0); }
CUresult cuMemcpyBatchAsync_v2_ptsz(BATCH_ARGS, CUstream h) { return (void)a, (void)ai, (void)na, batch(d, s, n, count, NULL, h, 1); }

CUresult cuMemcpyWithAttributesAsync(CUdeviceptr d, CUdeviceptr s, size_t n, CUmemcpyAttributes *a, CUstream h) { return (void)a, linear(d, s, n, h, 0, ASYNC); }
CUresult cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr d, CUdeviceptr s, size_t n, CUmemcpyAttributes *a, CUstream h) { return (void)a, linear(d, s, n, h, 1, ASYNC); }

static CUresult batch_3d(size_t count, CUDA_MEMCPY3D_BATCH_OP *l, size_t *fail, CUstream h, int ptsz) {
    for (size_t i = 0; i < count; i++) {
        if (fail) *fail = i;
        if (l[i].src.type != CU_MEMCPY_OPERAND_TYPE_POINTER || l[i].dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
        size_t w = l[i].extent[0], y = l[i].extent[1];
        CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = l[i].src.op.ptr.ptr, .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = l[i].dst.op.ptr.ptr,
                           .srcPitch = l[i].src.op.ptr.rowLength ? l[i].src.op.ptr.rowLength : w, .dstPitch = l[i].dst.op.ptr.rowLength ? l[i].dst.op.ptr.rowLength : w,
                           .srcHeight = l[i].src.op.ptr.layerHeight ? l[i].src.op.ptr.layerHeight : y, .dstHeight = l[i].dst.op.ptr.layerHeight ? l[i].dst.op.ptr.layerHeight : y,
                           .WidthInBytes = w, .Height = y, .Depth = l[i].extent[2]};
        CUresult rc = copy_3d(&c, h, ptsz, ASYNC);
        if (rc != CUDA_SUCCESS) return rc;
    }
    return CUDA_SUCCESS;
}
CUresult cuMemcpy3DBatchAsync(size_t n, CUDA_MEMCPY3D_BATCH_OP *l, size_t *fail, unsigned long long f, CUstream h) { return (void)f, batch_3d(n, l, fail, h, 0); }
CUresult cuMemcpy3DBatchAsync_ptsz(size_t n, CUDA_MEMCPY3D_BATCH_OP *l, size_t *fail, unsigned long long f, CUstream h) { return (void)f, batch_3d(n, l, fail, h, 1); }
CUresult cuMemcpy3DBatchAsync_v2(size_t n, CUDA_MEMCPY3D_BATCH_OP *l, unsigned long long f, CUstream h) { return (void)f, batch_3d(n, l, NULL, h, 0); }
CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t n, CUDA_MEMCPY3D_BATCH_OP *l, unsigned long long f, CUstream h) { return (void)f, batch_3d(n, l, NULL, h, 1); }

CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *p, unsigned long long f, CUstream h) { return (void)f, batch_3d(1, p, NULL, h, 0); }
CUresult cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *p, unsigned long long f, CUstream h) { return (void)f, batch_3d(1, p, NULL, h, 1); }

/* No fabric here, so no endpoints. */
static CUresult fabric(size_t n, CUDA_FABRIC_COPY_BATCH_OP *l, unsigned long long flags, CUstream h, int ptsz) {
    if (flags || (!h && !ptsz)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++) {
        if (l[i].src.type != CU_FABRIC_COPY_OPERAND_TYPE_POINTER || l[i].dst.type != CU_FABRIC_COPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
        CUresult rc = linear(l[i].dst.op.ptr.ptr, l[i].src.op.ptr.ptr, l[i].size, h, ptsz, ASYNC);
        if (rc != CUDA_SUCCESS) return rc;
    }
    return CUDA_SUCCESS;
}
CUresult cuFabricCpyBatchAsync(size_t n, CUDA_FABRIC_COPY_BATCH_OP *l, unsigned long long f, CUstream h) { return fabric(n, l, f, h, 0); }
CUresult cuFabricCpyBatchAsync_ptsz(size_t n, CUDA_FABRIC_COPY_BATCH_OP *l, unsigned long long f, CUstream h) { return fabric(n, l, f, h, 1); }

/* What comes out is what went in. */
static CUresult decompress(CUmemDecompressParams *l, size_t n, unsigned flags, size_t *fail, CUstream h, int ptsz) {
    if (!l || flags) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++) {
        CUresult rc = linear(U(l[i].dst), U(l[i].src), l[i].srcNumBytes, h, ptsz, ASYNC);
        if (rc == CUDA_SUCCESS) rc = linear(U(l[i].dstActBytes), U(&l[i].srcNumBytes), 4, h, ptsz, WAITS);
        if (rc == CUDA_SUCCESS) continue;
        if (fail) *fail = i;
        return rc;
    }
    return CUDA_SUCCESS;
}
CUresult cuMemBatchDecompressAsync(CUmemDecompressParams *l, size_t n, unsigned f, size_t *fail, CUstream h) { return decompress(l, n, f, fail, h, 0); }
CUresult cuMemBatchDecompressAsync_ptsz(CUmemDecompressParams *l, size_t n, unsigned f, size_t *fail, CUstream h) { return decompress(l, n, f, fail, h, 1); }

static CUresult fill(CUdeviceptr d, size_t pitch, unsigned v, unsigned size, size_t w, size_t h, CUstream s, int ptsz, sync_kind sync) {
    work k = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .fill = {.dst = d, .pitch = pitch, .value = v, .elementSize = size, .width = w, .height = h}};
    return submit(&k, s, ptsz, sync);
}
#define FILLS(bits, type)                                                                                                                                                          \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr d, type v, size_t n) { return fill(d, 0, v, bits / 8, n, 1, NULL, 0, DEVICE_ONLY); }                                                        \
    CUresult cuMemsetD##bits##_v2_ptds(CUdeviceptr d, type v, size_t n) { return fill(d, 0, v, bits / 8, n, 1, NULL, 1, DEVICE_ONLY); }                                                   \
    CUresult cuMemsetD##bits##Async(CUdeviceptr d, type v, size_t n, CUstream s) { return fill(d, 0, v, bits / 8, n, 1, s, 0, ASYNC); }                                            \
    CUresult cuMemsetD##bits##Async_ptsz(CUdeviceptr d, type v, size_t n, CUstream s) { return fill(d, 0, v, bits / 8, n, 1, s, 1, ASYNC); }                                       \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr d, size_t p, type v, size_t w, size_t h) { return fill(d, p, v, bits / 8, w, h, NULL, 0, DEVICE_ONLY); }                                  \
    CUresult cuMemsetD2D##bits##_v2_ptds(CUdeviceptr d, size_t p, type v, size_t w, size_t h) { return fill(d, p, v, bits / 8, w, h, NULL, 1, DEVICE_ONLY); }                             \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr d, size_t p, type v, size_t w, size_t h, CUstream s) { return fill(d, p, v, bits / 8, w, h, s, 0, ASYNC); }                      \
    CUresult cuMemsetD2D##bits##Async_ptsz(CUdeviceptr d, size_t p, type v, size_t w, size_t h, CUstream s) { return fill(d, p, v, bits / 8, w, h, s, 1, ASYNC); }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
