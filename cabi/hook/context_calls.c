/* The wrappers of calls that make contexts, make them current and end them, and of those that end modules. */
#include "context_calls.h"
#include "captures.h"
#include "contexts.h"
#include "func.h"
#include "real.h"
#include "stream_calls.h"

#include <pthread.h>

/* Contexts neither come nor go while it is held. Taken before all other locks, and across driver calls. */
static pthread_mutex_t life_mu = PTHREAD_MUTEX_INITIALIZER;

/* ---- what makes one, or makes it current ---- */

#define BORN(name, args, call)                                              \
    CUresult psk_w_##name args {                                            \
        if (atomic_load(&psk_child)) return PSK_REAL(name) call; /* it may find the lock taken */ \
        pthread_mutex_lock(&life_mu);                             \
        CUresult r = PSK_REAL(name) call;                         \
        if (r == CUDA_SUCCESS) psk_context_heard_of((uint64_t)(uintptr_t)*c); \
        pthread_mutex_unlock(&life_mu);                           \
        return r;                                                 \
    }
BORN(cuCtxCreate, (CUcontext *c, unsigned flags, CUdevice d), (c, flags, d))
BORN(cuCtxCreate_v2, (CUcontext *c, unsigned flags, CUdevice d), (c, flags, d))
BORN(cuCtxCreate_v3, (CUcontext *c, void *affinity, int n, unsigned flags, CUdevice d), (c, affinity, n, flags, d))
BORN(cuCtxCreate_v4, (CUcontext *c, void *params, unsigned flags, CUdevice d), (c, params, flags, d))
BORN(cuCtxFromGreenCtx, (CUcontext *c, CUgreenCtx green), (c, green))
BORN(cuDevicePrimaryCtxRetain, (CUcontext *c, CUdevice d), (c, d))

#define CURRENT(name)                                      \
    CUresult psk_w_##name(CUcontext c) {                   \
        CUresult r = PSK_REAL(name)(c);                    \
        if (r == CUDA_SUCCESS) psk_context_heard_of((uint64_t)(uintptr_t)c); \
        return r;                                          \
    }
CURRENT(cuCtxSetCurrent)
CURRENT(cuCtxPushCurrent)
CURRENT(cuCtxPushCurrent_v2)

/* ---- what ends one ---- */

static CUresult destroy_context(CUcontext c, CUresult (*destroy)(void *), void *handle, bool ends_work) {
    if (atomic_load(&psk_child)) return destroy(handle);
    uint64_t context = (uint64_t)(uintptr_t)c;
    pthread_mutex_lock(&life_mu);
    CUresult r = destroy(handle);
    if (r == CUDA_SUCCESS && context) {
        psk_streams_gone(context, ends_work);
        psk_context_forget(context);
    }
    pthread_mutex_unlock(&life_mu);
    return r;
}

/* ---- what ends functions: layouts that were known are asked for again ---- */

#define UNLOAD_BY(name, type, call)       \
    CUresult psk_w_##name(type handle) {  \
        psk_func_unload_begins();         \
        CUresult r = (call);              \
        psk_func_unload_ended();          \
        return r;                         \
    }
#define UNLOAD(name, type) UNLOAD_BY(name, type, PSK_REAL(name)(handle))
#define DESTROY(name, type, context, ends_work) UNLOAD_BY(name, type, destroy_context(context, (CUresult (*)(void *))PSK_REAL(name), handle, ends_work))
UNLOAD(cuModuleUnload, CUmodule)
UNLOAD(cuLibraryUnload, CUlibrary)
UNLOAD(cuDevicePrimaryCtxReset, CUdevice)
UNLOAD(cuDevicePrimaryCtxReset_v2, CUdevice)
UNLOAD(cuDevicePrimaryCtxRelease, CUdevice)
UNLOAD(cuDevicePrimaryCtxRelease_v2, CUdevice)
UNLOAD(cuCtxDetach, CUcontext) /* which may not be the last to have it */
DESTROY(cuCtxDestroy, CUcontext, handle, true)
DESTROY(cuCtxDestroy_v2, CUcontext, handle, true)

/* The context by which it is made current. */
static CUcontext of_green(CUgreenCtx green) {
    CUresult (*context_of)(CUcontext *, CUgreenCtx) = (CUresult (*)(CUcontext *, CUgreenCtx))psk_driver_symbol("cuCtxFromGreenCtx");
    CUcontext c;
    return green && context_of && context_of(&c, green) == CUDA_SUCCESS ? c : NULL;
}
DESTROY(cuGreenCtxDestroy, CUgreenCtx, of_green(handle), false)

/* ---- waiting for them ---- */

uint32_t psk_synchronize_others(void) {
    if (atomic_load(&psk_contexts) <= 1) return CUDA_SUCCESS;
    typedef CUresult (*synchronize_fn)(void);
    typedef CUresult (*pop_fn)(CUcontext *);
    synchronize_fn synchronize = (synchronize_fn)psk_driver_symbol("cuCtxSynchronize");
    pop_fn pop = (pop_fn)psk_driver_symbol("cuCtxPopCurrent_v2");
    if (!synchronize || !pop) return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&life_mu);
    CUresult r = psk_contexts_too_many() ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    for (unsigned i = 0; i < atomic_load(&psk_contexts) && !r; i++) { /* none leaves; the lock of contexts.c is not for driver calls */
        CUcontext c = (CUcontext)(uintptr_t)psk_other_context_at(i);
        if (!c) continue;
        r = PSK_REAL(cuCtxPushCurrent_v2)(c);
        if (r == CUDA_SUCCESS) {
            r = psk_relaxed(synchronize);
            pop(&c);
        } else if (r == CUDA_ERROR_INVALID_CONTEXT || r == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
            r = CUDA_SUCCESS; /* nothing of it runs */
        }
    }
    pthread_mutex_unlock(&life_mu);
    return r;
}
