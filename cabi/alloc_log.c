/*
 * What a call does that finds the log of allocations full: the rest of alloc_log.h.
 */
#include "alloc_log.h"

#include <time.h>

/* How long the reader may do nothing before it is given up: a few of its longest turns
 * (faults/record), on a machine that has so much else to do that it gets no processor for seconds. */
#define READER_PATIENCE_NS 10000000000

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int alloc_log_room(struct alloc_log *l, uint64_t end)
{
    static uint64_t given_up; /* the tail at which the reader was, + 1: nobody waits again until it reads */
    uint64_t tail = __atomic_load_n(l->tail, __ATOMIC_ACQUIRE), since = now_ns();
    while (end > tail + ALLOC_LOG_UNITS) { /* the tail may have passed it while this thread stood still */
        if (!__atomic_load_n(&l->units, __ATOMIC_ACQUIRE))
            return 0;
        if (__atomic_load_n(&given_up, __ATOMIC_RELAXED) == tail + 1) {
            __atomic_fetch_add(&l->lost, 1, __ATOMIC_RELAXED);
            return 0;
        }
        struct timespec pause = {.tv_nsec = 50000};
        nanosleep(&pause, NULL);
        uint64_t at = __atomic_load_n(l->tail, __ATOMIC_ACQUIRE), now = now_ns();
        if (at != tail) {
            tail = at;
            since = now;
        } else if (now - since > READER_PATIENCE_NS) {
            __atomic_store_n(&given_up, tail + 1, __ATOMIC_RELAXED);
        }
    }
    __atomic_store_n(&l->tail_seen, tail, __ATOMIC_RELEASE);
    return 1;
}
