/* Streams that come and go while other threads have every stream report what it did last.
 * Only AddressSanitizer sees a report by the handle of a stream that is gone. */
#include "engine.h"

enum { CHURNERS = 3, REPORTERS = 2, STREAMS = 2000 };
static CUdeviceptr base;
static CUfunction f;
static atomic_int churning = CHURNERS;

static void *churn(void *context) {
    OK(CALL(cuCtxSetCurrent, context));
    uint64_t n = 1;
    uint32_t inc = 0;
    void *params[] = {&base, &n, &inc};
    for (int i = 0; i < STREAMS; i++) {
        CUstream s = new_stream();
        OK(CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
        SYNC(s);
        OK(CALL(cuStreamDestroy_v2, s));
    }
    atomic_fetch_sub(&churning, 1);
    return NULL;
}

static void *report(void *context) {
    OK(CALL(cuCtxSetCurrent, context));
    while (atomic_load(&churning)) S->report_all();
    return NULL;
}

static void *drain(void *unused) {
    (void)unused;
    static record r;
    while (atomic_load(&churning)) take(&r);
    return NULL;
}

int main(void) {
    start();
    attach(PSK_MODE_GATED);
    base = managed(2 * MiB);
    own(1, base, 2 * MiB, PSK_SLOT_RESIDENT);
    f = function("touch_add");
    CUcontext context;
    OK(CALL(cuCtxGetCurrent, &context));
    pthread_t t[CHURNERS + REPORTERS + 1];
    for (int i = 0; i < CHURNERS + REPORTERS + 1; i++)
        CHECK(!pthread_create(&t[i], NULL, i < CHURNERS ? churn : i < CHURNERS + REPORTERS ? report : drain, context));
    for (int i = 0; i < CHURNERS + REPORTERS + 1; i++) pthread_join(t[i], NULL);
    return 0;
}
