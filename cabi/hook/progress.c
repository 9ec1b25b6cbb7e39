/* How the engine hears that operations are finished: writes that a stream makes when it comes to them. */
#include "progress.h"
#include "captures.h"
#include "contexts.h"
#include "real.h"
#include "streams.h"

#include <stdio.h>

/* ---- stream memory operations ---- */

typedef CUresult (*memop_fn)(CUstream, CUdeviceptr, uint32_t, unsigned);
static struct {
    memop_fn wait, write;
} memops[2];
static atomic_int memops_known; /* 1: usable, -1: not */

static memop_fn memop(const char *name, int ptsz) {
    char full[48];
    for (int v2 = 1; v2 >= 0; v2--) {
        snprintf(full, sizeof full, "%s%s%s", name, v2 ? "_v2" : "", ptsz ? "_ptsz" : "");
        memop_fn fn = (memop_fn)psk_driver_symbol(full);
        if (fn) return fn;
    }
    return NULL;
}

/* Only what every such call would be refused for: a thread without a context, or another's, a stream that is
 * gone, or a context that an error has ended, says nothing of the calls of others. */
static void unusable(const char *what, CUresult r) {
    if (r != CUDA_ERROR_NOT_SUPPORTED && r != CUDA_ERROR_NOT_FOUND && r != CUDA_ERROR_INVALID_VALUE) return;
    if (atomic_exchange(&memops_known, -1) == -1) return;
    const char *now = PSK_LOAD(psk_S.mode) == PSK_MODE_STRICT ? "operations now run one at a time" : "launches are no longer gated, so absent memory is faulted in";
    fprintf(stderr, "penstock: %s failed (CUDA error %d): %s\n", what, r, now);
}

bool psk_have_memops(void) {
    int known = atomic_load_explicit(&memops_known, memory_order_acquire);
    if (PSK_LIKELY(known)) return known > 0;
    bool all = true;
    for (int ptsz = 0; ptsz < 2; ptsz++) {
        memops[ptsz].wait = memop("cuStreamWaitValue32", ptsz);
        memops[ptsz].write = memop("cuStreamWriteValue32", ptsz);
        all = all && memops[ptsz].wait && memops[ptsz].write;
    }
    if (all)
        atomic_store_explicit(&memops_known, 1, memory_order_release);
    else
        unusable("finding cuStreamWaitValue32", CUDA_ERROR_NOT_FOUND);
    return all;
}

bool psk_memop_wait(CUstream stream, int ptsz, uint32_t *word, uint32_t value) {
    CUresult r = memops[ptsz].wait(stream, (CUdeviceptr)(uintptr_t)word, value, CU_STREAM_WAIT_VALUE_GEQ);
    if (PSK_UNLIKELY(r != CUDA_SUCCESS)) unusable("cuStreamWaitValue32", r);
    return r == CUDA_SUCCESS;
}

bool psk_memop_write(CUstream stream, int ptsz, uint32_t *word, uint32_t value) {
    CUresult r = memops[ptsz].write(stream, (CUdeviceptr)(uintptr_t)word, value, CU_STREAM_WRITE_VALUE_DEFAULT); /* driver 580 refuses the flag NO_MEMORY_BARRIER */
    if (PSK_UNLIKELY(r != CUDA_SUCCESS)) unusable("cuStreamWriteValue32", r);
    return r == CUDA_SUCCESS;
}

/* ---- reports of what no progress write has covered ---- */

/* Under the stream's lock. */
static void report(psk_stream *s, CUstream stream, uint32_t index, bool idle) {
    if (s->unreported && psk_S.progress && atomic_load(&memops_known) > 0) {
        uint32_t *word = &psk_S.progress[index * 16];
        /* Destroying a stream lets its queue run out, the write included. */
        if (!idle && !psk_memop_write(stream, 0, word, (uint32_t)s->last)) {
            if (psk_stream_synchronize(stream, 0) != CUDA_SUCCESS) return; /* better never than too early */
            idle = true;
        }
        if (idle) __atomic_store_n(word, (uint32_t)s->last, __ATOMIC_RELEASE);
        s->queued++;
        s->unreported = false;
    }
}

void psk_stream_report(CUstream stream, uint32_t index, bool idle) {
    psk_stream *s = &psk_streams[index];
    psk_stream_lock(s);
    s->unreported |= s->last != 0; /* also after an operation without progress: its index waits for the report */
    report(s, stream, index, idle);
    psk_stream_unlock(s);
}

/* Whether the thread's context is the stream's: the driver refuses a write from another, or takes its own default stream. */
static bool in_context_of(CUstream stream) {
    if (!stream) return !psk_other_context();
    typedef CUresult (*stream_context_fn)(CUstream, CUcontext *);
    typedef CUresult (*current_fn)(CUcontext *);
    stream_context_fn context_of = (stream_context_fn)psk_driver_symbol("cuStreamGetCtx");
    current_fn current = (current_fn)psk_driver_symbol("cuCtxGetCurrent");
    CUcontext theirs, ours;
    return context_of && current && context_of(stream, &theirs) == CUDA_SUCCESS && current(&ours) == CUDA_SUCCESS && theirs == ours;
}

void psk_report_all(void) {
    uint32_t n = PSK_LOAD(psk_S.nstreams);
    if (n > PSK_STREAM_SHARED) n = PSK_STREAM_SHARED; /* those beyond are idle after each operation */
    for (uint32_t i = 0; i < n; i++) {
        psk_stream *s = &psk_streams[i];
        /* Who holds the lock is about to report, or waits, and has reported before that. */
        if (!PSK_LOAD(s->unreported) || !psk_stream_trylock(s)) continue;
        /* Only now: who destroys a stream has it reported first, which takes the lock. Its index may be another's since. */
        CUstream stream = (CUstream)(uintptr_t)PSK_LOAD(psk_S.streams[i]);
        /* Not those that are gone, nor another thread's default stream, which reports each operation. */
        bool ours = s->unreported && (i == 0 || (uintptr_t)stream > PSK_STREAM_PER_THREAD) && (uintptr_t)stream != PSK_STREAM_GONE;
        if (ours && (atomic_load(&psk_captures) == 0 || !psk_stream_capturing(stream, 0)) && in_context_of(stream)) report(s, stream, i, false);
        psk_stream_unlock(s);
    }
}

/* The operations that streams have issued last are reported by those that follow. A
 * stream that is quiet from then on would keep what they name for as long: so after
 * so many operations on all streams whoever launches has every stream report. The
 * engine cannot: in gated mode none of its threads may call the driver. */
#define QUIET_OPS 512

void psk_report_quiet(uint64_t seq) {
    static _Atomic uint64_t reported;
    uint64_t last = atomic_load_explicit(&reported, memory_order_relaxed);
    if (PSK_LIKELY(seq < last + QUIET_OPS)) return;
    if (atomic_compare_exchange_strong(&reported, &last, seq)) psk_report_all();
}
