/*
 * Launches that are recorded whole.
 *
 * Where the parameters of a function lie is asked for once. An entry takes its units of the area by moving the head on, is
 * filled, and at last gets its turn: there is no lock, and a reader that is behind finds that the head has passed it.
 */
#include "record.h"
#include "func.h"
#include "shared.h"

#include <stdlib.h>
#include <string.h>

#define MOST_PARAMS 64

/* Where the parameters of a function lie; `bytes` 0: its launches cannot be recorded. */
typedef struct places {
    uint32_t n, bytes;
    uint32_t at[MOST_PARAMS], size[MOST_PARAMS];
} places;

static places *_Atomic known[PSK_MAX_FUNCS];

static const places *places_of(const psk_layout *l, CUfunction f) {
    places *p = atomic_load_explicit(&known[l->id], memory_order_acquire);
    if (PSK_LIKELY(p != NULL)) return p;
    places *found = calloc(1, sizeof *found);
    if (!found) return NULL;
    bool whole = l->nparams <= MOST_PARAMS && !l->opaque;
    for (uint32_t i = 0; whole && i < l->nparams; i++) {
        size_t at, size;
        whole = psk_func_param(f, i, &at, &size) && at + size <= PSK_LAUNCH_MAX_BYTES;
        if (!whole) break;
        found->at[i] = (uint32_t)at;
        found->size[i] = (uint32_t)size;
        if (at + size > found->bytes) found->bytes = (uint32_t)(at + size);
    }
    found->n = l->nparams;
    if (!whole) found->bytes = 0;
    if (atomic_compare_exchange_strong(&known[l->id], &p, found)) return found;
    free(found);
    return p;
}

static uint64_t take_units(uint64_t n) {
    uint64_t head = __atomic_load_n(&psk_S.launch_head, __ATOMIC_RELAXED), at;
    do {
        at = head;
        if (at % PSK_LAUNCH_UNITS + n > PSK_LAUNCH_UNITS) at += PSK_LAUNCH_UNITS - at % PSK_LAUNCH_UNITS; /* entries lie in one piece */
    } while (!__atomic_compare_exchange_n(&psk_S.launch_head, &head, at + n, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return at;
}

uint32_t psk_record_launch(const psk_layout *l, CUfunction f, const psk_dimensions *d, void **params, void **extra) {
    const unsigned char *from = NULL;
    size_t bytes = 0;
    if (!params && (!extra || !psk_extra_buffer(extra, &from, &bytes) || !from)) return 0;
    if (l->id == PSK_MAX_FUNCS - 1) return 0; /* the last row stands for all functions beyond the table */
    const places *p = places_of(l, f);
    if (!p || !p->bytes) return 0;
    uint64_t table = (p->n * sizeof(uint32_t) + 7) & ~7ull;
    uint64_t at = take_units((sizeof(psk_launch) + table + p->bytes + PSK_LAUNCH_UNIT - 1) / PSK_LAUNCH_UNIT);
    uint8_t *to = psk_S.launch_area + at % PSK_LAUNCH_UNITS * PSK_LAUNCH_UNIT;
    psk_launch *e = (psk_launch *)to;
    __atomic_store_n(&e->turn, 0, __ATOMIC_SEQ_CST);
    e->function = (uint64_t)(uintptr_t)f;
    memcpy(e->grid, d->grid, sizeof e->grid);
    memcpy(e->block, d->block, sizeof e->block);
    memcpy(e->cluster, d->cluster, sizeof e->cluster);
    e->policy = d->policy;
    e->shared = d->shared;
    e->nparams = p->n;
    e->bytes = p->bytes;
    memcpy(to + sizeof *e, p->at, p->n * sizeof *p->at);
    uint8_t *buffer = to + sizeof *e + table;
    memset(buffer, 0, p->bytes);
    if (from) memcpy(buffer, from, bytes < p->bytes ? bytes : p->bytes);
    for (uint32_t i = 0; !from && i < p->n; i++) memcpy(buffer + p->at[i], params[i], p->size[i]);
    __atomic_store_n(&e->turn, at + 1, __ATOMIC_RELEASE);
    return (uint32_t)(at + 1); /* 0, once in 2^32 units, says that it was not */
}

bool psk_record_dimensions(psk_dimensions *d, const CUlaunchConfig *c) {
    *d = (psk_dimensions){.grid = {c->gridDimX, c->gridDimY, c->gridDimZ}, .block = {c->blockDimX, c->blockDimY, c->blockDimZ}, .shared = c->sharedMemBytes};
    for (unsigned i = 0; i < c->numAttrs; i++) {
        const CUlaunchAttributeValue *v = &c->attrs[i].value;
        switch (c->attrs[i].id) {
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: memcpy(d->cluster, v->clusterDim, sizeof d->cluster); break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: d->policy = (uint32_t)v->clusterSchedulingPolicyPreference; break;
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            if (v->cooperative) return false;
            break;
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
        case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: break;
        default: return false;
        }
    }
    return true;
}

uint64_t psk_record_word(const psk_layout *l, uint32_t offset, void **params, void **extra) {
    const places *p = atomic_load_explicit(&known[l->id], memory_order_acquire);
    uint64_t word = 0;
    const unsigned char *from;
    size_t bytes;
    if (!params) {
        if (psk_extra_buffer(extra, &from, &bytes) && offset + sizeof word <= bytes) memcpy(&word, from + offset, sizeof word);
        return word;
    }
    for (uint32_t i = 0; p && i < p->n; i++)
        if (offset >= p->at[i] && offset + sizeof word <= p->at[i] + p->size[i]) memcpy(&word, (const uint8_t *)params[i] + (offset - p->at[i]), sizeof word);
    return word;
}
