/*
 * Stream indices, the lock of a stream, and captures.
 *
 * An index is found without a lock: an open-addressing table of handles, to
 * which rows are added under a mutex. The index of a destroyed stream is given
 * to a new one only when the old stream has done all its work and its records
 * have been read, so that nothing late of the old one is taken for the new one's.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

psk_stream psk_streams[PSK_MAX_STREAMS];
atomic_int psk_captures;

#define TABLE 4096 /* power of two; streams beyond PSK_MAX_STREAMS take rows too, with the shared index */
#define GONE PSK_STREAM_GONE
static struct {
    _Atomic uint64_t handle; /* 0: never used; GONE: destroyed */
    atomic_uint index;
} table[TABLE];
static unsigned rows_used;
static uint32_t free_index[PSK_MAX_STREAMS], nfree; /* of destroyed streams, to be given out */
static struct {
    uint32_t index;
    bool reports;  /* the stream was at work, and reports its last operation */
    uint64_t head; /* its records are before it */
} leaving[PSK_MAX_STREAMS]; /* of destroyed streams, until all that is known of them has been read */
static uint32_t nleaving;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

/* Threads have a default stream each in every context, all by the handle CU_STREAM_PER_THREAD. */
#define OWN 4 /* the first is of the engine's context; those of more contexts than these share an index */
typedef struct own_default {
    uint64_t context;
    uint32_t index;
} own_default;
PSK_TLS own_default own[OWN];
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

static unsigned hash(uint64_t h) { return (unsigned)((h * 0x9e3779b97f4a7c15u) >> 40) & (TABLE - 1); }

/* An index whose stream is gone can be given out when the stream has done what it was given, and
 * its records have been read: they bear the index only. Under mu. */
static void give_index(uint32_t index, bool idle) {
    if (index == PSK_STREAM_SHARED) return;
    __atomic_store_n(&psk_S.streams[index], GONE, __ATOMIC_RELEASE);
    leaving[nleaving].index = index;
    leaving[nleaving].reports = !idle && psk_streams[index].last && psk_S.progress;
    leaving[nleaving++].head = __atomic_load_n(&psk_S.head, __ATOMIC_SEQ_CST);
}

static bool has_left(uint32_t i) {
    uint32_t index = leaving[i].index;
    if (leaving[i].reports && PSK_LOAD(psk_S.progress[index * 16]) != (uint32_t)psk_streams[index].last) return false;
    return __atomic_load_n(&psk_S.tail, __ATOMIC_ACQUIRE) >= leaving[i].head || PSK_LOAD(psk_S.mode) == PSK_MODE_OFF;
}

static void collect_left(void) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < nleaving; i++) {
        if (has_left(i))
            free_index[nfree++] = leaving[i].index;
        else
            leaving[kept++] = leaving[i];
    }
    nleaving = kept;
}

/* The index of those that have none of their own. */
static uint32_t share(void) {
    __atomic_store_n(&psk_S.streams[PSK_STREAM_SHARED], PSK_STREAM_MANY, __ATOMIC_RELEASE);
    __atomic_store_n(&psk_S.nstreams, PSK_MAX_STREAMS, __ATOMIC_RELEASE);
    return PSK_STREAM_SHARED;
}

/* context: as psk_stream.context. */
static uint32_t take_index(uint64_t handle, uint64_t context) {
    uint32_t index;
    collect_left();
    if (nfree) {
        index = free_index[--nfree];
    } else {
        index = PSK_LOAD(psk_S.nstreams);
        if (index >= PSK_STREAM_SHARED) return share();
    }
    psk_streams[index].since_progress = 0;
    psk_streams[index].ngates = 0;
    psk_streams[index].unreported = false;
    psk_streams[index].alone = context || handle == PSK_STREAM_PER_THREAD;
    psk_streams[index].context = context;
    psk_streams[index].last = 0;
    psk_streams[index].nmarks = 0;
    psk_streams[index].trail.left = false;
    psk_streams[index].finished = psk_streams[index].queued;
    __atomic_store_n(&psk_S.streams[index], handle, __ATOMIC_RELEASE);
    if (index >= psk_S.nstreams) __atomic_store_n(&psk_S.nstreams, index + 1, __ATOMIC_RELEASE);
    return index;
}

static int find(uint64_t handle) {
    unsigned i = hash(handle);
    for (unsigned n = 0; n < TABLE; n++, i = (i + 1) & (TABLE - 1)) {
        uint64_t h = atomic_load_explicit(&table[i].handle, memory_order_acquire);
        if (h == handle) return (int)i;
        if (h == 0) return -1;
    }
    return -1;
}

/* shown: the handle that the engine is told. */
static uint32_t add(uint64_t handle, uint64_t shown, uint64_t context) {
    uint32_t index = PSK_STREAM_SHARED;
    pthread_mutex_lock(&mu);
    int at = find(handle);
    if (at >= 0) {
        index = atomic_load(&table[at].index);
    } else {
        unsigned i = hash(handle);
        for (unsigned n = 0; n < TABLE; n++, i = (i + 1) & (TABLE - 1)) {
            uint64_t h = atomic_load(&table[i].handle);
            if (h != 0 && h != GONE) continue;
            if (h == 0 && rows_used >= TABLE * 3 / 4) break; /* keep look-ups short */
            rows_used += h == 0;
            index = take_index(shown, context);
            atomic_store(&table[i].index, index);
            atomic_store_explicit(&table[i].handle, handle, memory_order_release);
            break;
        }
    }
    pthread_mutex_unlock(&mu);
    return index;
}

/* A thread has ended: its default streams report each operation, the last one, too. */
static void own_ended(void *of_thread) {
    own_default *mine = of_thread;
    bool child = atomic_load(&psk_child);
    if (!child) pthread_mutex_lock(&mu);
    for (int i = 0; i < OWN; i++) {
        uint32_t index = mine[i].index;
        mine[i] = (own_default){0, 0}; /* what ends after this may launch yet */
        if (index && !child) give_index(index, false);
    }
    if (!child) pthread_mutex_unlock(&mu);
}

static void make_own_key(void) { pthread_key_create(&own_key, own_ended); }

/* context: another than the engine's, or 0. */
static uint32_t take_own(uint64_t context) {
    int i = context ? 1 : 0;
    while (context && i < OWN && own[i].context && own[i].context != context) i++;
    if (i == OWN) return share();
    if (own[i].index) return own[i].index;
    pthread_once(&own_once, make_own_key);
    pthread_mutex_lock(&mu);
    own[i] = (own_default){context, take_index(PSK_STREAM_PER_THREAD, context)};
    pthread_mutex_unlock(&mu);
    pthread_setspecific(own_key, own);
    return own[i].index;
}

/* In the table, the default stream of a context beside the engine's: no address is as high. */
#define DEFAULT_OF (1ull << 63)

static uint32_t other_default(uint64_t context) {
    int at = find(context | DEFAULT_OF);
    return at >= 0 ? atomic_load(&table[at].index) : add(context | DEFAULT_OF, PSK_STREAM_PER_THREAD, context);
}

uint32_t psk_stream_index(CUstream stream, int ptsz) {
    uint64_t h = (uint64_t)(uintptr_t)stream, other;
    if (h == 0) h = ptsz ? 2 : 1;
    if (h <= 2 && PSK_UNLIKELY((other = psk_other_context()) != 0)) return h == 1 ? other_default(other) : take_own(other);
    if (h == 1) return 0;
    if (h == 2) return PSK_LIKELY(own[0].index != 0) ? own[0].index : take_own(0);
    int at = find(h);
    return PSK_LIKELY(at >= 0) ? atomic_load_explicit(&table[at].index, memory_order_relaxed) : add(h, h, psk_stream_other_context(stream));
}

static uint32_t nowhere;
static void take_nowhere(void) {
    pthread_mutex_lock(&mu);
    nowhere = take_index(GONE, 0);
    pthread_mutex_unlock(&mu);
}

uint32_t psk_stream_nowhere(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, take_nowhere);
    return nowhere;
}

/* Forgets a stream that is about to be destroyed. idle: everything queued on it is done. */
static void forget(uint64_t handle, bool idle) {
    int known = find(handle);
    uint32_t reports = known >= 0 ? atomic_load(&table[known].index) : PSK_STREAM_SHARED;
    if (reports != PSK_STREAM_SHARED && (idle || !(handle & DEFAULT_OF))) psk_stream_report((CUstream)(uintptr_t)handle, reports, idle);
    pthread_mutex_lock(&mu);
    int at = find(handle);
    if (at >= 0) {
        atomic_store(&table[at].handle, GONE);
        give_index(atomic_load(&table[at].index), idle);
        /* Rows of those gone at the end of a run of rows are as if never used: whoever looks for a handle stops there. */
        unsigned i = (unsigned)at;
        if (atomic_load(&table[(i + 1) & (TABLE - 1)].handle) == 0)
            for (; atomic_load(&table[i].handle) == GONE; i = (i - 1) & (TABLE - 1), rows_used--) atomic_store(&table[i].handle, 0);
    }
    pthread_mutex_unlock(&mu);
}

void psk_streams_gone(uint64_t context, bool ended) {
    for (uint32_t i = 0; ended && i < PSK_STREAM_SHARED; i++)
        if (psk_streams[i].context == context) psk_stream_report(NULL, i, true);
    for (unsigned i = 0; i < TABLE; i++) {
        uint64_t handle = atomic_load(&table[i].handle);
        if (!handle || handle == GONE || psk_streams[atomic_load(&table[i].index)].context != context) continue;
        forget(handle, ended);
    }
}

/* ---- the lock of a stream ---- */

static void futex(atomic_uint *word, int op, unsigned value) { syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0); }

void psk_stream_lock(psk_stream *s) {
    unsigned c = 0;
    if (PSK_LIKELY(atomic_compare_exchange_strong_explicit(&s->lock, &c, 1, memory_order_acquire, memory_order_relaxed))) return;
    if (c != 2) c = atomic_exchange_explicit(&s->lock, 2, memory_order_acquire);
    while (c) {
        futex(&s->lock, FUTEX_WAIT, 2);
        c = atomic_exchange_explicit(&s->lock, 2, memory_order_acquire);
    }
}

bool psk_stream_trylock(psk_stream *s) {
    unsigned c = 0;
    return atomic_compare_exchange_strong_explicit(&s->lock, &c, 1, memory_order_acquire, memory_order_relaxed);
}

void psk_stream_unlock(psk_stream *s) {
    if (PSK_UNLIKELY(atomic_exchange_explicit(&s->lock, 0, memory_order_release) == 2)) futex(&s->lock, FUTEX_WAKE, 1);
}

/* ---- captures ---- */

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
