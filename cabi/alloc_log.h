/*
 * Allocations and frees on their way to a recording. While everything is in plain
 * device memory most calls are served without entering Go (pool/front/front.h);
 * for a recording they are noted here, with their time, and read by alloc_log.go.
 * A call that finds the log full is counted and not noted.
 */
#ifndef PENSTOCK_ALLOC_LOG_H
#define PENSTOCK_ALLOC_LOG_H

#include <stdint.h>

#include "hook/prefetch.h"
#include "hook/stamp.h"

#define ALLOC_LOG_ENTRIES (1u << 16) /* power of two */

struct alloc_call {
    uint64_t turn;  /* position + 1 when it can be read; stored last */
    uint64_t when;  /* a stamp: of an allocation when it is made, of a free before it */
    uint64_t at;
    int64_t bytes;  /* 0: a free */
    uint64_t stream;
    uint64_t unused[3]; /* a line of the cache each */
};

struct alloc_log {
    uint64_t head __attribute__((aligned(64))); /* next position to write; with what else a call touches in its line */
    uint64_t lost;
    uint64_t tail_seen; /* the tail as it was once: its line is the reader's */
    uint32_t stamp;     /* PSK_STAMP_*, of every call */
    uint64_t tail __attribute__((aligned(64))); /* everything before it has been read; the reader writes it */
    struct alloc_call ring[ALLOC_LOG_ENTRIES];
};

static inline void alloc_log_note(struct alloc_log *l, uint64_t at, int64_t bytes, uint64_t stream)
{
    uint64_t when = psk_stamp(l->stamp);
    uint64_t n = __atomic_load_n(&l->head, __ATOMIC_RELAXED);
    do {
        if (__builtin_expect(n - __atomic_load_n(&l->tail_seen, __ATOMIC_ACQUIRE) >= ALLOC_LOG_ENTRIES, 0)) {
            uint64_t tail = __atomic_load_n(&l->tail, __ATOMIC_ACQUIRE);
            __atomic_store_n(&l->tail_seen, tail, __ATOMIC_RELEASE);
            if (n - tail >= ALLOC_LOG_ENTRIES) {
                __atomic_fetch_add(&l->lost, 1, __ATOMIC_RELAXED);
                return;
            }
        }
    } while (!__atomic_compare_exchange_n(&l->head, &n, n + 1, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    struct alloc_call *c = &l->ring[n & (ALLOC_LOG_ENTRIES - 1)];
    c->when = when;
    c->at = at;
    c->bytes = bytes;
    c->stream = stream;
    __atomic_store_n(&c->turn, n + 1, __ATOMIC_RELEASE);
    psk_prefetch_to_write(&l->ring[(n + 1) & (ALLOC_LOG_ENTRIES - 1)]); /* the reader had it last */
}

#endif
