/*
 * Gated mode: the gate of a stream.
 *
 * A wait on the stream's gate word precedes a launch whose memory is absent, and
 * every launch behind it while that gate is closed. Streams with the shared
 * index, captured launches and launches whose record was dropped are not gated.
 */
#define _GNU_SOURCE
#include "gate.h"
#include "progress.h"
#include "ring.h"
#include "shared.h"
#include "streams.h"

#include <string.h>

/* Behind a closed gate the driver's own queue fills up (1024 entries and fewer),
 * and a launch would then block inside the driver with its locks held, where the
 * engine's copies might wait for them. Block before, outside of it. */
#define MAX_BEHIND_GATE 256

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
        psk_nap(20000);
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

void psk_gate_lock(psk_op *op) {
    op->locked = &psk_streams[op->stream_index];
    psk_stream_lock(op->locked);
    if (PSK_UNLIKELY(op->locked->ngates)) wait_behind_gate(op->locked, op->stream_index);
}

void psk_gate_decide(psk_op *op) {
    psk_stream *s = op->locked;
    s->issued++;
    /* Behind a closed gate everything is gated, so that the engine may move what
     * this operation needs until its turn comes. */
    bool absent = s->ngates > 0;
    for (uint32_t i = 0; i < op->n; i++) absent |= __atomic_load_n(&psk_S.slot_state[op->slots[i]], __ATOMIC_SEQ_CST) == PSK_SLOT_ABSENT;
    if (absent) {
        op->flags |= PSK_FLAG_GATED;
        PSK_COUNT(psk_S.gated);
    }
    s->since_progress++;
    if (!op->no_progress && (absent || s->alone || s->since_progress >= PSK_LOAD(psk_S.progress_every))) {
        op->flags |= PSK_FLAG_PROGRESS;
        s->since_progress = 0;
    }
}

void psk_gate_wait(psk_op *op) {
    psk_stream *s = op->locked;
    uint32_t line = op->stream_index * 16;
    /* What came before is finished when the stream stands at the gate: say so. */
    if (s->unreported) {
        psk_memop_write(op->stream, op->ptsz, &psk_S.progress[line], (uint32_t)s->last);
        s->unreported = false;
    }
    uint32_t value = (uint32_t)op->seq;
    if (psk_memop_wait(op->stream, op->ptsz, &psk_S.gate[line], value)) note_gate(s, value);
}

void psk_gate_done(psk_op *op) {
    /* Also when the call failed: the record is out, and the engine waits for its progress. */
    if (op->flags & PSK_FLAG_PROGRESS) psk_memop_write(op->stream, op->ptsz, &psk_S.progress[op->stream_index * 16], (uint32_t)op->seq);
    if (!op->locked) return;
    if (op->seq) { /* a dropped record leaves what came before it to be reported */
        op->locked->last = op->seq;
        op->locked->unreported = !(op->flags & PSK_FLAG_PROGRESS) && !op->no_progress;
    }
    psk_stream_unlock(op->locked);
}
