/*
 * replays_trial.c - a launch that is tried.
 *
 * Before it: sums of all live memory, and a copy of what it names. After it: the sums again, which
 * say what it wrote, named or not. Then it is issued again, on a stream of its own:
 *   same, again  all that it names is cloned as it was before: every clone must become what the block became
 *   zeros        the same, but what it writes begins as zeros: equal when it does not need the old contents
 *   direct       only what it writes is cloned, the rest is read where it is
 * At last the sums of all live memory once more, which a replay must not have changed.
 */
#define _GNU_SOURCE
#include "replays.h"

#include <stdlib.h>
#include <string.h>

uint64_t replays_area;
static CUdeviceptr old, work; /* what was before; where replays write */

enum { SAME, AGAIN, ZEROS, DIRECT, TRIALS };
static const char *const names[TRIALS] = {"same", "again", "zeros", "direct"};

void replays_trial_open(uint64_t limit) {
    size_t free_bytes, total;
    OK(D.cuMemGetInfo_v2(&free_bytes, &total));
    const uint64_t left = 4ull << 30; /* for what the job still takes */
    replays_area = free_bytes > left ? (free_bytes - left) / 3 : 0;
    if (replays_area > limit) replays_area = limit;
    if (!replays_area) replays_fail("no memory is free for the trials", CUDA_ERROR_OUT_OF_MEMORY);
    OK(D.cuMemAlloc_v2(&old, replays_area));
    OK(D.cuMemAlloc_v2(&work, replays_area));
}

void replays_trial_close(void) {
    OK(D.cuCtxSynchronize());
    OK(D.cuMemFree_v2(old));
    OK(D.cuMemFree_v2(work));
}

/* All live blocks, and the foreign ones that the launch names behind them. */
static sum *sum_all(const launch *l, sum *sums, unsigned *n) {
    static summer s;
    static span *spans;
    static unsigned room;
    if (replays_nlive + l->nnamed > room) spans = realloc(spans, (room = 2 * (replays_nlive + l->nnamed)) * sizeof *spans);
    *n = 0;
    for (unsigned i = 0; i < replays_nlive; i++) spans[(*n)++] = (span){replays_live[i]->base, replays_live[i]->bytes};
    for (unsigned i = 0; i < l->nnamed; i++)
        if (l->named[i]->foreign) spans[(*n)++] = (span){l->named[i]->base, l->named[i]->bytes};
    replays_sum(&s, replays_stream, spans, *n);
    OK(replays_wait(replays_stream));
    sums = realloc(sums, *n * sizeof *sums);
    memcpy(sums, s.sums, *n * sizeof *sums);
    return sums;
}

/* Where a named block is in what sum_all answers. */
static unsigned place(const launch *l, unsigned named) {
    if (!l->named[named]->foreign) {
        unsigned low = 0, high = replays_nlive;
        while (high - low > 1) {
            unsigned middle = (low + high) / 2;
            if (replays_live[middle]->base <= l->named[named]->base)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
    unsigned at = replays_nlive;
    for (unsigned i = 0; i < named; i++) at += l->named[i]->foreign;
    return at;
}

static sum *at_first, *then, *at_last;
static unsigned count;

void replays_trial_before(launch *l) {
    OK(D.cuCtxSynchronize());
    at_first = sum_all(l, at_first, &count);
    for (unsigned i = 0; i < l->nnamed; i++) OK(D.cuMemcpyDtoDAsync_v2(old + l->offset[i], l->named[i]->base, l->named[i]->bytes, replays_stream));
    OK(replays_wait(replays_stream));
}

static unsigned differing(const sum *x, const sum *y) {
    unsigned n = 0;
    for (unsigned i = 0; i < count; i++) n += !sum_equal(x[i], y[i]);
    return n;
}

/* One trial. right[i]: the clone of block i became what the block became. */
static void try(const launch *l, int trial, const bool *changed, const sum *after, bool *right) {
    static summer s;
    uint64_t to[MAX_NAMED];
    span spans[MAX_NAMED];
    for (unsigned i = 0; i < l->nnamed; i++) {
        bool cloned = trial != DIRECT || changed[i];
        uint64_t bytes = l->named[i]->bytes;
        to[i] = cloned ? work + l->offset[i] : 0;
        spans[i] = cloned ? (span){to[i], bytes} : (span){l->named[i]->base, bytes};
        if (cloned && trial == ZEROS && changed[i])
            OK(D.cuMemsetD8Async(to[i], 0, bytes, replays_stream));
        else if (cloned)
            OK(D.cuMemcpyDtoDAsync_v2(to[i], old + l->offset[i], bytes, replays_stream));
    }
    issue *again = replays_issue(l, to);
    OK(replays_go(again, replays_stream));
    OK(replays_wait(replays_stream));
    replays_issue_free(again);
    replays_sum(&s, replays_stream, spans, l->nnamed);
    OK(replays_wait(replays_stream));
    for (unsigned i = 0; i < l->nnamed; i++) right[i] = sum_equal(s.sums[i], after[i]);
}

/* Tensor maps among the parameters of a kernel that may have them: does the driver move one as a new first word does? */
static void print_maps(const launch *l) {
    if (!D.cuTensorMapReplaceAddress || !(strstr(l->f->name, "nvjet") || strcasestr(l->f->name, "tma") || strstr(l->f->name, "sm90"))) return;
    fprintf(replays_out, ",\"maps\":[");
    const char *comma = "";
    for (unsigned w = 0; w < l->nwords; w++) {
        const word *x = &l->words[w];
        if (x->at % 64 || x->at + 128u > l->f->bytes) continue;
        _Alignas(64) unsigned char by_word[128], by_driver[128];
        memcpy(by_word, l->params + x->at, 128);
        memcpy(by_driver, by_word, 128);
        uint64_t to = work + l->offset[x->block] + x->inside;
        memcpy(by_word, &to, 8);
        CUresult r = D.cuTensorMapReplaceAddress(by_driver, to);
        fprintf(replays_out, "%s{\"at\":%u,\"error\":%d,\"equal\":%d}", comma, x->at, r, !memcmp(by_word, by_driver, 128));
        comma = ",";
    }
    fprintf(replays_out, "]");
}

static void print_bits(const char *name, const bool *bits, unsigned n) {
    fprintf(replays_out, ",\"%s\":\"", name);
    for (unsigned i = 0; i < n; i++) fputc('0' + bits[i], replays_out);
    fprintf(replays_out, "\"");
}

void replays_trial_after(launch *l, CUresult r) {
    OK(r);
    OK(D.cuCtxSynchronize());
    then = sum_all(l, then, &count);
    bool changed[MAX_NAMED], right[TRIALS][MAX_NAMED], needs_old[MAX_NAMED], good = true;
    sum after[MAX_NAMED];
    unsigned unnamed = differing(at_first, then);
    for (unsigned i = 0; i < l->nnamed; i++) {
        unsigned at = place(l, i);
        after[i] = then[at];
        changed[i] = !sum_equal(at_first[at], then[at]);
        unnamed -= changed[i];
    }
    for (int t = 0; t < TRIALS; t++) try(l, t, changed, after, right[t]);
    at_last = sum_all(l, at_last, &count);
    unsigned stray = differing(then, at_last);
    const CUlaunchConfig *c = &l->config;
    fprintf(replays_out, "{\"trial\":%u,\"grid\":[%u,%u,%u],\"block\":[%u,%u,%u],\"shared\":%u,\"api\":\"%c\",\"attributes\":[", l->f->id, c->gridDimX, c->gridDimY,
            c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes, l->api);
    for (unsigned i = 0; i < l->nattr_ids; i++) fprintf(replays_out, "%s%u", i ? "," : "", l->attr_ids[i]);
    fprintf(replays_out, "],\"host\":%u,\"unnamed\":%u,\"stray\":%u,\"blocks\":[", l->nhost, unnamed, stray);
    for (unsigned i = 0; i < l->nnamed; i++) {
        unsigned first = 0, words = 0;
        for (unsigned w = l->nwords; w-- > 0;)
            if (l->words[w].block == i) first = w, words++;
        fprintf(replays_out, "%s[%lu,%u,%u,%d]", i ? "," : "", l->named[i]->bytes, l->words[first].at, words, l->named[i]->foreign);
    }
    fprintf(replays_out, "]");
    print_bits("fresh", l->fresh, l->nnamed);
    print_bits("changed", changed, l->nnamed);
    for (int t = 0; t < TRIALS; t++) print_bits(names[t], right[t], l->nnamed);
    print_maps(l);
    fprintf(replays_out, "}\n");
    for (unsigned i = 0; i < l->nnamed; i++) {
        good = good && right[SAME][i] && right[AGAIN][i] && right[DIRECT][i];
        needs_old[i] = changed[i] && !right[ZEROS][i];
    }
    if (stray) l->f->banned = true;
    if (good && !stray && !unnamed) replays_keep(l, changed, needs_old, after, old);
}
