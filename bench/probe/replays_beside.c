/* replays_beside.c - replays over and over on a stream of their own, beside the job. */
#define _GNU_SOURCE
#include "replays.h"

#include <stdlib.h>
#include <string.h>

/* A launch whose replay was right, with memory of its own. */
typedef struct recipe {
    issue *again;
    unsigned nwritten;
    struct {
        uint64_t work, old, bytes; /* old 0: the old contents are not needed */
        sum after;
    } *written;
    span *spans;
    summer s;
    uint64_t bytes; /* that it writes */
} recipe;

#define RECIPES 256
static recipe recipes[RECIPES];
static unsigned nrecipes;
static uint64_t kept, limit;

/* So many bytes may be kept for recipes; 0, as it begins: none are. */
EXPORT void replays_keep_up_to(uint64_t bytes) { limit = bytes; }

void replays_keep(const launch *l, const bool *changed, const bool *needs_old, const sum *after, CUdeviceptr before) {
    uint64_t own = 0, to[MAX_NAMED];
    unsigned n = 0;
    for (unsigned i = 0; i < l->nnamed; i++) own += changed[i] ? l->named[i]->bytes + 4096 : 0, n += changed[i];
    if (!n || l->f->kept || nrecipes == RECIPES || kept + l->total + own > limit) return;
    CUdeviceptr base;
    if (D.cuMemAlloc_v2(&base, l->total + own) != CUDA_SUCCESS) return;
    kept += l->total + own;
    l->f->kept = true;
    recipe *r = &recipes[nrecipes++];
    *r = (recipe){.nwritten = n, .written = calloc(n, sizeof *r->written), .spans = calloc(n, sizeof *r->spans)};
    uint64_t free_at = base + l->total;
    n = 0;
    for (unsigned i = 0; i < l->nnamed; i++) {
        uint64_t bytes = l->named[i]->bytes;
        to[i] = base + l->offset[i];
        OK(D.cuMemcpyDtoDAsync_v2(to[i], before + l->offset[i], bytes, replays_stream));
        if (!changed[i]) continue;
        r->written[n].old = needs_old[i] ? to[i] : 0;
        r->written[n].bytes = bytes;
        r->written[n].after = after[i];
        r->written[n].work = to[i] = free_at;
        r->spans[n++] = (span){free_at, bytes};
        r->bytes += bytes;
        free_at += (bytes + 4095) & ~4095ull;
    }
    OK(replays_wait(replays_stream));
    r->again = replays_issue(l, to);
}

EXPORT unsigned replays_recipes(void) { return nrecipes; }
EXPORT const char *replays_recipe_name(unsigned i) { return recipes[i].again->f->name; }
EXPORT uint64_t replays_recipe_bytes(unsigned i) { return recipes[i].bytes; }
EXPORT unsigned replays_recipe_wrong(unsigned i) {
    unsigned wrong = 0;
    recipe *r = &recipes[i];
    for (unsigned k = 0; k < r->nwritten; k++) wrong += !sum_equal(r->s.sums[k], r->written[k].after);
    return wrong;
}

EXPORT void replays_priorities(int *least, int *greatest) { OK(D.cuCtxGetStreamPriorityRange(least, greatest)); }

static struct {
    pthread_t thread;
    CUcontext context;
    atomic_bool stop;
    int priority;
    unsigned n, chosen[RECIPES];
    uint64_t rounds, wrong[RECIPES];
    double seconds;
} beside;

static void go(recipe *r, CUstream s) {
    for (unsigned k = 0; k < r->nwritten; k++)
        if (r->written[k].old) OK(D.cuMemcpyDtoDAsync_v2(r->written[k].work, r->written[k].old, r->written[k].bytes, s));
    OK(replays_go(r->again, s));
    replays_sum(&r->s, s, r->spans, r->nwritten);
}

static void *over_and_over(void *arg) {
    (void)arg;
    CUstream s;
    OK(D.cuCtxSetCurrent(beside.context));
    OK(D.cuStreamCreateWithPriority(&s, 1, beside.priority));
    uint64_t began = psk_now_ns();
    while (!atomic_load(&beside.stop)) {
        for (unsigned i = 0; i < beside.n; i++) go(&recipes[beside.chosen[i]], s);
        OK(replays_wait(s));
        for (unsigned i = 0; i < beside.n; i++) beside.wrong[i] += replays_recipe_wrong(beside.chosen[i]) != 0;
        beside.rounds++;
    }
    beside.seconds = (double)(psk_now_ns() - began) / 1e9;
    OK(D.cuStreamDestroy_v2(s));
    return NULL;
}

/* Issues some recipes in turn, over and over, until it is ended. */
EXPORT int replays_beside_start(int priority, const unsigned *chosen, unsigned n) {
    beside.n = n;
    memcpy(beside.chosen, chosen, n * sizeof *chosen);
    memset(beside.wrong, 0, sizeof beside.wrong);
    beside.rounds = 0;
    beside.priority = priority;
    atomic_store(&beside.stop, false);
    OK(D.cuCtxGetCurrent(&beside.context));
    return pthread_create(&beside.thread, NULL, over_and_over, NULL);
}

/* wrong[i]: in so many rounds what the recipe made differed from what the job had made. */
EXPORT double replays_beside_end(uint64_t *rounds, uint64_t *wrong) {
    atomic_store(&beside.stop, true);
    pthread_join(beside.thread, NULL);
    *rounds = beside.rounds;
    memcpy(wrong, beside.wrong, beside.n * sizeof *wrong);
    return beside.seconds;
}
