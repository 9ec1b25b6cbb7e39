/*
 * One operation: the slots it names and its record in the ring.
 *
 * The parts that the modes share: what an operation names, its seq and its
 * record in the ring. A mode's waits and progress writes are in gate.c
 * (PSK_MODE_GATED) and strict.c (PSK_MODE_STRICT).
 *
 * Order of the steps, each of which is needed where it is:
 *   1. gated and strict mode: the stream's lock, and a pause when too much is queued
 *   2. reserve positions in the ring: that is the seq
 *   3. slot_last_seq of every slot, then its slot_state (the header's Dekker rule)
 *   4. publish: before any driver call, as the ring is read in order and a
 *      reserved position must never wait for a driver lock that only the engine's
 *      next move could free
 *   5. the waits, the real call, the progress write, unlock
 */
#define _GNU_SOURCE
#include "internal.h"
#include "prefetch.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Distinct slots beyond the inline ones, per thread. */
struct psk_scratch {
    uint32_t epoch;
    uint32_t slots[PSK_OP_MAX_SLOTS];
    struct {
        uint32_t epoch, slot;
    } seen[PSK_OP_MAX_SLOTS * 2]; /* power of two */
};

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
PSK_TLS struct psk_scratch *scratch;

static void scratch_free(void *p) {
    scratch = NULL;
    free(p);
}

static void scratch_init(void) { pthread_key_create(&scratch_key, scratch_free); }

static struct psk_scratch *scratch_get(void) {
    if (!scratch) {
        pthread_once(&scratch_once, scratch_init);
        scratch = calloc(1, sizeof *scratch);
        if (scratch) pthread_setspecific(scratch_key, scratch);
    }
    return scratch;
}

/* True when slot was not seen in this epoch, and marks it. */
static bool scratch_mark(struct psk_scratch *s, uint32_t slot) {
    const uint32_t mask = PSK_OP_MAX_SLOTS * 2 - 1;
    for (uint32_t i = (slot * 0x9e3779b1u) >> 8 & mask;; i = (i + 1) & mask) {
        if (s->seen[i].epoch != s->epoch) {
            s->seen[i].epoch = s->epoch;
            s->seen[i].slot = slot;
            return true;
        }
        if (s->seen[i].slot == slot) return false;
    }
}

void psk_op_add(psk_op *op, uint32_t slot) {
    if (PSK_LIKELY(!op->scratch)) {
        for (uint32_t i = 0; i < op->n; i++)
            if (op->slots[i] == slot) return;
        if (PSK_LIKELY(op->n < PSK_ENTRY_SLOTS)) {
            op->slots[op->n++] = slot;
            return;
        }
        struct psk_scratch *s = scratch_get();
        if (!s) {
            op->flags |= PSK_FLAG_OPAQUE;
            return;
        }
        if (++s->epoch == 0) { /* wrapped: the old marks could be taken for new ones */
            memset(s->seen, 0, sizeof s->seen);
            s->epoch = 1;
        }
        memcpy(s->slots, op->slots, op->n * sizeof *op->slots);
        for (uint32_t i = 0; i < op->n; i++) scratch_mark(s, op->slots[i]);
        op->scratch = s;
        op->slots = s->slots;
    }
    if (op->n == PSK_OP_MAX_SLOTS) {
        op->flags |= PSK_FLAG_OPAQUE;
        return;
    }
    if (scratch_mark(op->scratch, slot)) op->slots[op->n++] = slot;
}

/* ---- parameters ---- */

static bool extra_buffer(void **extra, const unsigned char **buffer, size_t *bytes) {
    *buffer = NULL;
    *bytes = 0;
    for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *buffer = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            *bytes = *(const size_t *)extra[i + 1];
        else
            return false; /* an option this version does not know: its length is unknown too */
    }
    return *buffer != NULL || *bytes == 0;
}

bool psk_visit_params(const psk_layout *l, uint32_t used, void **params, void **extra, void (*visit)(void *, uint64_t), void *arg) {
    if (params) {
        if (l->opaque) return false;
        uint32_t n;
        for (const psk_param *p = psk_scan(l, used, &n), *end = p + n; p < end; p++) {
            const unsigned char *at = params[p->index];
            if (!at) continue;
            at += p->first;
            for (uint32_t w = 0, words = p->words ? p->words : used; w < words; w++, at += 8) {
                uint64_t word;
                memcpy(&word, at, 8); /* the value may lie at any address */
                visit(arg, word);
            }
        }
        return true;
    }
    if (extra) {
        const unsigned char *at;
        size_t bytes;
        if (!extra_buffer(extra, &at, &bytes)) return false;
        for (; bytes >= 8; bytes -= 8, at += 8) {
            uint64_t word;
            memcpy(&word, at, 8);
            visit(arg, word);
        }
        return true;
    }
    return !l->opaque && l->nparams == 0;
}

static void visit_op(void *arg, uint64_t word) { psk_op_address(arg, word); }

void psk_op_params(psk_op *op, const psk_layout *l, void **params, void **extra) {
    if (PSK_UNLIKELY(op->flags & PSK_FLAG_INSPECT)) psk_visit_params(l, op->used, params, extra, psk_inspect_word, op);
    if (PSK_LIKELY(params && !l->opaque)) {
        /* As psk_visit_params, without the calls. */
        uint32_t n;
        for (const psk_param *p = psk_scan(l, op->used, &n), *end = p + n; p < end; p++) {
            const unsigned char *at = params[p->index];
            if (!at) continue;
            at += p->first;
            for (uint32_t w = 0, words = p->words ? p->words : op->used; w < words; w++, at += 8) {
                uint64_t word;
                memcpy(&word, at, 8);
                psk_op_address(op, word);
            }
        }
        return;
    }
    if (!psk_visit_params(l, op->used, params, extra, visit_op, op)) {
        op->flags |= PSK_FLAG_OPAQUE;
        op->flags &= (uint16_t)~PSK_FLAG_INSPECT; /* there are no words to inspect */
    }
}

/* ---- the three steps ---- */

uint64_t psk_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void look_for_capture(psk_op *op) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (psk_capture_status(op->stream, op->ptsz, &status) != CUDA_SUCCESS)
        op->unsure = true;
    else if (status != CU_STREAM_CAPTURE_STATUS_NONE)
        op->flags |= PSK_FLAG_CAPTURED;
}

void psk_op_begin(psk_op *op, int kind, uint32_t id, CUstream stream, int ptsz) {
    psk_in_hook = 1;
    op->when = psk_stamp(PSK_LOAD(psk_S.stamp)); /* first of all: a function's first launch has long look-ups before it */
    op->kind = (uint16_t)kind;
    op->flags = 0;
    op->id = id;
    op->grid = op->used = 0;
    op->stream = stream;
    op->ptsz = ptsz;
    op->mode = PSK_LOAD(psk_S.mode);
    op->locked = NULL;
    op->timed = NULL;
    op->unsure = op->no_progress = op->asks = op->waits = op->serial = op->early = false;
    op->seq = 0;
    op->n = op->nplain = 0;
    op->slots = op->inline_slots;
    op->scratch = NULL;
    if (PSK_UNLIKELY(atomic_load_explicit(&psk_captures, memory_order_acquire) > 0)) look_for_capture(op);
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

/* How long the reader of a full ring may do nothing before it is given up. */
#define READER_PATIENCE_NS 100000000

/* Waits for room in a full ring as long as somebody reads it: a launch that the
 * engine does not hear of is neither gated nor learned from. Once the reader has
 * been given up nobody waits again until it reads. */
static bool wait_for_room(psk_op *op) {
    static uint64_t given_up; /* atomic; the tail at which the reader was, + 1 */
    uint64_t tail = __atomic_load_n(&psk_S.tail, __ATOMIC_ACQUIRE), since = psk_now_ns();
    while (PSK_LOAD(psk_S.mode) == op->mode && __atomic_load_n(&given_up, __ATOMIC_RELAXED) != tail + 1) {
        struct timespec pause = {.tv_nsec = 20000};
        nanosleep(&pause, NULL);
        if (psk_record_reserve(op)) return true;
        uint64_t at = __atomic_load_n(&psk_S.tail, __ATOMIC_ACQUIRE), now = psk_now_ns();
        if (at != tail) {
            tail = at;
            since = now;
        } else if (now - since > READER_PATIENCE_NS) {
            __atomic_store_n(&given_up, tail + 1, __ATOMIC_RELAXED);
        }
    }
    return false;
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

static CUresult issue(psk_op *op) {
    op->stream_index = psk_stream_index(op->stream, op->ptsz);
    if (op->mode == PSK_MODE_STRICT) return psk_strict_issue(op);
    bool gates = op->mode == PSK_MODE_GATED && !(op->flags & PSK_FLAG_CAPTURED) && !op->unsure && op->stream_index != PSK_STREAM_SHARED && psk_S.gate && psk_S.progress && psk_have_memops();
    if (gates) psk_gate_lock(op);
    if (PSK_UNLIKELY(!psk_record_reserve(op)) && !wait_for_room(op)) {
        psk_record_dropped();
        return CUDA_SUCCESS; /* seq 0: no gate, no progress */
    }
    if (gates) psk_gate_decide(op);
    psk_record_publish(op);
    if (op->flags & PSK_FLAG_GATED) psk_gate_wait(op);
    return CUDA_SUCCESS;
}

CUresult psk_op_issue(psk_op *op) {
    CUresult r = issue(op);
    if (PSK_UNLIKELY(PSK_LOAD(psk_S.timing)) && r == CUDA_SUCCESS) psk_time_begin(op);
    return r;
}

void psk_op_done(psk_op *op) {
    if (PSK_UNLIKELY(op->timed)) psk_time_end(op);
    if (op->mode == PSK_MODE_STRICT)
        psk_strict_done(op);
    else
        psk_gate_done(op);
    if (PSK_UNLIKELY(op->flags & PSK_FLAG_PROGRESS)) psk_report_quiet(op->seq);
    psk_in_hook = 0;
}
