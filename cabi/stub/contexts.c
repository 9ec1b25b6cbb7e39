/* Contexts: a stack of them for each thread. */
#define _GNU_SOURCE
#include "contexts.h"

#include <pthread.h>
#include <stdlib.h>

static struct CUctx_st primary;
static atomic_int primary_refs;
static CUcontext spare; /* destroyed */
static pthread_mutex_t contexts_mu = PTHREAD_MUTEX_INITIALIZER;

enum { DEPTH = 8 };
static __thread CUcontext stack[DEPTH];
static __thread unsigned depth;

CUcontext stub_context(void) { return depth ? stack[depth - 1] : NULL; }

CUcontext stub_legacy_context(void) { return stub_context() ? stub_context() : &primary; }

bool stub_is_primary(CUcontext c) { return c == &primary; }

uint64_t stub_context_id(void) { return stub_context() ? stub_context()->id : 0; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    atomic_fetch_add(&primary_refs, 1);
    *ctx = &primary;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    if (atomic_load(&primary_refs) == 0) return CUDA_ERROR_INVALID_CONTEXT;
    atomic_fetch_sub(&primary_refs, 1);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    READY();
    return dev == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = atomic_load(&primary_refs) > 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags) {
    READY();
    (void)flags;
    return dev == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUcontext context_new(void) {
    static uint64_t ids;
    pthread_mutex_lock(&contexts_mu);
    CUcontext c = spare;
    if (c)
        spare = c->next;
    else
        c = malloc(sizeof *c);
    if (c) *c = (struct CUctx_st){.id = ++ids};
    pthread_mutex_unlock(&contexts_mu);
    return c;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    READY();
    if (!ctx || depth == DEPTH) return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext ctx) { return cuCtxPushCurrent_v2(ctx); }

CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
    READY();
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (ctx) *ctx = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev) {
    READY();
    (void)flags;
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    *ctx = context_new();
    return *ctx ? cuCtxPushCurrent_v2(*ctx) : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice dev) { return cuCtxCreate_v2(ctx, flags, dev); }
CUresult cuCtxCreate_v3(CUcontext *ctx, void *params, int n, unsigned flags, CUdevice dev) { return (void)params, (void)n, cuCtxCreate_v2(ctx, flags, dev); }
CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned flags, CUdevice dev) { return (void)params, cuCtxCreate_v2(ctx, flags, dev); }

void stub_context_drop(CUcontext c) {
    if (stub_context() == c) depth--;
    pthread_mutex_lock(&contexts_mu);
    c->next = spare;
    spare = c;
    pthread_mutex_unlock(&contexts_mu);
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    READY();
    if (depth) depth--;
    return ctx ? cuCtxPushCurrent_v2(ctx) : CUDA_SUCCESS;
}

/* Green contexts: contexts by another name. */
CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice dev, unsigned flags) {
    READY();
    (void)resources, (void)flags;
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext c = context_new();
    *green = (CUgreenCtx)c;
    return c ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green) {
    READY();
    *ctx = (CUcontext)green;
    return CUDA_SUCCESS;
}

static _Atomic CUresult ended;

void stub_failed(CUresult rc) {
    CUresult none = CUDA_SUCCESS;
    if (rc == CUDA_ERROR_ILLEGAL_ADDRESS || rc == CUDA_ERROR_ECC_UNCORRECTABLE) atomic_compare_exchange_strong(&ended, &none, rc);
}

CUresult stub_ended(void) { return atomic_load(&ended); }

CUresult stub_current(void) {
    READY();
    return stub_context() ? stub_ended() : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetCurrent(CUcontext *ctx) {
    READY();
    *ctx = stub_context();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *dev) {
    READY();
    if (!stub_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *dev = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    READY();
    *least = 0, *greatest = -5;
    return CUDA_SUCCESS;
}
