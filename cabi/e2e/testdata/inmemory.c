/*
 * A job that fits, on --engine none: iterations whose sizes repeat, a tensor of
 * another size in each, a second stream that reads late, threads. Every word is
 * compared. "steady" is one whose sizes all repeat, but for two iterations; "front" is about allocations that are served without entering the engine;
 * "latency" times allocation and free instead.
 */
#include "job.h"

#include <time.h>

enum { LAYERS = 40, ITERATIONS = 10, MOST_ITERATIONS = 60, WEIGHTS = 10 };

static size_t layer_bytes(int k) { return (size_t)(3 + k % 5) * MiB / 2 + (size_t)(k % 3) * 512; }

typedef struct trainer {
    int id;
    bool until_planned, steady;
    CUstream main, side;
    tensor weight[WEIGHTS], sum;
} trainer;

static void must(tensor *t, size_t bytes, CUstream s, uint32_t value) {
    if (make(t, bytes, s, value)) return;
    fprintf(stderr, "allocation of %zu bytes: %s\n", bytes, last_error());
    exit(1);
}

static void iterate(trainer *j, int it, void *event) {
    tensor act[LAYERS], input, extra;
    must(&input, 5 * MiB, j->main, 3);
    must(&extra, (size_t)(2 * MiB + 4096 * (unsigned)(j->steady ? 0 : it * 37 % 300)), j->main, 9);
    for (int k = 0; k < LAYERS; k++) {
        if (it == 8 && !j->steady && k % 10 == 3) { /* one that is missing, one that is resized, late in the job */
            must(&act[k], layer_bytes(k) + 8192, j->main, (uint32_t)k);
        } else {
            must(&act[k], layer_bytes(k), j->main, (uint32_t)k);
        }
        tensor temporary;
        must(&temporary, 2 * MiB, j->main, 1);
        add(it + k, j->main, &act[k], (uint32_t)it);
        add(it, j->main, &temporary, 1);
        drop(&temporary);
        if (k % 8 == 5 && !j->steady) { /* read late by another stream, and freed before that */
            tensor lent;
            must(&lent, 3 * MiB, j->main, 2);
            OK(CALL(cuEventRecord, event, j->main));
            OK(CALL(cuStreamWaitEvent, j->side, event, 0));
            uint64_t us = 200;
            launch(it, j->side, f_spin, (void *[]){&us});
            add_to(it, j->side, &j->sum, &lent);
            P.record_stream(lent.p, j->side);
            drop(&lent);
        }
    }
    for (int k = LAYERS - 1; k >= 0; k--) {
        add(it, j->main, &j->weight[k % WEIGHTS], 1);
        if (k % 11 == 0) SYNC(j->main), check_value(&act[k]);
        drop(&act[k]);
    }
    SYNC(j->main), check_value(&extra), check_value(&input);
    drop(&extra), drop(&input);
}

/* Until the front has followed the plan for a while, before and after something else. */
static void steady(trainer *j, void *event) {
    long long enough = 4 * LAYERS;
    for (int it = 10; it < 4 * MOST_ITERATIONS && stat_now("scripted_allocations") < 3 * enough; it++) {
        j->steady = it % 16 != 0 || stat_now("scripted_allocations") < enough;
        iterate(j, it, event);
    }
    CHECK(stat_now("scripted_allocations") >= 3 * enough);
}

static void *work(void *arg) {
    trainer *j = arg;
    CUcontext ctx;
    void *event;
    OK(CALL(cuDevicePrimaryCtxRetain, &ctx, 0));
    OK(CALL(cuCtxSetCurrent, ctx));
    OK(CALL(cuEventCreate, &event, 0));
    /* A single trainer goes on until its plan has been followed for a while: plans are made beside it, at their own pace. */
    if (j->steady) steady(j, event);
    for (int it = 0; !j->steady && it < (j->until_planned ? MOST_ITERATIONS : ITERATIONS); it++) {
        iterate(j, it, event);
        if (j->until_planned && it >= ITERATIONS && stat_now("planned_allocations") > 4 * LAYERS) break;
    }
    SYNC(j->main);
    SYNC(j->side);
    return NULL;
}

static int train(int threads, bool steadily) {
    static trainer j[4];
    static char before[8192];
    for (int t = 0; t < threads; t++) {
        j[t] = (trainer){.id = t, .until_planned = threads == 1 && !getenv("PENSTOCK_PLANNING"), .steady = steadily, .main = t ? new_stream() : NULL, .side = new_stream()};
        for (int i = 0; i < WEIGHTS; i++) must(&j[t].weight[i], 2 * MiB + 512, j[t].main, 0);
        must(&j[t].sum, 3 * MiB, j[t].side, 0);
    }
    pthread_t thread[4];
    for (int t = 0; t < threads; t++) CHECK(!pthread_create(&thread[t], NULL, work, &j[t]));
    for (int t = 0; t < threads; t++) pthread_join(thread[t], NULL);
    strcpy(before, stats());
    printf("STATS %s\n", before);
    for (int t = 0; t < threads; t++) {
        for (int i = 0; i < WEIGHTS; i++) check_value(&j[t].weight[i]);
        check_value(&j[t].sum);
    }
    CHECK_EQ(count("illegal"), 0);
    CHECK_EQ(stat_now("allocations_live"), threads * (WEIGHTS + 1));
    CHECK_EQ(stat_now("allocated_bytes"), threads * (WEIGHTS * (2 * (long long)MiB + 512) + 3 * (long long)MiB));
    /* empty_cache gives back all but what is live, by whole chunks. */
    P.empty_cache();
    CHECK(stat_now("reserved_bytes") < (long long)threads * (WEIGHTS + 1) * 4 * (long long)MiB);
    CHECK(stat_now("reserved_bytes") <= device_bytes());
    /* Under a fraction of the card, out of memory comes early and says so; nothing is lost. */
    CHECK_EQ(P.set_memory_fraction(0.5, 0), 0);
    CHECK(!P.malloc((ssize_t)(stat_now("device_total_bytes") / 2 + (long long)MiB), 0, NULL));
    printf("OOM %s\n", last_error());
    tensor big;
    must(&big, (size_t)(stat_now("device_total_bytes") / 4), NULL, 5);
    SYNC(NULL);
    check_value(&big), drop(&big);
    for (int t = 0; t < threads; t++) {
        for (int i = 0; i < WEIGHTS; i++) check_value(&j[t].weight[i]), drop(&j[t].weight[i]);
        drop(&j[t].sum);
    }
    P.empty_cache();
    CHECK_EQ(stat_now("reserved_bytes"), 0);
    CHECK_EQ(stat_now("allocated_bytes"), 0);
    P.close();
    return 0;
}

/* ---- front ---- */

enum { SMALL_ROUNDS = 3000, SMALL_KEPT = 30 };

/* Small tensors on two streams, one of which often uses the other's. */
static void *small_work(void *arg) {
    uint64_t x = 0x9e3779b97f4a7c15ull * (uint64_t)((intptr_t)arg + 1);
    CUstream stream[2] = {new_stream(), new_stream()};
    void *event;
    OK(CALL(cuEventCreate, &event, 0));
    tensor t[SMALL_KEPT] = {0};
    for (int i = 0; i < SMALL_ROUNDS; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        tensor *a = &t[x % SMALL_KEPT];
        if (a->p) {
            add(i, a->stream, a, 1);
            if (i % 8 == 0) SYNC(a->stream), check_value(a);
            if (x >> 20 & 1) { /* read late by the other stream, and freed before that */
                CUstream other = stream[a->stream == stream[0]];
                OK(CALL(cuEventRecord, event, a->stream));
                OK(CALL(cuStreamWaitEvent, other, event, 0));
                uint64_t us = 20;
                launch(i, other, f_spin, (void *[]){&us});
                add(i, other, a, 1);
                P.record_stream(a->p, other);
            }
            drop(a);
        }
        must(a, 512 * (1 + (x >> 30) % 20), stream[x >> 40 & 1], (uint32_t)i);
    }
    SYNC(stream[0]), SYNC(stream[1]);
    for (int i = 0; i < SMALL_KEPT; i++)
        if (t[i].p) check_value(&t[i]), drop(&t[i]);
    return NULL;
}

static int front(int threads) {
    pthread_t thread[8];
    for (int t = 0; t < threads; t++) CHECK(!pthread_create(&thread[t], NULL, small_work, (void *)(intptr_t)t));
    for (int t = 0; t < threads; t++) pthread_join(thread[t], NULL);
    CHECK_EQ(count("illegal"), 0);
    CHECK_EQ(stat_now("allocations"), (long long)threads * SMALL_ROUNDS);
    CHECK_EQ(stat_now("allocations_live"), 0);
    CHECK_EQ(stat_now("allocated_bytes"), 0);
    /* Peaks count what is served so. */
    P.reset_peak_stats();
    tensor a, b;
    must(&a, 4096, NULL, 1), must(&b, 4096, NULL, 1);
    drop(&a), must(&a, 4096, NULL, 2);
    CHECK_EQ(stat_now("allocated_bytes"), 8192);
    CHECK_EQ(stat_now("allocated_peak_bytes"), 8192);
    /* A second free is an error and nothing else. */
    void *p = a.p;
    drop(&a);
    P.free(p, 4096, 0, NULL);
    CHECK(strstr(last_error(), "not a live allocation"));
    CHECK_EQ(stat_now("allocated_bytes"), 4096);
    must(&a, 4096, NULL, 3);
    CHECK(a.p != b.p);
    /* What a private pool gave is never given to others. */
    CHECK_EQ(P.begin_pool(0, 1, 2), 0);
    tensor of_graph, later[40];
    must(&of_graph, 4096, NULL, 7);
    drop(&b);
    CHECK_EQ(P.end_pool(0, 1, 2), 0);
    p = of_graph.p;
    drop(&of_graph);
    for (int i = 0; i < 40; i++) {
        must(&later[i], 4096, NULL, (uint32_t)i);
        CHECK(later[i].p != p);
    }
    for (int i = 0; i < 40; i++) drop(&later[i]);
    CHECK_EQ(P.release_pool(0, 1, 2), 0);
    check_value(&a), drop(&a);
    P.empty_cache();
    CHECK_EQ(stat_now("reserved_bytes"), 0);
    P.close();
    return 0;
}

/* ---- latency ---- */

enum { ROUNDS = 40000, KEPT = 24 };
static uint32_t took[2][8][ROUNDS];
static long long sizes_from, sizes_step;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void *measure(void *arg) {
    int t = (int)(intptr_t)arg;
    uint64_t x = 0x9e3779b97f4a7c15ull * (uint64_t)(t + 1);
    void *live[KEPT] = {0};
    for (int i = -ROUNDS / 4; i < ROUNDS; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        void **p = &live[x % KEPT];
        ssize_t n = (ssize_t)(sizes_from + (long long)(x >> 20) % 13 * sizes_step);
        long long began = now_ns();
        if (*p) P.free(*p, 0, 0, NULL);
        long long freed = now_ns();
        *p = P.malloc(n, 0, NULL);
        long long done = now_ns();
        CHECK(*p);
        if (i >= 0) took[0][t][i] = (uint32_t)(done - freed), took[1][t][i] = (uint32_t)(freed - began);
    }
    for (int i = 0; i < KEPT; i++) P.free(live[i], 0, 0, NULL);
    return NULL;
}

static int by_value(const void *a, const void *b) { return (*(const uint32_t *)a > *(const uint32_t *)b) - (*(const uint32_t *)a < *(const uint32_t *)b); }

static void latency(int threads) {
    pthread_t thread[8];
    for (int t = 0; t < threads; t++) CHECK(!pthread_create(&thread[t], NULL, measure, (void *)(intptr_t)t));
    for (int t = 0; t < threads; t++) pthread_join(thread[t], NULL);
    for (int k = 0; k < 2; k++) {
        size_t n = (size_t)threads * ROUNDS;
        uint32_t *all = malloc(n * sizeof *all);
        for (int t = 0; t < threads; t++) memcpy(all + (size_t)t * ROUNDS, took[k][t], sizeof took[k][t]);
        qsort(all, n, sizeof *all, by_value);
        printf("LATENCY %s from %lld bytes, %d threads: median %u ns, p99 %u ns\n", k ? "free" : "malloc", sizes_from, threads, all[n / 2], all[n * 99 / 100]);
        free(all);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    load();
    resolve();
    CHECK_EQ(P.init(0), 0);
    int threads = atoi(argv[2]);
    CHECK(threads >= 1 && threads <= 8);
    if (!strcmp(argv[1], "train")) return train(threads, false);
    if (!strcmp(argv[1], "steady")) return train(threads, true);
    if (!strcmp(argv[1], "front")) return front(threads);
    CHECK(!strcmp(argv[1], "latency"));
    sizes_from = 512, sizes_step = 80 * 1024, latency(threads);
    sizes_from = (long long)MiB + 512, sizes_step = (long long)MiB / 4, latency(threads);
    P.close();
    return 0;
}
