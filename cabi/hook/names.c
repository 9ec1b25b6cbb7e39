/* What an operation names: the slots of the addresses among its parameters. */
#include "names.h"
#include "shared.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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
        if (!psk_extra_buffer(extra, &at, &bytes)) return false;
        for (; bytes >= 8; bytes -= 8, at += 8) {
            uint64_t word;
            memcpy(&word, at, 8);
            visit(arg, word);
        }
        return true;
    }
    return !l->opaque && l->nparams == 0;
}

/* Tables of addresses may lie in memory that is not the engine's: pinned host memory, or what a library has allocated. */
static bool foreign(uint64_t word) { return word % 8 == 0 && psk_may_be_address(word) && psk_memory_type(word) != 0; }

void psk_inspect_word(void *arg, uint64_t word) {
    psk_op *op = arg;
    if (!psk_published(word) && !foreign(word)) return;
    if (psk_S.inspect_n == PSK_MAX_INSPECT)
        op->flags |= PSK_FLAG_OPAQUE;
    else
        psk_S.inspect_addr[psk_S.inspect_n++] = word;
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
