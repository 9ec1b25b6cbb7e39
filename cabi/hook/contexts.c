/*
 * Contexts beside the engine's: a program's own, green ones, and those of other devices.
 *
 * Each context has a default stream of its own, all by one handle. While the process has one
 * context nothing is asked. As soon as there is another, an operation on a default stream is
 * looked at for the context that is current: the engine's has index 0, every other an index of its
 * own (streams.c), so that the idle stream of one is never taken for that of another. A context
 * is heard of when it is made, retained or made current, whichever a program does first.
 */
#include "contexts.h"
#include "real.h"

#include <pthread.h>

#define MOST 256 /* those beyond are told apart, but cannot be waited for */
static uint64_t contexts[MOST];
static bool too_many;
atomic_uint psk_contexts;
static uint64_t engine; /* atomic; the engine's own, 0: not known */
static uint64_t last;   /* atomic; heard of last: most calls are about one */

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

void psk_context_heard_of(uint64_t context) {
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

void psk_context_forget(uint64_t context) {
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
    psk_context_heard_of(context);
}

bool psk_contexts_too_many(void) { return too_many; }

uint64_t psk_other_context_at(unsigned i) {
    uint64_t context = PSK_LOAD(contexts[i]);
    return context == PSK_LOAD(engine) ? 0 : context;
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
