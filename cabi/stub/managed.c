/* Managed memory: advice, prefetch, discard. */
#define _GNU_SOURCE
#include "base.h"
#include "contexts.h"
#include "ranges.h"
#include "streams.h"

#include <string.h>

#define mu stub_memory_mu

static CUresult advise(CUdeviceptr p, size_t n, int advice, int location) {
    READY();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    if (r && r->kind == MANAGED && n && n <= r->base + r->bytes - p && advice >= 1 && advice <= 6) {
        r->advice[advice] = 1;
        r->advice_location[advice] = location;
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemAdvise(CUdeviceptr p, size_t n, int advice, CUdevice dev) { return advise(p, n, advice, dev); }
CUresult cuMemAdvise_v2(CUdeviceptr p, size_t n, int advice, CUmemLocation l) { return advise(p, n, advice, l.type == 1 ? l.id : -1); }

enum { MOVE_PREFETCH = 1, MOVE_DISCARD = 2 };

/* a: address, b: bytes, c: 1 to the device, d: MOVE_* */
static CUresult run_move(stream *s, op *o) {
    (void)s;
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&mu);
    range *r = stub_find(o->a);
    if (!r || r->kind != MANAGED || o->b > r->base + r->bytes - o->a) {
        rc = CUDA_ERROR_INVALID_VALUE; /* freed meanwhile: the caller's error */
    } else {
        if (o->d & MOVE_DISCARD) {
            /* Really gone, so that a live block discarded by mistake shows in the results. */
            memset((void *)(uintptr_t)o->a, 0xdb, o->b);
            uint64_t at = r->base + (o->a - r->base) / STUB_BLOCK * STUB_BLOCK;
            FOR_BLOCKS(b, r, o->a, o->b) {
                if (at >= o->a && at + STUB_BLOCK <= o->a + o->b) b->discarded = true;
                at += STUB_BLOCK;
            }
        }
        if (o->d & MOVE_PREFETCH) {
            FOR_BLOCKS(b, r, o->a, o->b) {
                if (o->c) {
                    if (!stub_to_device(b)) break; /* a hint: what does not fit stays */
                } else {
                    stub_to_host(b);
                }
                b->discarded = false;
            }
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

static CUresult check_managed(CUdeviceptr p, size_t n) {
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    bool ok = r && r->kind == MANAGED && n && n <= r->base + r->bytes - p;
    pthread_mutex_unlock(&mu);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult move(CUdeviceptr p, size_t n, bool device, int what, CUstream h, int ptsz) {
    CUresult rc = check_managed(p, n);
    stream *s = stub_stream(h, ptsz);
    if (rc != CUDA_SUCCESS || !s) return rc != CUDA_SUCCESS ? rc : CUDA_ERROR_INVALID_HANDLE;
    op *o = stub_op(run_move);
    o->a = p, o->b = n, o->c = device, o->d = (uint64_t)what;
    return stub_enqueue(s, o);
}

static CUresult prefetch(CUdeviceptr p, size_t n, bool device, CUstream h, int ptsz) {
    CURRENT();
    if (stub_should_fail("cuMemPrefetch")) return CUDA_ERROR_OUT_OF_MEMORY;
    COUNT(N_PREFETCHES, 1);
    return move(p, n, device, MOVE_PREFETCH, h, ptsz);
}

CUresult cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice dev, CUstream s) { return prefetch(p, n, dev >= 0, s, 0); }
CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr p, size_t n, CUdevice dev, CUstream s) { return prefetch(p, n, dev >= 0, s, 1); }
CUresult cuMemPrefetchAsync_v2(CUdeviceptr p, size_t n, CUmemLocation l, unsigned flags, CUstream s) { return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(p, n, l.type == 1, s, 0); }
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr p, size_t n, CUmemLocation l, unsigned flags, CUstream s) { return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(p, n, l.type == 1, s, 1); }

static CUresult batch(CUdeviceptr *p, size_t *n, size_t count, CUmemLocation *locs, size_t *idx, size_t nlocs, unsigned long long flags, int what, CUstream s, int ptsz) {
    CURRENT();
    if (!count || flags || !stub_stream(s, ptsz) || ((!s || s == CU_STREAM_LEGACY) && !ptsz)) return CUDA_ERROR_INVALID_VALUE;
    if (what & MOVE_PREFETCH) {
        if (!nlocs || idx[0] != 0) return CUDA_ERROR_INVALID_VALUE;
        if (stub_should_fail("cuMemPrefetch")) return CUDA_ERROR_OUT_OF_MEMORY;
        COUNT(N_PREFETCHES, 1);
    }
    if (what & MOVE_DISCARD) COUNT(N_DISCARDS, 1);
    for (size_t i = 0; i < count; i++)
        if (check_managed(p[i], n[i]) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, l = 0; i < count; i++) {
        while (what & MOVE_PREFETCH && l + 1 < nlocs && idx[l + 1] <= i) l++;
        CUresult rc = move(p[i], n[i], what & MOVE_PREFETCH && locs[l].type == 1, what, s, ptsz);
        if (rc != CUDA_SUCCESS) return rc;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr *p, size_t *n, size_t count, CUmemLocation *locs, size_t *idx, size_t nlocs, unsigned long long flags, CUstream s) { return batch(p, n, count, locs, idx, nlocs, flags, MOVE_PREFETCH, s, 0); }
CUresult cuMemDiscardBatchAsync(CUdeviceptr *p, size_t *n, size_t count, unsigned long long flags, CUstream s) { return batch(p, n, count, NULL, NULL, 0, flags, MOVE_DISCARD, s, 0); }
CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *p, size_t *n, size_t count, CUmemLocation *locs, size_t *idx, size_t nlocs, unsigned long long flags, CUstream s) { return batch(p, n, count, locs, idx, nlocs, flags, MOVE_DISCARD | MOVE_PREFETCH, s, 0); }
