/* Calls that put memory operations on streams. */
#define _GNU_SOURCE
#include "base.h"
#include "contexts.h"
#include "memops.h"
#include "streams.h"

static CUresult run(stream *s, op *o) {
    (void)s;
    stub_run_memop(&o->memop);
    return CUDA_SUCCESS;
}

static CUresult enqueue(memop m, CUstream h, int ptsz) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (!m.address || m.address % (m.wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
    if (s->context != stub_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (stub_implicit(h, ptsz)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (stub_should_fail(m.kind == MEMOP_WAIT ? "cuStreamWaitValue32" : "cuStreamWriteValue32")) return CUDA_ERROR_NOT_SUPPORTED;
    COUNT(m.kind == MEMOP_WAIT ? N_WAITS : N_WRITES, 1);
    op *o = stub_op(run);
    o->memop = m;
    return stub_enqueue(s, o);
}

#define MEMOP(name, kind, type, wide)                                                                                            \
    CUresult name(CUstream s, CUdeviceptr p, type v, unsigned flags) { return enqueue((memop){kind, p, v, flags, wide}, s, 0); }            \
    CUresult name##_ptsz(CUstream s, CUdeviceptr p, type v, unsigned flags) { return enqueue((memop){kind, p, v, flags, wide}, s, 1); }
MEMOP(cuStreamWaitValue32, MEMOP_WAIT, uint32_t, false)
MEMOP(cuStreamWaitValue32_v2, MEMOP_WAIT, uint32_t, false)
MEMOP(cuStreamWriteValue32, MEMOP_WRITE, uint32_t, false)
MEMOP(cuStreamWriteValue32_v2, MEMOP_WRITE, uint32_t, false)
MEMOP(cuStreamWaitValue64, MEMOP_WAIT, uint64_t, true)
MEMOP(cuStreamWaitValue64_v2, MEMOP_WAIT, uint64_t, true)
MEMOP(cuStreamWriteValue64, MEMOP_WRITE, uint64_t, true)
MEMOP(cuStreamWriteValue64_v2, MEMOP_WRITE, uint64_t, true)

static CUresult batch(CUstream h, unsigned n, const CUstreamBatchMemOpParams *ops, unsigned flags, int ptsz) {
    if (!ops || !n || n > 256 || flags) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++) {
        memop m = stub_memop_of(&ops[i]);
        CUresult r = m.kind ? enqueue(m, h, ptsz) : CUDA_ERROR_INVALID_VALUE;
        if (r) return r;
    }
    return CUDA_SUCCESS;
}

#define BATCH(name)                                                                                                               \
    CUresult name(CUstream s, unsigned n, CUstreamBatchMemOpParams *ops, unsigned flags) { return batch(s, n, ops, flags, 0); }   \
    CUresult name##_ptsz(CUstream s, unsigned n, CUstreamBatchMemOpParams *ops, unsigned flags) { return batch(s, n, ops, flags, 1); }
BATCH(cuStreamBatchMemOp)
BATCH(cuStreamBatchMemOp_v2)
