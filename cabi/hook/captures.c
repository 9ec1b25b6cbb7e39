/* Captures of streams into graphs, and waits that they survive. */
#include "captures.h"
#include "real.h"

atomic_int psk_captures;

typedef CUresult (*is_capturing_fn)(CUstream, int *);

CUresult psk_capture_status(CUstream stream, int ptsz, int *status) {
    static is_capturing_fn _Atomic fns[2];
    is_capturing_fn fn = atomic_load(&fns[ptsz]);
    if (!fn) {
        fn = (is_capturing_fn)psk_driver_symbol(ptsz ? "cuStreamIsCapturing_ptsz" : "cuStreamIsCapturing");
        if (!fn) return CUDA_SUCCESS; /* a driver without captures */
        atomic_store(&fns[ptsz], fn);
    }
    return fn(stream, status);
}

bool psk_stream_capturing(CUstream stream, int ptsz) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return psk_capture_status(stream, ptsz, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A call that may wait invalidates captures elsewhere unless this thread says that it does not mean them. */
typedef struct leave {
    CUresult (*exchange)(int *);
    int mode;
} leave;

static leave relax(void) {
    leave l = {NULL, CU_STREAM_CAPTURE_MODE_RELAXED};
    if (PSK_LIKELY(atomic_load(&psk_captures) == 0)) return l;
    l.exchange = (CUresult (*)(int *))psk_driver_symbol("cuThreadExchangeStreamCaptureMode");
    if (l.exchange && l.exchange(&l.mode) != CUDA_SUCCESS) l.exchange = NULL;
    return l;
}

static void back(leave l) {
    if (l.exchange) l.exchange(&l.mode);
}

CUresult psk_relaxed(CUresult (*wait)(void)) {
    leave l = relax();
    CUresult r = wait();
    back(l);
    return r;
}

CUresult psk_event_query(CUevent event) {
    static CUresult (*_Atomic query)(CUevent);
    CUresult (*fn)(CUevent) = atomic_load(&query);
    if (!fn) {
        fn = (CUresult(*)(CUevent))psk_driver_symbol("cuEventQuery");
        if (!fn) return CUDA_ERROR_NOT_FOUND;
        atomic_store(&query, fn);
    }
    leave l = relax();
    CUresult r = fn(event);
    back(l);
    return r;
}

CUresult psk_stream_synchronize(CUstream stream, int ptsz) {
    typedef CUresult (*synchronize_fn)(CUstream);
    static synchronize_fn _Atomic fns[2];
    synchronize_fn fn = atomic_load(&fns[ptsz]);
    if (!fn) {
        fn = (synchronize_fn)psk_driver_symbol(ptsz ? "cuStreamSynchronize_ptsz" : "cuStreamSynchronize");
        if (!fn) return CUDA_ERROR_NOT_FOUND;
        atomic_store(&fns[ptsz], fn);
    }
    leave l = relax();
    CUresult r = fn(stream);
    back(l);
    return r;
}
