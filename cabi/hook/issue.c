/*
 * The three steps of an operation around the real call: begin, issue, done.
 *
 * What the modes share is here. A mode's waits and progress writes are in gate.c
 * (PSK_MODE_GATED) and strict.c (PSK_MODE_STRICT).
 *
 * Order of what is done, each of which is needed where it is:
 *   1. gated and strict mode: the stream's lock, and a pause when too much is queued
 *   2. reserve positions in the ring: that is the seq
 *   3. slot_last_seq of every slot, then its slot_state (the header's Dekker rule)
 *   4. publish: before any driver call, as the ring is read in order and a
 *      reserved position must never wait for a driver lock that only the engine's
 *      next move could free
 *   5. the waits, the real call, the progress write, unlock
 */
#define _GNU_SOURCE
#include "issue.h"
#include "captures.h"
#include "gate.h"
#include "progress.h"
#include "ring.h"
#include "shared.h"
#include "streams.h"
#include "strict.h"
#include "timing.h"


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
    op->grid = op->used = op->recorded = 0;
    op->stream = stream;
    op->ptsz = ptsz;
    op->mode = PSK_LOAD(psk_S.mode);
    op->locked = NULL;
    op->timed = NULL;
    op->unsure = op->no_progress = op->asks = op->waits = op->serial = op->early = op->follows = op->more = false;
    op->seq = 0;
    op->n = op->nplain = 0;
    op->slots = op->inline_slots;
    op->scratch = NULL;
    if (PSK_UNLIKELY(atomic_load_explicit(&psk_captures, memory_order_acquire) > 0)) look_for_capture(op);
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
        psk_nap(20000);
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
