/*
 * Contexts beside the engine's: a program's own, green ones, and those of other devices.
 *
 * Each context has a default stream of its own, all by one handle. While the process has one
 * context nothing is asked. As soon as there is another, an operation on a default stream is
 * looked at for the context that is current: the engine's has index 0, every other an index of its
 * own (streams.c), so that the idle stream of one is never taken for that of another. A context
 * is heard of when it is made, retained or made current, whichever a program does first.
 */
#include "internal.h"

#include <pthread.h>

#define MOST 256 /* those beyond are told apart, but cannot be waited for */
static uint64_t contexts[MOST];
static bool too_many;
atomic_uint psk_contexts;
static uint64_t engine; /* atomic; the engine's own, 0: not known */
static uint64_t last;   /* atomic; heard of last: most calls are about one */

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
/* Contexts neither come nor go while it is held. Taken before mu, and across driver calls. */
static pthread_mutex_t life_mu = PTHREAD_MUTEX_INITIALIZER;

static void heard_of(uint64_t context) {
    if (!context || PSK_LOAD(last) == context || atomic_load(&psk_child)) return;
    pthread_mutex_lock(&mu);
    unsigned n = atomic_load(&psk_contexts), i = 0;
    while (i < n && contexts[i] != context) i++;
    if (i == MOST) {
        too_many = true;
    } else if (i == n) {
        contexts[n] = context;
        atomic_store(&psk_contexts, n + 1);
    }
    __atomic_store_n(&last, context, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mu);
}

static void forget(uint64_t context) {
    pthread_mutex_lock(&mu);
    unsigned n = atomic_load(&psk_contexts), i = 0;
    while (i < n && contexts[i] != context) i++;
    if (i < n) {
        contexts[i] = contexts[n - 1];
        atomic_store(&psk_contexts, n - 1);
    }
    __atomic_store_n(&last, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&mu);
}

static uint64_t current(void) {
    typedef CUresult (*current_fn)(CUcontext *);
    static current_fn _Atomic found;
    current_fn fn = atomic_load(&found);
    if (!fn) atomic_store(&found, fn = (current_fn)psk_driver_symbol("cuCtxGetCurrent"));
    CUcontext c = NULL;
    return fn && fn(&c) == CUDA_SUCCESS ? (uint64_t)(uintptr_t)c : 0;
}

void psk_serve(void) {
    uint64_t context = current();
    __atomic_store_n(&engine, context, __ATOMIC_RELEASE);
    heard_of(context);
}

uint64_t psk_other_context_slow(void) {
    uint64_t own = PSK_LOAD(engine), context = own ? current() : 0;
    return context == own ? 0 : context; /* 0 without one: the driver will refuse the operation */
}

uint64_t psk_stream_other_context(CUstream stream) {
    typedef CUresult (*context_fn)(CUstream, CUcontext *);
    uint64_t own = PSK_LOAD(engine);
    if (PSK_LIKELY(atomic_load(&psk_contexts) <= 1) || !own) return 0;
    context_fn context_of = (context_fn)psk_driver_symbol("cuStreamGetCtx");
    CUcontext c;
    if (!context_of || context_of(stream, &c) != CUDA_SUCCESS) return PSK_CONTEXT_UNKNOWN;
    return (uint64_t)(uintptr_t)c == own ? 0 : (uint64_t)(uintptr_t)c;
}

/* ---- what makes one, or makes it current ---- */

#define BORN(name, args, call)                                              \
    CUresult psk_w_##name args {                                            \
        if (atomic_load(&psk_child)) return PSK_REAL(name) call; /* it may find the lock taken */ \
        pthread_mutex_lock(&life_mu);                             \
        CUresult r = PSK_REAL(name) call;                         \
        if (r == CUDA_SUCCESS) heard_of((uint64_t)(uintptr_t)*c); \
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
        if (r == CUDA_SUCCESS) heard_of((uint64_t)(uintptr_t)c); \
        return r;                                          \
    }
CURRENT(cuCtxSetCurrent)
CURRENT(cuCtxPushCurrent)
CURRENT(cuCtxPushCurrent_v2)

/* ---- what ends one ---- */

CUresult psk_context_destroy(CUcontext c, CUresult (*destroy)(void *), void *handle, bool ends_work) {
    if (atomic_load(&psk_child)) return destroy(handle);
    uint64_t context = (uint64_t)(uintptr_t)c;
    pthread_mutex_lock(&life_mu);
    CUresult r = destroy(handle);
    if (r == CUDA_SUCCESS && context) {
        psk_streams_gone(context, ends_work);
        forget(context);
    }
    pthread_mutex_unlock(&life_mu);
    return r;
}

/* ---- waiting for them ---- */

uint32_t psk_synchronize_others(void) {
    if (atomic_load(&psk_contexts) <= 1) return CUDA_SUCCESS;
    typedef CUresult (*synchronize_fn)(void);
    typedef CUresult (*pop_fn)(CUcontext *);
    synchronize_fn synchronize = (synchronize_fn)psk_driver_symbol("cuCtxSynchronize");
    pop_fn pop = (pop_fn)psk_driver_symbol("cuCtxPopCurrent_v2");
    if (!synchronize || !pop) return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&life_mu);
    CUresult r = too_many ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
    for (unsigned i = 0; i < atomic_load(&psk_contexts) && !r; i++) { /* none leaves; mu is not for driver calls */
        CUcontext c = (CUcontext)(uintptr_t)PSK_LOAD(contexts[i]);
        if ((uint64_t)(uintptr_t)c == PSK_LOAD(engine)) continue;
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
