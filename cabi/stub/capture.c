/* Captures. */
#define _GNU_SOURCE
#include "contexts.h"
#include "streams.h"
#include "work.h"

static CUresult begin_capture(CUstream h, CUgraph into, int mode, int ptsz) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (stub_is_legacy(h, ptsz)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    s->capture_invalid = false;
    s->capture_origin = true;
    s->capture_mode = mode;
    s->capture_thread = pthread_self();
    s->capture = into ? into : stub_graph_new();
    if (!s->capture) return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_fetch_add(&stub_captures, 1);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream s) { return begin_capture(s, NULL, 0, 0); }
CUresult cuStreamBeginCapture_ptsz(CUstream s) { return begin_capture(s, NULL, 0, 1); }
CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { return begin_capture(s, NULL, mode, 0); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, int mode) { return begin_capture(s, NULL, mode, 1); }
CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph g, const CUgraphNode *d, const void *e, size_t n, int mode) { return (void)d, (void)e, (void)n, begin_capture(s, g, mode, 0); }
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph g, const CUgraphNode *d, const void *e, size_t n, int mode) { return (void)d, (void)e, (void)n, begin_capture(s, g, mode, 1); }
CUresult cuStreamBeginRecaptureToGraph(CUstream s, int mode, CUgraph g, void *callback, void *arg) { return (void)callback, (void)arg, begin_capture(s, g, mode, 0); }
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, int mode, CUgraph g, void *callback, void *arg) { return (void)callback, (void)arg, begin_capture(s, g, mode, 1); }
CUresult cuStreamBeginCaptureToCig(CUstream s, void *params) { return (void)params, begin_capture(s, NULL, 0, 0); }
CUresult cuStreamBeginCaptureToCig_ptsz(CUstream s, void *params) { return (void)params, begin_capture(s, NULL, 0, 1); }

static CUresult end_capture(CUstream h, CUgraph *out, int ptsz) {
    READY();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (!s->capture || !s->capture_origin) return CUDA_ERROR_ILLEGAL_STATE;
    CUgraph g = s->capture;
    atomic_fetch_sub(&stub_captures, 1);
    bool invalid = stub_leave_capture(g);
    *out = invalid ? NULL : g;
    return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream s, CUgraph *g) { return end_capture(s, g, 0); }
CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *g) { return end_capture(s, g, 1); }
CUresult cuStreamEndCaptureToCig(CUstream s) { return end_capture(s, &(CUgraph){NULL}, 0); }
CUresult cuStreamEndCaptureToCig_ptsz(CUstream s) { return end_capture(s, &(CUgraph){NULL}, 1); }

static CUresult is_capturing(CUstream h, int *status, int ptsz) {
    READY();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (stub_implicit(h, ptsz)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = !s->capture ? CU_STREAM_CAPTURE_STATUS_NONE : s->capture_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream s, int *status) { return is_capturing(s, status, 0); }
CUresult cuStreamIsCapturing_ptsz(CUstream s, int *status) { return is_capturing(s, status, 1); }
