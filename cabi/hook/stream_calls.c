/* The wrappers of calls that begin and end captures, and of those that end streams. */
#include "stream_calls.h"
#include "captures.h"
#include "progress.h"
#include "real.h"
#include "streams.h"

/* ---- captures ---- */

/* Counted before it begins and after it ended. */
#define BEGIN(call)                                            \
    atomic_fetch_add(&psk_captures, 1);                        \
    CUresult r = (call);                                       \
    if (r != CUDA_SUCCESS) atomic_fetch_sub(&psk_captures, 1); \
    return r

CUresult psk_w_cuStreamBeginCapture(CUstream s) { BEGIN(PSK_REAL(cuStreamBeginCapture)(s)); }
CUresult psk_w_cuStreamBeginCapture_ptsz(CUstream s) { BEGIN(PSK_REAL(cuStreamBeginCapture_ptsz)(s)); }
CUresult psk_w_cuStreamBeginCapture_v2(CUstream s, int mode) { BEGIN(PSK_REAL(cuStreamBeginCapture_v2)(s, mode)); }
CUresult psk_w_cuStreamBeginCapture_v2_ptsz(CUstream s, int mode) { BEGIN(PSK_REAL(cuStreamBeginCapture_v2_ptsz)(s, mode)); }
CUresult psk_w_cuStreamBeginCaptureToGraph(CUstream s, CUgraph g, const CUgraphNode *deps, const void *data, size_t n, int mode) { BEGIN(PSK_REAL(cuStreamBeginCaptureToGraph)(s, g, deps, data, n, mode)); }
CUresult psk_w_cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph g, const CUgraphNode *deps, const void *data, size_t n, int mode) { BEGIN(PSK_REAL(cuStreamBeginCaptureToGraph_ptsz)(s, g, deps, data, n, mode)); }
CUresult psk_w_cuStreamBeginRecaptureToGraph(CUstream s, int mode, CUgraph g, void *callback, void *arg) { BEGIN(PSK_REAL(cuStreamBeginRecaptureToGraph)(s, mode, g, callback, arg)); }
CUresult psk_w_cuStreamBeginRecaptureToGraph_ptsz(CUstream s, int mode, CUgraph g, void *callback, void *arg) { BEGIN(PSK_REAL(cuStreamBeginRecaptureToGraph_ptsz)(s, mode, g, callback, arg)); }
CUresult psk_w_cuStreamBeginCaptureToCig(CUstream s, void *params) { BEGIN(PSK_REAL(cuStreamBeginCaptureToCig)(s, params)); }
CUresult psk_w_cuStreamBeginCaptureToCig_ptsz(CUstream s, void *params) { BEGIN(PSK_REAL(cuStreamBeginCaptureToCig_ptsz)(s, params)); }

/* An end may fail and leave the capture running (wrong thread) or end it all the same (invalidated): ask before and after. */
#define END(call, ptsz)                                                            \
    bool was = atomic_load(&psk_captures) > 0 && psk_stream_capturing(s, ptsz);    \
    CUresult r = (call);                                                           \
    if (was && !psk_stream_capturing(s, ptsz)) atomic_fetch_sub(&psk_captures, 1); \
    return r

CUresult psk_w_cuStreamEndCapture(CUstream s, CUgraph *g) { END(PSK_REAL(cuStreamEndCapture)(s, g), 0); }
CUresult psk_w_cuStreamEndCapture_ptsz(CUstream s, CUgraph *g) { END(PSK_REAL(cuStreamEndCapture_ptsz)(s, g), 1); }
CUresult psk_w_cuStreamEndCaptureToCig(CUstream s) { END(PSK_REAL(cuStreamEndCaptureToCig)(s), 0); }
CUresult psk_w_cuStreamEndCaptureToCig_ptsz(CUstream s) { END(PSK_REAL(cuStreamEndCaptureToCig_ptsz)(s), 1); }

/* ---- streams that go away ---- */

/* Forgets a stream that is about to be destroyed. idle: everything queued on it is done. */
static void forget(uint64_t handle, bool idle) {
    uint32_t index = psk_stream_known(handle);
    if (index != PSK_STREAM_SHARED && (idle || !(handle & PSK_STREAM_DEFAULT_OF))) psk_stream_report((CUstream)(uintptr_t)handle, index, idle);
    psk_stream_forget(handle, idle);
}

void psk_streams_gone(uint64_t context, bool ended) {
    for (uint32_t i = 0; ended && i < PSK_STREAM_SHARED; i++)
        if (psk_streams[i].context == context) psk_stream_report(NULL, i, true);
    unsigned row = 0;
    for (uint64_t handle; (handle = psk_stream_next(&row, context));) forget(handle, ended);
}

static void before_destroy(CUstream s) {
    if (!psk_active() || (uintptr_t)s <= 2) return;
    typedef CUresult (*query_fn)(CUstream);
    query_fn query = (query_fn)psk_driver_symbol("cuStreamQuery");
    /* A query while something captures could invalidate the capture. */
    bool idle = atomic_load(&psk_captures) == 0 && query && query(s) == CUDA_SUCCESS;
    forget((uint64_t)(uintptr_t)s, idle);
}

CUresult psk_w_cuStreamDestroy(CUstream s) {
    before_destroy(s);
    return PSK_REAL(cuStreamDestroy)(s);
}

CUresult psk_w_cuStreamDestroy_v2(CUstream s) {
    before_destroy(s);
    return PSK_REAL(cuStreamDestroy_v2)(s);
}
