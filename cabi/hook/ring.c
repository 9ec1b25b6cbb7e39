/*
 * The record of an operation in the ring: its positions, which are its seq, and what is written there.
 */
#include "ring.h"
#include "prefetch.h"
#include "shared.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t psk_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void psk_nap(long ns) {
    struct timespec t = {.tv_nsec = ns};
    syscall(SYS_nanosleep, &t, NULL);
}

static __attribute__((noinline)) void wake_reader(void) {
    if (PSK_LIKELY(!__atomic_load_n(&psk_S.reader_sleeping, __ATOMIC_SEQ_CST))) return;
    if (!__atomic_exchange_n(&psk_S.reader_sleeping, 0, __ATOMIC_SEQ_CST)) return; /* another thread wakes it */
    __atomic_fetch_add(&psk_S.doorbell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &psk_S.doorbell, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void store_last_seq(uint32_t slot, uint64_t seq) {
    uint64_t *at = &psk_S.slot_last_seq[slot];
    uint64_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
    /* Another thread's later seq stays. The exchange is a full barrier, as the Dekker rule needs. */
    while (seen < seq && !__atomic_compare_exchange_n(at, &seen, seq, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
    if (seen > seq) atomic_thread_fence(memory_order_seq_cst);
}

static uint32_t entries_of(const psk_op *op) { return op->n <= PSK_ENTRY_SLOTS ? 1 : (op->n + PSK_ENTRY_SLOTS - 1) / PSK_ENTRY_SLOTS; }

/* Whether the ring has room up to a position by now. Asking for the tail each time would take its line from the reader. */
static bool more_room(uint64_t end) {
    uint64_t tail = __atomic_load_n(&psk_S.tail, __ATOMIC_ACQUIRE);
    __atomic_store_n(&psk_S.tail_seen, tail, __ATOMIC_RELEASE);
    return end <= tail + PSK_RING_ENTRIES;
}

bool psk_record_reserve(psk_op *op) {
    uint32_t entries = entries_of(op);
    uint64_t at = __atomic_load_n(&psk_S.head, __ATOMIC_RELAXED);
    do {
        if (PSK_UNLIKELY(at + entries > __atomic_load_n(&psk_S.tail_seen, __ATOMIC_ACQUIRE) + PSK_RING_ENTRIES) && !more_room(at + entries)) {
            wake_reader();
            return false;
        }
    } while (!__atomic_compare_exchange_n(&psk_S.head, &at, at + entries, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    op->seq = at + 1;
    if (!(op->flags & PSK_FLAG_CAPTURED))
        for (uint32_t i = 0; i < op->n; i++) store_last_seq(op->slots[i], op->seq);
    return true;
}

void psk_record_dropped(void) { __atomic_fetch_add(&psk_S.dropped, 1, __ATOMIC_SEQ_CST); }

static void fill_entry(psk_entry *e, const psk_op *op, uint32_t kind, uint32_t from, uint32_t count, uint32_t more) {
    e->kind = (uint16_t)kind;
    e->flags = op->flags;
    e->id = op->id;
    e->nslots = (uint16_t)count;
    e->stream = (uint16_t)op->stream_index;
    e->more = more;
    e->grid = op->grid;
    e->recorded = op->recorded;
    e->when = op->when;
    memcpy(e->slots, op->slots + from, count * sizeof *e->slots);
}

void psk_record_publish(const psk_op *op) {
    uint64_t at = op->seq - 1;
    uint32_t entries = entries_of(op);
    /* The first entry last: when it is valid all of them are. */
    for (uint32_t k = entries; k-- > 0;) {
        psk_entry *e = &psk_S.ring[(at + k) & (PSK_RING_ENTRIES - 1)];
        uint32_t from = k * PSK_ENTRY_SLOTS;
        uint32_t count = op->n - from < PSK_ENTRY_SLOTS ? op->n - from : PSK_ENTRY_SLOTS;
        fill_entry(e, op, k ? PSK_REC_MORE : op->kind, from, count, entries - 1 - k);
        /* Sequentially consistent for the first, against the reader's "sleeping, then look again". */
        __atomic_store_n(&e->turn, at + k + 1, k ? __ATOMIC_RELEASE : __ATOMIC_SEQ_CST);
    }
    wake_reader();
    /* The next entry was last touched by the reader, a turn of the ring ago: it would be waited for. */
    psk_prefetch_to_write(&psk_S.ring[(at + entries) & (PSK_RING_ENTRIES - 1)]);
}
