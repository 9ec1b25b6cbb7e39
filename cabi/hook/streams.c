/*
 * Stream indices, and the lock of a stream.
 *
 * An index is found without a lock: an open-addressing table of handles, to
 * which rows are added under a mutex. The index of a destroyed stream is given
 * to a new one only when the old stream has done all its work and its records
 * have been read, so that nothing late of the old one is taken for the new one's.
 */
#define _GNU_SOURCE
#include "streams.h"
#include "contexts.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

psk_stream psk_streams[PSK_MAX_STREAMS];

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

static uint32_t other_default(uint64_t context) {
    int at = find(context | PSK_STREAM_DEFAULT_OF);
    return at >= 0 ? atomic_load(&table[at].index) : add(context | PSK_STREAM_DEFAULT_OF, PSK_STREAM_PER_THREAD, context);
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

uint32_t psk_stream_known(uint64_t handle) {
    int at = find(handle);
    return at >= 0 ? atomic_load(&table[at].index) : PSK_STREAM_SHARED;
}

uint64_t psk_stream_next(unsigned *row, uint64_t context) {
    while (*row < TABLE) {
        unsigned i = (*row)++;
        uint64_t handle = atomic_load(&table[i].handle);
        if (handle && handle != GONE && psk_streams[atomic_load(&table[i].index)].context == context) return handle;
    }
    return 0;
}

void psk_stream_forget(uint64_t handle, bool idle) {
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
