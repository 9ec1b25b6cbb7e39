/*
 * Allocations and frees on their way to a recording. While everything is in plain
 * device memory most calls are served without entering Go (pool/front/front.h);
 * for a recording they are noted here, with their time, and read by alloc_log.go.
 * A call that finds the log full waits for the reader (alloc_log.c); one that waited
 * in vain is counted and not noted.
 *
 * A free takes one unit of the ring and an allocation two, four units a line of the
 * cache: what a call writes pushes out what the program has there.
 */
#ifndef PENSTOCK_ALLOC_LOG_H
#define PENSTOCK_ALLOC_LOG_H

#include <stdint.h>

#include "hook/prefetch.h"
#include "hook/stamp.h"

#define ALLOC_LOG_UNITS (1u << 17) /* power of two */
#define ALLOC_LOG_VALUE_BITS 48    /* of addresses, and of sizes */

/* Each word is a value and, above it, ALLOC_LOG_LAP of its position. */
struct alloc_unit {
    uint64_t word; /* a free: the address. An allocation: the address, then the bytes. The first is stored last */
    uint64_t more; /* a free: a stamp, taken before it. An allocation: a stamp, taken when it is made; then the stream */
};

/* The part of a word above the value: of a lap's first words never 0, as memory is that was not
 * written. The lap before is told apart, and no other is met: there is room for one. */
#define ALLOC_LOG_LAP(n) (((uint64_t)(n) / ALLOC_LOG_UNITS * 2 + 2) << ALLOC_LOG_VALUE_BITS)
#define ALLOC_LOG_ALLOC (1ull << ALLOC_LOG_VALUE_BITS) /* set in an allocation's first word */

/* Lies with what else every call looks at (exports.c). */
struct alloc_log {
    struct alloc_unit *units; /* atomic; NULL: nothing is noted */
    uint64_t *tail;           /* everything before it has been read; the reader writes it, in a line of its own */
    uint64_t head;            /* next position to write */
    uint64_t tail_seen;       /* the tail as it was once */
    uint64_t lost;
    uint32_t stamp;           /* PSK_STAMP_*, of every call */
};

/* Whether there is room up to a position; waits for it. False when nothing is noted any more, or nobody reads: that is
 * counted as lost. */
int alloc_log_room(struct alloc_log *l, uint64_t end);

static inline void alloc_log_note(struct alloc_log *l, struct alloc_unit *units, uint64_t at, uint64_t bytes, uint64_t stream)
{
    uint64_t when = psk_stamp(l->stamp);
    uint64_t n = __atomic_load_n(&l->head, __ATOMIC_RELAXED), took = bytes ? 2 : 1;
    if (__builtin_expect((at | bytes) >> ALLOC_LOG_VALUE_BITS != 0, 0))
        return; /* the address of nothing that was ever given out */
    do {
        if (__builtin_expect(n + took > __atomic_load_n(&l->tail_seen, __ATOMIC_ACQUIRE) + ALLOC_LOG_UNITS, 0)) {
            if (!alloc_log_room(l, n + took))
                return;
            when = psk_stamp(l->stamp); /* others' later calls may have been read meanwhile */
        }
    } while (!__atomic_compare_exchange_n(&l->head, &n, n + took, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    struct alloc_unit *u = &units[n & (ALLOC_LOG_UNITS - 1)];
    uint64_t word = ALLOC_LOG_LAP(n) | at;
    u->more = when;
    if (bytes) {
        struct alloc_unit *next = &units[(n + 1) & (ALLOC_LOG_UNITS - 1)];
        next->word = ALLOC_LOG_LAP(n + 1) | bytes;
        next->more = stream;
        word |= ALLOC_LOG_ALLOC;
    }
    __atomic_store_n(&u->word, word, __ATOMIC_RELEASE);
    psk_prefetch_to_write(&units[(n + 64 / sizeof *u) & (ALLOC_LOG_UNITS - 1)]); /* the reader had it last */
}

#endif
