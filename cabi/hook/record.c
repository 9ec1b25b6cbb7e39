/*
 * One operation: the slots it names, its record in the ring, its gate before
 * and its progress write after it.
 *
 * Order of the steps, each of which is needed where it is:
 *   1. gated mode: the stream's lock, and a pause when too much waits behind a closed gate
 *   2. reserve positions in the ring: that is the seq
 *   3. slot_last_seq of every slot, then its slot_state (the header's Dekker rule)
 *   4. publish: before any driver call, as the ring is read in order and a
 *      reserved position must never wait for a driver lock that only the engine's
 *      next move could free
 *   5. the gate, the real call, the progress write, unlock
 */
#define _GNU_SOURCE
#include "internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Behind a closed gate the driver's own queue fills up (1024 entries and fewer),
 * and a launch would then block inside the driver with its locks held, where the
 * engine's copies might wait for them. Block before, outside of it. */
#define MAX_BEHIND_GATE 256

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

bool psk_visit_params(const psk_layout *l, void **params, void **extra, void (*visit)(void *, uint64_t), void *arg) {
    if (params) {
        if (l->opaque) return false;
        for (uint32_t i = 0; i < l->nscan; i++) {
            const psk_param *p = &l->scan[i];
            const unsigned char *at = params[p->index];
            if (!at) continue;
            at += p->first;
            for (uint32_t w = 0; w < p->words; w++, at += 8) {
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
    if (PSK_LIKELY(params && !l->opaque)) { /* as psk_visit_params, without the calls */
        for (uint32_t i = 0; i < l->nscan; i++) {
            const psk_param *p = &l->scan[i];
            const unsigned char *at = params[p->index];
            if (!at) continue;
            at += p->first;
            for (uint32_t w = 0; w < p->words; w++, at += 8) {
                uint64_t word;
                memcpy(&word, at, 8);
                psk_op_address(op, word);
            }
        }
        return;
    }
    if (!psk_visit_params(l, params, extra, visit_op, op)) op->flags |= PSK_FLAG_OPAQUE;
}

/* ---- stream memory operations ---- */

typedef CUresult (*memop_fn)(CUstream, CUdeviceptr, uint32_t, unsigned);
static struct {
    memop_fn wait, write;
} memops[2];
static atomic_int memops_known; /* 1: usable, -1: not */

static memop_fn memop(const char *name, int ptsz) {
    char full[48];
    for (int v2 = 1; v2 >= 0; v2--) {
        snprintf(full, sizeof full, "%s%s%s", name, v2 ? "_v2" : "", ptsz ? "_ptsz" : "");
        memop_fn fn = (memop_fn)psk_driver_symbol(full);
        if (fn) return fn;
    }
    return NULL;
}

static void no_gates(const char *what, CUresult r) {
    if (atomic_exchange(&memops_known, -1) == -1) return;
    fprintf(stderr, "penstock: %s failed (CUDA error %d): launches are no longer gated, so absent memory is faulted in\n", what, r);
}

static bool have_memops(void) {
    int known = atomic_load_explicit(&memops_known, memory_order_acquire);
    if (PSK_LIKELY(known)) return known > 0;
    bool all = true;
    for (int ptsz = 0; ptsz < 2; ptsz++) {
        memops[ptsz].wait = memop("cuStreamWaitValue32", ptsz);
        memops[ptsz].write = memop("cuStreamWriteValue32", ptsz);
        all = all && memops[ptsz].wait && memops[ptsz].write;
    }
    if (all)
        atomic_store_explicit(&memops_known, 1, memory_order_release);
    else
        no_gates("finding cuStreamWaitValue32", CUDA_ERROR_NOT_FOUND);
    return all;
}

/* ---- the three steps ---- */

void psk_op_begin(psk_op *op, int kind, uint32_t id, CUstream stream, int ptsz) {
    psk_in_hook = 1;
    op->kind = (uint16_t)kind;
    op->flags = 0;
    op->id = id;
    op->grid = 0;
    op->stream = stream;
    op->ptsz = ptsz;
    op->locked = NULL;
    op->no_progress = false;
    op->seq = 0;
    op->n = 0;
    op->slots = op->inline_slots;
    op->scratch = NULL;
}

static bool gate_open(uint32_t index, uint32_t value) {
    return (int32_t)(__atomic_load_n(&psk_S.gate[index * 16], __ATOMIC_ACQUIRE) - value) >= 0;
}

static void drop_open_gates(psk_stream *s, uint32_t index) {
    uint32_t open = 0;
    while (open < s->ngates && gate_open(index, s->gates[open].value)) open++;
    if (!open) return;
    s->ngates -= open;
    memmove(s->gates, s->gates + open, s->ngates * sizeof s->gates[0]);
}

static void wait_behind_gate(psk_stream *s, uint32_t index) {
    for (;;) {
        drop_open_gates(s, index);
        if (!s->ngates || s->issued - s->gates[0].issued < MAX_BEHIND_GATE || PSK_LOAD(psk_S.mode) != PSK_MODE_GATED) return;
        struct timespec pause = {.tv_nsec = 20000};
        nanosleep(&pause, NULL);
    }
}

static void note_gate(psk_stream *s, uint32_t value) {
    uint32_t last = sizeof s->gates / sizeof s->gates[0] - 1;
    if (s->ngates > last) {
        s->gates[last].value = value; /* merged into the last: looks older than it is */
        return;
    }
    s->gates[s->ngates].value = value;
    s->gates[s->ngates++].issued = s->issued;
}

static void wake_reader(void) {
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

static void fill_entry(psk_entry *e, const psk_op *op, uint32_t kind, uint32_t from, uint32_t count, uint32_t more) {
    e->kind = (uint16_t)kind;
    e->flags = op->flags;
    e->id = op->id;
    e->nslots = (uint16_t)count;
    e->stream = (uint16_t)op->stream_index;
    e->more = more;
    e->grid = op->grid;
    memcpy(e->slots, op->slots + from, count * sizeof *e->slots);
}

void psk_op_issue(psk_op *op) {
    op->mode = PSK_LOAD(psk_S.mode);
    op->stream_index = psk_stream_index(op->stream, op->ptsz);
    if (PSK_UNLIKELY(atomic_load_explicit(&psk_captures, memory_order_acquire) > 0) && psk_stream_capturing(op->stream, op->ptsz)) op->flags |= PSK_FLAG_CAPTURED;

    bool captured = op->flags & PSK_FLAG_CAPTURED;
    bool gated_mode = op->mode == PSK_MODE_GATED && !captured && op->stream_index != PSK_STREAM_SHARED && psk_S.gate && psk_S.progress && have_memops();
    if (gated_mode) {
        op->locked = &psk_streams[op->stream_index];
        psk_stream_lock(op->locked);
        if (PSK_UNLIKELY(op->locked->ngates)) wait_behind_gate(op->locked, op->stream_index);
    }

    uint32_t entries = op->n <= PSK_ENTRY_SLOTS ? 1 : (op->n + PSK_ENTRY_SLOTS - 1) / PSK_ENTRY_SLOTS;
    uint64_t at = __atomic_load_n(&psk_S.head, __ATOMIC_RELAXED);
    do {
        if (at + entries > __atomic_load_n(&psk_S.tail, __ATOMIC_ACQUIRE) + PSK_RING_ENTRIES) {
            __atomic_fetch_add(&psk_S.dropped, 1, __ATOMIC_SEQ_CST);
            wake_reader();
            return; /* seq 0: no gate, no progress */
        }
    } while (!__atomic_compare_exchange_n(&psk_S.head, &at, at + entries, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    op->seq = at + 1;

    bool absent = false;
    if (!captured) {
        for (uint32_t i = 0; i < op->n; i++) store_last_seq(op->slots[i], op->seq);
        if (gated_mode)
            for (uint32_t i = 0; i < op->n; i++) absent |= __atomic_load_n(&psk_S.slot_state[op->slots[i]], __ATOMIC_SEQ_CST) == PSK_SLOT_ABSENT;
    }
    if (gated_mode) {
        psk_stream *s = op->locked;
        s->issued++;
        /* Behind a closed gate everything is gated, so that the engine may move what
         * this operation needs until its turn comes. */
        absent |= s->ngates > 0;
        if (absent) {
            op->flags |= PSK_FLAG_GATED;
            PSK_COUNT(psk_S.gated);
        }
        s->since_progress++;
        if (!op->no_progress && (absent || s->since_progress >= PSK_LOAD(psk_S.progress_every))) {
            op->flags |= PSK_FLAG_PROGRESS;
            s->since_progress = 0;
        }
    }

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

    if (op->flags & PSK_FLAG_GATED) {
        uint32_t value = (uint32_t)op->seq;
        /* What came before is finished when the stream stands at the gate: say so. */
        if (op->locked->unreported) {
            CUresult r = memops[op->ptsz].write(op->stream, (CUdeviceptr)(uintptr_t)&psk_S.progress[op->stream_index * 16], op->locked->last, CU_STREAM_WRITE_VALUE_DEFAULT);
            if (PSK_UNLIKELY(r != CUDA_SUCCESS)) no_gates("cuStreamWriteValue32", r);
            op->locked->unreported = false;
        }
        CUresult r = memops[op->ptsz].wait(op->stream, (CUdeviceptr)(uintptr_t)&psk_S.gate[op->stream_index * 16], value, CU_STREAM_WAIT_VALUE_GEQ);
        if (PSK_LIKELY(r == CUDA_SUCCESS))
            note_gate(op->locked, value);
        else
            no_gates("cuStreamWaitValue32", r);
    }
}

void psk_op_done(psk_op *op) {
    if (op->flags & PSK_FLAG_PROGRESS) {
        /* Also when the call failed: the record is out, and the engine waits for its progress. */
        CUresult r = memops[op->ptsz].write(op->stream, (CUdeviceptr)(uintptr_t)&psk_S.progress[op->stream_index * 16], (uint32_t)op->seq, CU_STREAM_WRITE_VALUE_DEFAULT); /* driver 580 refuses the flag NO_MEMORY_BARRIER */
        if (PSK_UNLIKELY(r != CUDA_SUCCESS)) no_gates("cuStreamWriteValue32", r);
    }
    if (op->locked) {
        if (op->seq) { /* a dropped record leaves what came before it to be reported */
            op->locked->last = (uint32_t)op->seq;
            op->locked->unreported = !(op->flags & PSK_FLAG_PROGRESS) && !op->no_progress;
        }
        psk_stream_unlock(op->locked);
    }
    psk_in_hook = 0;
}

void psk_stream_report(CUstream stream, uint32_t index, bool idle) {
    psk_stream *s = &psk_streams[index];
    psk_stream_lock(s);
    if (s->unreported && psk_S.progress && atomic_load(&memops_known) > 0) {
        uint32_t *word = &psk_S.progress[index * 16];
        if (idle)
            __atomic_store_n(word, s->last, __ATOMIC_RELEASE);
        else /* destroying a stream lets its queue run out, this write included */
            memops[0].write(stream, (CUdeviceptr)(uintptr_t)word, s->last, CU_STREAM_WRITE_VALUE_DEFAULT);
        s->unreported = false;
    }
    psk_stream_unlock(s);
}
