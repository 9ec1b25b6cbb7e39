/*
 * Trails: what the launch before on a stream named.
 *
 * A grouped GEMM finds its matrices through tables of addresses that the kernel
 * before it computes from its own parameters. Searching the tables each time costs
 * a wait for the stream. Once the engine has found a pair of functions in which the
 * second reaches only what the first names, the second names that, too, and need
 * not ask (PSK_INSPECT_FOLLOWS). The engine checks now and then that it stays so.
 */
#include "trail.h"
#include "address.h"
#include "names.h"
#include "streams.h"

static void note_plain(void *arg, uint64_t word) {
    psk_op *op = arg;
    if (psk_published(word) != PSK_SLOT_PLAIN) return;
    if (op->nplain < PSK_TRAIL_MAX) op->plain[op->nplain] = word;
    op->nplain++;
}

void psk_trail_read(psk_op *op, const psk_layout *l, void **params, void **extra) {
    op->nplain = 0;
    psk_visit_params(l, op->used, params, extra, note_plain, op);
}

static bool shares_plain(const psk_op *op, const psk_trail *t) {
    for (uint32_t i = 0; i < op->nplain && i < PSK_TRAIL_MAX; i++)
        for (uint32_t k = 0; k < t->nplain; k++)
            if (op->plain[i] == t->plain[k]) return true;
    return false;
}

bool psk_trail_follow(psk_op *op, uint32_t function) {
    uint32_t index = psk_stream_index(op->stream, op->ptsz);
    if (index == PSK_STREAM_SHARED) return false;
    psk_stream *s = &psk_streams[index];
    psk_stream_lock(s);
    const psk_trail *t = &s->trail;
    bool follows = t->left && t->function == function && shares_plain(op, t);
    for (uint32_t i = 0; follows && i < t->nslots; i++) psk_op_add(op, t->slots[i]);
    psk_stream_unlock(s);
    return follows;
}

void psk_trail_leave(const psk_op *op, psk_trail *t) {
    t->left = op->kind == PSK_REC_LAUNCH && !(op->flags & PSK_FLAG_OPAQUE) && op->n <= PSK_TRAIL_MAX && op->nplain <= PSK_TRAIL_MAX;
    if (!t->left) return;
    t->function = op->id;
    t->nslots = op->n;
    t->nplain = op->nplain;
    for (uint32_t i = 0; i < op->n; i++) t->slots[i] = op->slots[i];
    for (uint32_t i = 0; i < op->nplain; i++) t->plain[i] = op->plain[i];
}
