/*
 * The explicit engine's rules, one mode each: what would reach memory that is not
 * on the device, or would see it before its contents are there, if the rule were
 * not kept. The stub makes both show: an access to an unmapped chunk ends the
 * process, new memory is full of rubbish, and every word is compared.
 */
#include "job.h"

#define BYTES (6 * MiB)
enum { FILLERS = 12 };
static tensor filler[FILLERS];
static CUstream fill_stream;

static void must(tensor *t, size_t bytes, CUstream s, uint32_t value) {
    if (make(t, bytes, s, value)) return;
    fprintf(stderr, "allocation of %zu bytes: %s\n", bytes, last_error());
    exit(1);
}

/* Uses more than the budget of other tensors. */
static void pressure(void) {
    for (int i = 0; i < FILLERS; i++) add(i, fill_stream, &filler[i], 1);
    SYNC(fill_stream);
}

static void begin_pressure(void) {
    fill_stream = new_stream();
    for (int i = 0; i < FILLERS; i++) must(&filler[i], BYTES, fill_stream, (uint32_t)i);
    SYNC(fill_stream); /* they may do without pressure, and are read past their stream at the end */
}

/* Puts a tensor off the device. */
static void away(const tensor *t) {
    double until = now() + 30;
    while (resident(DEVICE(t), t->bytes)) {
        pressure();
        if (now() < until) continue;
        fprintf(stderr, "a tensor stays on the device: %s\n", stats());
        exit(1);
    }
}

static uint64_t unmanaged; /* bytes of device memory that the job had from the driver itself, at most */

static void finish(void) {
    end_late();
    for (int i = 0; i < FILLERS; i++)
        if (filler[i].p) check_value(&filler[i]);
    CHECK_EQ(count("illegal"), 0);
    CHECK(strstr(stats(), "\"engine\":\"explicit\""));
    /* What it moves is never above the budget; beside it there are the few words that the engine's own kernels write. */
    CHECK(count("physical_peak_bytes") <= (uint64_t)stat_now("budget_bytes"));
    CHECK(count("device_peak_bytes") <= (uint64_t)stat_now("budget_bytes") + 4096 + unmanaged);
    printf("STATS %s\n", stats());
    P.close();
}

/* A driver function past the hook. */
static void *unhooked(const char *name) {
    void *(*real)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "penstock_hook_real");
    void *p = real ? real(name) : NULL;
    CHECK(p);
    return p;
}

/* ---- training ---- */

enum { LAYERS = 16, ITERATIONS = 5 };
#define LAYER_BYTES (4 * MiB)

static void sum(int route, CUstream s, tensor *d, const tensor *a, const tensor *b) {
    CUdeviceptr pd = DEVICE(d), pa = DEVICE(a), pb = DEVICE(b);
    uint64_t n = LAYER_BYTES / 4;
    launch(route, s, f_vec, (void *[]){&pd, &pa, &pb, &n});
    d->value = a->value + b->value;
}

static void train(void) {
    CUstream s = new_stream();
    static tensor weight[LAYERS], moment[LAYERS], act[LAYERS + 1];
    for (int k = 0; k < LAYERS; k++) must(&weight[k], LAYER_BYTES, s, (uint32_t)k), must(&moment[k], LAYER_BYTES, s, 1);
    for (int it = 0; it < ITERATIONS; it++) {
        must(&act[0], LAYER_BYTES, s, (uint32_t)it);
        for (int k = 0; k < LAYERS; k++) {
            must(&act[k + 1], LAYER_BYTES, s, 0);
            sum(k, s, &act[k + 1], &act[k], &weight[k]);
        }
        tensor gradient;
        must(&gradient, LAYER_BYTES, s, 5);
        for (int k = LAYERS - 1; k >= 0; k--) {
            tensor next;
            must(&next, LAYER_BYTES, s, 0);
            sum(k, s, &next, &gradient, &act[k + 1]);
            drop(&gradient), drop(&act[k + 1]);
            sum(k, s, &moment[k], &moment[k], &next);
            sum(k, s, &weight[k], &weight[k], &moment[k]);
            gradient = next;
        }
        drop(&gradient), drop(&act[0]);
    }
    SYNC(s);
    for (int k = 0; k < LAYERS; k++) check_value(&weight[k]), check_value(&moment[k]);
    CHECK(stat_now("allocated_peak_bytes") >= 3 * stat_now("budget_bytes") - 2 * (long long)LAYER_BYTES);
    CHECK(stat_now("d2h_bytes") > 0);
}

/* Iterations of which none has the sizes of the one before: what is saved for the backward pass shares ranges. */
static void lengths(void) {
    enum { SAVED = 110, ROUNDS = 7 };
    static const size_t percent[] = {100, 210, 130, 240, 110, 190, 140};
    CUstream s = new_stream();
    static tensor saved[SAVED], sum;
    must(&sum, MiB, s, 0);
    for (int it = 0; it < ROUNDS; it++) {
        for (int k = 0; k < SAVED; k++) {
            size_t bytes = (MiB + 4096 * (size_t)(k * 37 % 210)) * percent[it] / 100 / 512 * 512;
            tensor brief;
            must(&brief, bytes, s, 1);
            must(&saved[k], bytes, s, (uint32_t)(1000 * it + k));
            add(k, s, &saved[k], 3), add(k, s, &brief, 1);
            add_to(k, s, &sum, &saved[k]);
            drop(&brief);
        }
        for (int k = SAVED - 1; k >= 0; k--) {
            add(k, s, &saved[k], 5);
            add_to(k, s, &sum, &saved[k]);
            if ((k + it) % 11 == 0) {
                SYNC(s);
                check_value(&saved[k]);
            }
            drop(&saved[k]);
        }
    }
    SYNC(s);
    check_value(&sum);
}

/* Weights of which one is trained in each iteration: most of what leaves has not changed. They are read in another order each
 * time: with one that is foreseen room is made before a launch waits for it, and no checksums are taken. */
static void frozen(void) {
    enum { WEIGHTS = 97, ROUNDS = 10, WEIGHT_BYTES = MiB + 4096 }; /* a prime, which every step visits */
    CUstream s = new_stream();
    static tensor weight[WEIGHTS], out;
    must(&out, WEIGHT_BYTES, s, 0);
    for (int k = 0; k < WEIGHTS; k++) must(&weight[k], WEIGHT_BYTES, s, (uint32_t)k);
    for (int it = 0; it < ROUNDS; it++) {
        for (int k = 0; k < 2 * WEIGHTS; k++) add_to(k, s, &out, &weight[k * (1 + it * 17) % WEIGHTS]);
        add(it, s, &weight[it * 7 % WEIGHTS], 1);
    }
    SYNC(s);
    check_value(&out);
    for (int k = 0; k < WEIGHTS; k++) check_value(&weight[k]);
}

/* A deep model of small activations, of which several share a range. When it has repeated itself for
 * some iterations it changes in all sorts of ways, by a seed. */
static uint64_t chance;
static bool odd(int it) { return draw_below(&chance, 16) == 0 && it > 2; }

static void layers(const char *seed) {
    chance = strtoull(seed, NULL, 10) * 2 + 1;
    enum { DEPTH = 90, ROUNDS = 7, SUM_BYTES = MiB };
    CUstream s = new_stream(), side = new_stream();
    static tensor act[DEPTH], sums, count;
    must(&sums, SUM_BYTES, s, 0), must(&count, 4096, s, 0);
    for (int it = 0; it < ROUNDS; it++) {
        for (int k = 0; k < DEPTH; k++) {
            size_t bytes = MiB + 512 * (size_t)(k * 977 % 1000);
            must(&act[k], bytes + (odd(it) ? 4096 : 0), s, (uint32_t)(it * DEPTH + k));
            for (int bit = 0; bit < 7; bit++) { /* no layer is like another */
                if (k >> bit & 1) add(bit, s, &count, 1);
                else launch(bit, s, f_empty, (void *[]){NULL});
            }
            tensor scratch;
            must(&scratch, bytes, s, 1);
            if (k > 0 && act[k - 1].p) add_to(k, s, &scratch, &act[k - 1]);
            add_to(k, s, &act[k], &scratch);
            if (act[k].bytes > scratch.bytes) OK(fill_fn(DEVICE(&act[k]), act[k].value, act[k].bytes / 4, s)); /* the sum was of the first part only */
            if (k > 0 && act[k - 1].p && act[k - 1].bytes < scratch.bytes) { /* likewise */
                act[k].value = (uint32_t)k;
                OK(fill_fn(DEVICE(&act[k]), act[k].value, act[k].bytes / 4, s));
            }
            drop(&scratch);
            if (odd(it)) { /* read late by another stream, and freed before */
                SYNC(s);
                uint64_t us = 300;
                launch(k, side, f_spin, (void *[]){&us});
                add(k, side, &act[k], 5);
                P.record_stream(act[k].p, side);
                if (odd(it)) drop(&act[k]);
                else SYNC(side);
            }
            if (act[k].p && odd(it)) drop(&act[k]);
            if (act[k].p && odd(it)) SYNC(s), check_value(&act[k]);
        }
        for (int k = DEPTH - 1; k >= 0; k--) {
            if (!act[k].p) continue;
            for (int bit = 0; bit < 7; bit++) launch(bit, s, k >> bit & 1 ? f_empty : f_spin, (void *[]){&(uint64_t){0}});
            add_to(k, s, &sums, &act[k]);
            if (k % 4 == it % 4) SYNC(s), check_value(&act[k]);
            drop(&act[k]);
        }
    }
    SYNC(s);
    check_value(&sums), check_value(&count);
}

/* Layers with workspaces of many sizes, which are gone at once and borrow dead memory of larger ones; after
 * some iterations one now and then stays, while others take memory away from it. */
static void workspaces(const char *seed) {
    chance = strtoull(seed, NULL, 10) * 2 + 1;
    enum { DEPTH = 24, ROUNDS = 8 };
    CUstream s = new_stream();
    static tensor act[DEPTH], stays[DEPTH];
    tensor count;
    must(&count, 4096, s, 0);
    for (int it = 0; it < ROUNDS; it++) {
        for (int k = 0; k < DEPTH; k++) {
            must(&act[k], MiB * (size_t)(4 + k % 3 * 2), s, (uint32_t)(it * DEPTH + k));
            for (int bit = 0; bit < 5; bit++) add(bit + k, s, &count, 1);
            tensor space;
            must(&space, MiB * (size_t)(3 + k * 7 % 11), s, (uint32_t)(it + k));
            add(k, s, &space, 3);
            if (k % 8 == it) SYNC(s), check_value(&space);
            if (odd(it)) stays[k] = space;
            else drop(&space);
        }
        for (int k = DEPTH - 1; k >= 0; k--) {
            add(k, s, &act[k], 1);
            if (k % 4 == it % 4) SYNC(s), check_value(&act[k]);
            drop(&act[k]);
            if (stays[k].p) SYNC(s), check_value(&stays[k]), drop(&stays[k]);
        }
    }
    SYNC(s);
    check_value(&count);
}

/* ---- pointer tables ---- */

enum { TARGETS = 4 };
#define TABLE_BYTES (2 * MiB) /* of those that can leave themselves */

static CUfunction f_table, f_make;

/* Each address of a table gets inc. */
static void table_add(CUstream s, CUdeviceptr table, uint64_t n, uint32_t inc) {
    uint64_t words = BYTES / 4;
    launch(BY_DLSYM, s, f_table, (void *[]){&table, &n, &words, &inc});
}

/* How a batched GEMM is called: an array of pointers, copied from the host. */
static void host_tables(CUstream s, tensor *t, const tensor *table) {
    uint64_t list[2];
    for (int it = 0; it < 6; it++) {
        for (int i = 0; i < TARGETS; i++) away(&t[i]);
        if (table->bytes >= MiB) away(table);
        tensor *a = &t[it % TARGETS], *b = &t[(it + 1) % TARGETS];
        list[0] = DEVICE(a), list[1] = DEVICE(b);
        OK(CALL(cuMemcpyHtoD_v2, DEVICE(table), list, U64(sizeof list)));
        table_add(s, DEVICE(table), 2, 7);
        a->value += 7, b->value += 7;
    }
}

/* How a grouped GEMM is: its pointers are computed by the kernel before. Parameters never show them. */
static void device_tables(CUstream s, tensor *t, const tensor *table) {
    uint64_t two = 2, stride = 1ull << 41; /* the first address is nobody's */
    for (int it = 0; it < 6; it++) {
        for (int i = 0; i < TARGETS; i++) away(&t[i]);
        for (uint64_t i = 0; i < TARGETS; i++) {
            CUdeviceptr at = DEVICE(table) + 16 * i;
            uint64_t first = DEVICE(&t[i]) - stride;
            launch(BY_DLSYM, s, f_make, (void *[]){&at, &two, &first, &stride});
        }
        uint64_t which = (uint64_t)it % TARGETS;
        table_add(s, DEVICE(table) + 16 * which + 8, 1, 9);
        t[which].value += 9;
    }
}

/* A table that at first has only what stays on the device: the kernel that reads it reaches
 * memory through addresses, and the next time that of a tensor. */
static void plain_tables(void) {
    CUstream s = new_stream();
    f_table = function("table_add");
    tensor t, small, table;
    must(&t, BYTES, s, 100), must(&small, 4096, s, 7), must(&table, 4096, s, 0);
    SYNC(s);
    begin_pressure();
    away(&t);
    tensor *of[] = {&small, &t};
    for (int i = 0; i < 2; i++) {
        uint64_t list[1] = {DEVICE(of[i])}, one = 1, words = of[i]->bytes / 4;
        CUdeviceptr at = DEVICE(&table);
        uint32_t inc = 3;
        OK(CALL(cuMemcpyHtoD_v2, at, list, U64(sizeof list)));
        launch(BY_DLSYM, s, f_table, (void *[]){&at, &one, &words, &inc});
        of[i]->value += inc;
        SYNC(s);
    }
    check_value(&t), check_value(&small);
}

/* Data that looks like addresses, as an int8 product leaves it: tens of thousands of such words are told apart, and the one
 * among them that is an address is found. Where there are more, everything has to be there. */
static void many_addresses(void) {
    enum { DATA = 20000, MORE = 70000 };
    CUstream s = new_stream();
    f_table = function("table_add");
    tensor t, data;
    must(&t, BYTES, s, 100);
    must(&data, BYTES, s, 0);
    SYNC(s);
    begin_pressure();
    static uint64_t list[MORE];
    uint64_t one = 1, words = BYTES / 4, nobodys = DEVICE(&t) + (8ull << 30);
    CUdeviceptr at = DEVICE(&data);
    uint32_t inc = 3;
    list[0] = DEVICE(&t);
    for (uint64_t i = 1; i < DATA; i++) list[i] = nobodys + 8 * i;
    away(&t);
    OK(CALL(cuMemcpyHtoD_v2, at, list, U64(sizeof list)));
    launch(BY_DLSYM, s, f_table, (void *[]){&at, &one, &words, &inc});
    t.value += inc;
    SYNC(s);
    CHECK_EQ(stat_now("unresolved_launches"), 0); /* for not everything could be there */
    away(&t);
    for (int i = 0; i < FILLERS; i++) drop(&filler[i]);
    for (uint64_t i = DATA; i < MORE; i++) list[i] = nobodys + 8 * i;
    OK(CALL(cuMemcpyHtoD_v2, at, list, U64(sizeof list)));
    launch(BY_DLSYM, s, f_table, (void *[]){&at, &one, &words, &inc});
    t.value += inc;
    SYNC(s);
    CHECK_EQ(stat_now("unresolved_launches"), 1);
    check_value(&t);
}

/* Tables in memory that the engine did not give out: pinned, registered, and device memory that a library
 * has allocated for itself, the last also behind what is searched of a larger allocation from its beginning. */
static void foreign_tables(void) {
    enum { LARGE = 40 << 20, FAR = 30 << 20, PAGE = 4096 };
    CUstream s = new_stream();
    f_table = function("table_add");
    tensor t[TARGETS];
    for (int i = 0; i < TARGETS; i++) must(&t[i], BYTES, s, 100);
    SYNC(s);
    uint64_t *pinned, *registered = aligned_alloc(PAGE, PAGE);
    OK(CALL(cuMemHostAlloc, (void **)&pinned, U64(PAGE), U64(0)));
    OK(CALL(cuMemHostRegister_v2, registered, U64(PAGE), U64(0)));
    CUdeviceptr own, large;
    OK(CALL(cuMemAlloc_v2, &own, U64(PAGE)));
    OK(CALL(cuMemAlloc_v2, &large, U64(LARGE)));
    unmanaged = LARGE + 2 * MiB;
    begin_pressure();
    CUresult (*copy)(CUdeviceptr, const void *, size_t) = (CUresult(*)(CUdeviceptr, const void *, size_t))unhooked("cuMemcpyHtoD_v2"); /* as if a kernel had written it */
    CUdeviceptr at[] = {(uintptr_t)pinned + 64, (uintptr_t)registered + 8, own + 128, large + FAR};
    for (int it = 0; it < 4 * (int)(sizeof at / sizeof *at); it++) {
        tensor *a = &t[it % TARGETS], *b = &t[(it + 1) % TARGETS];
        for (int i = 0; i < TARGETS; i++) away(&t[i]);
        CUdeviceptr table = at[it % 4];
        uint64_t list[2] = {DEVICE(a), DEVICE(b)};
        if (it % 4 < 2)
            memcpy((void *)(uintptr_t)table, list, sizeof list);
        else
            OK(copy(table, list, sizeof list));
        table_add(s, table, 2, 7);
        a->value += 7, b->value += 7;
        SYNC(s);
    }
    CHECK(stat_now("pointer_chasing_launches") >= 16);
    /* And in a graph, which is launched with other contents of its table. */
    CUgraph g;
    CUgraphExec exec;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    table_add(s, at[0], 1, 2);
    OK(CALL(cuStreamEndCapture, s, &g));
    OK(CALL(cuGraphInstantiateWithFlags, &exec, g, U64(0)));
    for (int it = 0; it < 2 * TARGETS; it++) {
        tensor *a = &t[it % TARGETS];
        away(a);
        *(uint64_t *)(uintptr_t)at[0] = DEVICE(a);
        OK(CALL(cuGraphLaunch, exec, s));
        a->value += 2;
        SYNC(s);
    }
    OK(CALL(cuGraphExecDestroy, exec));
    OK(CALL(cuGraphDestroy, g));
    for (int i = 0; i < TARGETS; i++) check_value(&t[i]);
    OK(CALL(cuMemFree_v2, own));
    OK(CALL(cuMemFree_v2, large));
    OK(CALL(cuMemHostUnregister, registered));
    OK(CALL(cuMemFreeHost, pinned));
    free(registered);
}

/* A graph copies a table of addresses from memory of the host that the driver does not know, and a kernel in it reads what they say: other
 * tensors each time. Where the table is memory of nobody's they stay on the device from then on. */
static void graph_tables(void) {
    enum { PAGE = 4096 };
    CUstream s = new_stream();
    f_table = function("table_add");
    tensor t[TARGETS], table;
    for (int i = 0; i < TARGETS; i++) must(&t[i], BYTES, s, 100);
    must(&table, PAGE, s, 0);
    SYNC(s);
    uint64_t *list = calloc(1, PAGE);
    CUdeviceptr own, to[2];
    OK(CALL(cuMemAlloc_v2, &own, U64(PAGE)));
    unmanaged = 2 * MiB;
    to[0] = DEVICE(&table), to[1] = own;
    begin_pressure();
    for (int k = 0; k < 2; k++) {
        CUgraph g;
        CUgraphExec exec;
        OK(CALL(cuStreamBeginCapture_v2, s, 0));
        OK(CALL(cuMemcpyHtoDAsync_v2, to[k], list + 8, U64(2 * sizeof *list), s));
        table_add(s, to[k], 2, 3);
        OK(CALL(cuStreamEndCapture, s, &g));
        OK(CALL(cuGraphInstantiateWithFlags, &exec, g, U64(0)));
        for (int i = 0; i < TARGETS; i++) away(&t[i]);
        for (int it = 0; it < 2 * TARGETS; it++) {
            tensor *a = &t[it % TARGETS], *b = &t[(it + 1) % TARGETS];
            if (k == 0) away(a), away(b);
            list[8] = DEVICE(a), list[9] = DEVICE(b);
            OK(CALL(cuGraphLaunch, exec, s));
            a->value += 3, b->value += 3;
            SYNC(s);
        }
        OK(CALL(cuGraphExecDestroy, exec));
        OK(CALL(cuGraphDestroy, g));
    }
    for (int i = 0; i < TARGETS; i++) check_value(&t[i]);
    OK(CALL(cuMemFree_v2, own));
    free(list);
}

/* Addresses that are copied to a module's globals: a kernel may find them there, and nothing ever shows it. */
static void globals(void) {
    CUstream s = new_stream();
    f_table = function("table_add");
    tensor t[3], other;
    for (int i = 0; i < 3; i++) must(&t[i], LAYER_BYTES, s, 100);
    must(&other, LAYER_BYTES, s, 5);
    SYNC(s);
    CUdeviceptr global; /* as good as one: device memory that the engine did not give out */
    OK(CALL(cuMemAlloc_v2, &global, U64(16384)));
    unmanaged = 2 * MiB;
    uint64_t list[1000] = {1, DEVICE(&t[0])}, more[] = {DEVICE(&t[2])}, numbers[] = {7, 8, 9};
    list[999] = DEVICE(&t[1]) + 4096;
    begin_pressure();
    for (int i = 0; i < 3; i++) away(&t[i]);
    OK(CALL(cuMemcpyHtoD_v2, global, list, U64(sizeof list)));
    OK(CALL(cuMemcpyAsync, global + 8192, (uintptr_t)more, U64(sizeof more), s));
    OK(CALL(cuMemcpyHtoD_v2, global + 12288, numbers, U64(sizeof numbers)));
    SYNC(s);
    away(&other);
    for (int i = 0; i < 12; i++) {
        pressure();
        for (int k = 0; k < 3; k++) CHECK_EQ(resident(DEVICE(&t[k]), t[k].bytes), t[k].bytes);
    }
    /* Past the hook, as a kernel that reads the globals. */
    CUresult (*fill)(CUdeviceptr, unsigned, size_t, CUstream) = (CUresult(*)(CUdeviceptr, unsigned, size_t, CUstream))unhooked("cuMemsetD32Async");
    for (int k = 0; k < 3; k++) OK(fill(DEVICE(&t[k]), t[k].value = 40 + (uint32_t)k, t[k].bytes / 4, s));
    SYNC(s);
    for (int k = 0; k < 3; k++) check_value(&t[k]);
    /* What comes after them at the same addresses is free to leave. */
    for (int k = 0; k < 3; k++) drop(&t[k]);
    for (int k = 0; k < 3; k++) {
        must(&t[k], LAYER_BYTES, s, 9);
        SYNC(s);
        away(&t[k]);
        check_value(&t[k]);
    }
    OK(CALL(cuMemFree_v2, global));
}

/* So does a graph that copies them there, and only what they name: launches outside of the graph read the globals too. */
static void graph_globals(void) {
    CUstream s = new_stream();
    tensor t, moved;
    must(&t, LAYER_BYTES, s, 100), must(&moved, LAYER_BYTES, s, 0);
    SYNC(s);
    CUdeviceptr global;
    OK(CALL(cuMemAlloc_v2, &global, U64(4096)));
    unmanaged = 2 * MiB;
    uint64_t *list = calloc(1, 4096);
    begin_pressure();
    CUgraph g;
    CUgraphExec exec;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    OK(CALL(cuMemcpyHtoDAsync_v2, global, list, U64(4096), s));
    OK(CALL(cuMemsetD32Async, DEVICE(&moved), 7, U64(LAYER_BYTES / 4), s));
    OK(CALL(cuStreamEndCapture, s, &g));
    OK(CALL(cuGraphInstantiateWithFlags, &exec, g, U64(0)));
    away(&t), away(&moved);
    list[5] = DEVICE(&t) + 64;
    OK(CALL(cuGraphLaunch, exec, s));
    SYNC(s);
    moved.value = 7;
    away(&moved);
    for (int i = 0; i < 12; i++) {
        pressure();
        CHECK_EQ(resident(DEVICE(&t), t.bytes), t.bytes);
    }
    check_value(&t), check_value(&moved);
    OK(CALL(cuGraphExecDestroy, exec));
    OK(CALL(cuMemFree_v2, global));
    free(list);
}

/* What the driver keeps the address of in an object, or writes for a stream itself: no launch shows it. */
static void textures(void) {
    enum { WORDS = LAYER_BYTES / 4 };
    CUstream s = new_stream(), capturing = new_stream();
    CUfunction f = function("texture_add");
    tensor t[5], out;
    for (int i = 0; i < 5; i++) must(&t[i], LAYER_BYTES, s, 100 + (uint32_t)i);
    must(&out, LAYER_BYTES, s, 0);
    SYNC(s);
    begin_pressure();
    uint64_t object[2], unused[16] = {0}, n = WORDS - 1024;
    for (int i = 0; i < 2; i++) {
        CUDA_RESOURCE_DESC d = {.resType = i ? CU_RESOURCE_TYPE_PITCH2D : CU_RESOURCE_TYPE_LINEAR, .res.devPtr = DEVICE(&t[i]) + 4096};
        away(&t[i]);
        if (i) OK(CALL(cuStreamBeginCapture_v2, capturing, 0)); /* which it does not end */
        OK(CALL(cuTexObjectCreate, &object[i], &d, unused, (void *)0));
        CHECK_EQ(resident(DEVICE(&t[i]), LAYER_BYTES), LAYER_BYTES);
    }
    CUgraph graph;
    OK(CALL(cuStreamEndCapture, capturing, &graph));
    /* Whose handle others have they may write to at any time. */
    tensor shared[7];
    int fd;
    uint64_t handle, reference[2];
    for (int i = 0; i < 7; i++) must(&shared[i], LAYER_BYTES, s, 7), SYNC(s), away(&shared[i]);
    OK(CALL(cuMemGetHandleForAddressRange, &fd, DEVICE(&shared[0]), U64(LAYER_BYTES), 1, U64(0)));
    OK(CALL(cuMemRetainAllocationHandle, &handle, (void *)(uintptr_t)DEVICE(&shared[1])));
    OK(CALL(cuTexRefSetAddress_v2, (void *)0, &reference[0], DEVICE(&shared[2]), U64(LAYER_BYTES)));
    OK(CALL(cuTexRefSetAddress2D_v3, &reference[1], unused, DEVICE(&shared[3]), U64(4096)));
    OK(CALL(cuMulticastBindAddr, U64(1), U64(0), DEVICE(&shared[4]), U64(LAYER_BYTES), U64(0)));
    OK(CALL(cuMulticastBindAddr_v2, U64(1), 0, U64(0), DEVICE(&shared[5]), U64(LAYER_BYTES), U64(0)));
    OK(CALL(cuLogicalEndpointBindAddr, 1, 0, U64(0), DEVICE(&shared[6]), U64(LAYER_BYTES), U64(0)));
    away(&t[2]), away(&t[3]), away(&t[4]);
    OK(CALL(cuStreamWriteValue32_v2, s, DEVICE(&t[2]) + 8, 77, 0));
    CUstreamBatchMemOpParams ops[3] = {{.value = {CU_STREAM_MEM_OP_WAIT_VALUE_32, DEVICE(&t[2]) + 8, {.value = 77}, 0, 0}},
                                       {.value = {CU_STREAM_MEM_OP_WRITE_VALUE_64, DEVICE(&t[3]) + 16, {.value64 = 78}, 0, 0}},
                                       {.reduction = {CU_STREAM_MEM_OP_ATOMIC_REDUCTION, 0, CU_STREAM_ATOMIC_REDUCTION_OP_ADD, CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64, DEVICE(&t[4]) + 24, 79, 0}}};
    OK(CALL(cuMemsetD32Async, DEVICE(&t[4]) + 24, 0, U64(2), s));
    away(&t[4]);
    OK(CALL(cuStreamBatchMemOp_v2, s, 3, ops, 0));
    SYNC(s);
    P.empty_cache(); /* which waits for streams */
    for (int round = 0; round < 6; round++) {
        pressure();
        CUdeviceptr to = DEVICE(&out) + 4096;
        for (int i = 0; i < 2; i++) launch(round, s, f, (void *[]){&object[i], &to, &n});
        for (int i = 0; i < 5; i++) CHECK_EQ(resident(DEVICE(&t[i]), LAYER_BYTES), LAYER_BYTES);
        for (int i = 0; i < 7; i++) CHECK_EQ(resident(DEVICE(&shared[i]), LAYER_BYTES), LAYER_BYTES);
    }
    SYNC(s);
    OK(CALL(cuMemRelease, handle));
    for (int i = 0; i < 7; i++) drop(&shared[i]);
    uint32_t got[2];
    OK(CALL(cuMemcpyDtoH_v2, got, DEVICE(&out) + 4096, U64(4)));
    CHECK_EQ(got[0], 6 * (t[0].value + t[1].value));
    for (int i = 2; i < 5; i++) {
        OK(CALL(cuMemcpyDtoH_v2, got, DEVICE(&t[i]) + 8 * (i - 1), U64(4)));
        CHECK_EQ(got[0], 75 + i);
    }
    for (int i = 0; i < 2; i++) OK(CALL(cuTexObjectDestroy, object[i]));
    /* What comes after them at the same addresses is free to leave. */
    for (int i = 0; i < 5; i++) drop(&t[i]);
    for (int i = 0; i < 5; i++) must(&t[i], LAYER_BYTES, s, 9), SYNC(s), away(&t[i]), check_value(&t[i]);
    /* In a graph they are named at each launch, and free to leave in between. */
    CUDA_BATCH_MEM_OP_NODE_PARAMS p = {.count = 1, .paramArray = &ops[2]};
    ops[2].reduction.address = DEVICE(&t[0]) + 24, ops[2].reduction.value = 1;
    CUgraphNode node;
    CUgraphExec exec;
    OK(CALL(cuGraphCreate, &graph, 0));
    OK(CALL(cuGraphAddBatchMemOpNode, &node, graph, (void *)0, U64(0), &p));
    OK(CALL(cuGraphInstantiateWithFlags, &exec, graph, U64(0)));
    for (int round = 0; round < 3; round++) {
        away(&t[0]);
        OK(CALL(cuGraphLaunch, exec, s));
        SYNC(s);
    }
    OK(CALL(cuMemcpyDtoH_v2, got, DEVICE(&t[0]) + 24, U64(4)));
    CHECK_EQ(got[0], 9 + 3);
    OK(CALL(cuGraphExecDestroy, exec));
    for (int i = 0; i < 5; i++) drop(&t[i]);
}

/* A pair of kernels of which the second reaches only what the first names, as with a
 * grouped GEMM. */
static void pair(CUstream s, tensor *t, CUdeviceptr table, bool leaves) {
    uint64_t one = 1, stride = 0;
    CUdeviceptr at = DEVICE(t);
    launch(BY_DLSYM, s, f_make, (void *[]){&table, &one, &at, &stride});
    if (leaves) away(t); /* by launches on another stream */
    table_add(s, table, 1, 3);
    t->value += 3;
}

/* What a table left in memory that is now a kernel's output is nothing that the kernel follows. */
static void stale_outputs(CUstream s, const tensor *t) {
    CUfunction slow = function("slow_add");
    uint64_t list[1] = {DEVICE(t)}, words = TABLE_BYTES / 4, us = 0;
    uint32_t inc = 1;
    long long inspected = stat_now("inspected_launches"), chasing = stat_now("pointer_chasing_launches");
    for (int it = 0; it < 40; it++) {
        tensor table = {.p = P.malloc(TABLE_BYTES, 0, s), .bytes = TABLE_BYTES, .stream = s};
        CHECK(table.p);
        OK(CALL(cuMemcpyHtoD_v2, DEVICE(&table), list, U64(sizeof list)));
        drop(&table);
        tensor output = {.p = P.malloc(TABLE_BYTES, 0, s), .bytes = TABLE_BYTES, .stream = s};
        CHECK(output.p);
        CUdeviceptr at = DEVICE(&output);
        launch(it, s, slow, (void *[]){&at, &words, &inc, &us});
        drop(&output);
    }
    SYNC(s);
    CHECK(stat_now("inspected_launches") <= inspected + 4);
    CHECK_EQ(stat_now("pointer_chasing_launches"), chasing);
}

static void follow(void) {
    CUstream s = new_stream();
    f_table = function("table_add"), f_make = function("make_table");
    tensor t[TARGETS], small, other;
    for (int i = 0; i < TARGETS; i++) must(&t[i], BYTES, s, 100);
    must(&small, 4096, s, 0), must(&other, 4096, s, 0);
    SYNC(s);
    begin_pressure();
    stale_outputs(s, &t[0]);
    /* What was written to memory before it was allocated counts for nothing. */
    uint64_t list[1] = {DEVICE(&t[2])};
    tensor stale = {.p = P.malloc(4096, 0, s), .bytes = 4096, .stream = s};
    OK(CALL(cuMemcpyHtoD_v2, DEVICE(&stale), list, U64(sizeof list)));
    void *where = stale.p;
    drop(&stale);
    for (int it = 0; it < 60; it++) {
        tensor fresh = {.p = P.malloc(4096, 0, s), .bytes = 4096, .stream = s};
        CHECK(fresh.p == where);
        pair(s, &t[it % TARGETS], DEVICE(&fresh), it % 5 == 0);
        drop(&fresh);
    }
    SYNC(s);
    long long inspected = stat_now("inspected_launches"), followed = stat_now("followed_launches");
    CHECK(followed >= 30 && inspected <= 30);
    /* What comes between, and a table of before: no pair. */
    uint64_t one = 1, stride = 0;
    for (int i = 0; i < TARGETS; i++) {
        CUdeviceptr table = DEVICE(&other), at = DEVICE(&t[i]);
        launch(BY_DLSYM, s, f_make, (void *[]){&table, &one, &at, &stride});
        pair(s, &t[(i + 1) % TARGETS], DEVICE(&small), false);
        away(&t[i]);
        table_add(s, table, 1, 5);
        t[i].value += 5;
    }
    SYNC(s);
    CHECK(stat_now("inspected_launches") >= inspected + TARGETS);
    for (int i = 0; i < TARGETS; i++) check_value(&t[i]);
    /* Now it strays: an entry of the table is not the first kernel's. The tensor stays on the
     * device until a search has found that, after which every launch is searched again. */
    for (int it = 0; it < 80; it++) {
        CUdeviceptr table = DEVICE(&small), second = table + 8, stray = DEVICE(&t[0]), at = DEVICE(&t[1]);
        launch(BY_DLSYM, s, f_make, (void *[]){&second, &one, &stray, &stride});
        launch(BY_DLSYM, s, f_make, (void *[]){&table, &one, &at, &stride});
        if (it >= 70) away(&t[0]);
        table_add(s, table, 2, 1);
        t[0].value++, t[1].value++;
        if (it < 70) add(it, s, &t[0], 1);
    }
    followed = stat_now("followed_launches");
    for (int it = 0; it < 20; it++) pair(s, &t[it % TARGETS], DEVICE(&small), it % 5 == 0);
    SYNC(s);
    CHECK_EQ(stat_now("followed_launches"), followed);
    for (int i = 0; i < TARGETS; i++) check_value(&t[i]);
}

static void tables(const char *mode) {
    CUstream s = new_stream();
    f_table = function("table_add"), f_make = function("make_table");
    tensor t[TARGETS], small, large;
    for (int i = 0; i < TARGETS; i++) must(&t[i], BYTES, s, 100);
    must(&small, 4096, s, 0), must(&large, TABLE_BYTES, s, 0);
    SYNC(s);
    begin_pressure();
    void (*use)(CUstream, tensor *, const tensor *) = !strcmp(mode, "hosttables") ? host_tables : device_tables;
    use(s, t, &small);
    use(s, t, &large);
    SYNC(s);
    for (int i = 0; i < TARGETS; i++) check_value(&t[i]);
    CHECK(strstr(stats(), "\"pointer_chasing_launches\":") && stat_now("pointer_chasing_launches") > 0);
}

/* ---- streams ---- */

/* A slow launch on another stream: what it works on stays, while everything else is moved about. */
static void streams(void) {
    CUstream s = new_stream(), side = new_stream();
    CUfunction slow = function("slow_add");
    tensor t;
    must(&t, BYTES, s, 1);
    SYNC(s);
    begin_pressure();
    for (int it = 0; it < 4; it++) {
        away(&t);
        CUdeviceptr p = DEVICE(&t);
        uint64_t n = BYTES / 4, us = 60000;
        uint32_t inc = 3;
        launch(it, side, slow, (void *[]){&p, &n, &inc, &us});
        t.value += inc;
        double until = now() + 0.08;
        while (now() < until) pressure();
        SYNC(side);
        check_value(&t);
    }
}

/* More streams than the hook tells apart: what those beyond have done says nothing of the
 * default stream. */
static void many_streams(void) {
    enum { STREAMS = PSK_MAX_STREAMS + 8 };
    CUfunction slow = function("slow_add");
    tensor t;
    must(&t, BYTES, NULL, 1);
    SYNC(NULL);
    begin_pressure();
    CUstream s[STREAMS];
    for (int i = 0; i < STREAMS; i++) launch(i, s[i] = new_stream(), f_empty, NULL), SYNC(s[i]);
    for (int it = 0; it < 4; it++) {
        away(&t);
        CUdeviceptr p = DEVICE(&t);
        uint64_t n = BYTES / 4, us = 150000;
        uint32_t inc = 3;
        launch(it, NULL, slow, (void *[]){&p, &n, &inc, &us});
        t.value += inc;
        double until = now() + 0.17;
        while (now() < until) launch(it, s[STREAMS - 1], f_empty, NULL), pressure();
        SYNC(NULL);
        check_value(&t);
    }
    for (int i = 0; i < STREAMS; i++) OK(CALL(cuStreamDestroy_v2, s[i]));
}

/* Each thread has a default stream of its own, all by one handle. */
static void *other_default(void *stop) {
    launch_fn own = (launch_fn)driver("cuLaunchKernel_ptsz");
    while (!atomic_load((atomic_int *)stop)) OK(own(f_empty, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)), usleep(1000);
    return NULL;
}

/* Small memory that a kernel still uses on a stream that nobody can be asked about: another
 * thread's own, or one that was destroyed. */
typedef struct { CUdeviceptr p; int destroyed; } unasked;

static void *use_small(void *arg) {
    unasked *u = arg;
    CUfunction slow = function("slow_add");
    uint64_t n = 1024, us = 200000;
    uint32_t inc = 1;
    void *args[] = {&u->p, &n, &inc, &us};
    CUstream s = u->destroyed ? new_stream() : NULL;
    OK(((launch_fn)driver(s ? "cuLaunchKernel" : "cuLaunchKernel_ptsz"))(slow, 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
    if (s) OK(CALL(cuStreamDestroy_v2, s));
    return NULL;
}

static void small_released(void) {
    enum { SMALL = 900 << 10, PIECES = 5 }; /* a segment has room for two */
    for (int i = 0; i < 4; i++) {
        pthread_t other;
        void *p[PIECES];
        for (int k = 0; k < PIECES; k++) p[k] = P.malloc(SMALL, 0, NULL);
        unasked u = {(CUdeviceptr)(uintptr_t)p[PIECES - 1], i % 2};
        CHECK(u.p && resident(u.p, SMALL));
        CHECK(!pthread_create(&other, NULL, use_small, &u));
        pthread_join(other, NULL);
        for (int k = 0; k < PIECES; k++) P.free(p[k], SMALL, 0, NULL);
        P.empty_cache();
        CHECK(!resident(u.p, SMALL)); /* it was given back, and the kernel has not missed it */
    }
}

/* empty_cache gives back what dead tensors have left, and leaves the living alone. */
static void tensors_released(void) {
    enum { DEAD = 8 };
    tensor t, dead[DEAD];
    must(&t, BYTES, NULL, 7);
    long long living = stat_now("reserved_bytes");
    for (int i = 0; i < DEAD; i++) must(&dead[i], BYTES, NULL, 1);
    CUdeviceptr p = DEVICE(&dead[DEAD - 1]);
    for (int i = 0; i < DEAD; i++) drop(&dead[i]);
    CHECK(resident(p, BYTES));
    P.empty_cache();
    CHECK(!resident(p, BYTES));
    CHECK_EQ(stat_now("reserved_bytes"), living);
    check_value(&t);
    drop(&t);
}

static void own_streams(void) {
    CUfunction slow = function("slow_add");
    launch_fn own = (launch_fn)driver("cuLaunchKernel_ptsz");
    atomic_int stop = 0;
    pthread_t other;
    tensor t;
    must(&t, BYTES, NULL, 1);
    SYNC(NULL);
    begin_pressure();
    driver("cuLaunchKernel_ptsz");
    CHECK(!pthread_create(&other, NULL, other_default, &stop));
    for (int it = 0; it < 3; it++) {
        away(&t);
        CUdeviceptr p = DEVICE(&t);
        uint64_t n = BYTES / 4, us = 60000;
        uint32_t inc = 3;
        OK(own(slow, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&p, &n, &inc, &us}, NULL));
        t.value += inc;
        double until = now() + 0.08;
        while (now() < until) pressure();
        OK(CALL(cuStreamSynchronize_ptsz, NULL));
        check_value(&t);
    }
    atomic_store(&stop, 1);
    pthread_join(other, NULL);
    small_released();
}

/* What streams have not reported yet must not hold their tensors for ever: the last
 * operation of each finds its tensor on the device, so nothing has it reported. */
static void tails(void) {
    enum { STREAMS = 9 };
    CUstream s[STREAMS];
    tensor t[STREAMS], more[2];
    for (int i = 0; i < STREAMS; i++) s[i] = new_stream(), must(&t[i], BYTES, s[i], (uint32_t)i);
    for (int i = 0; i < STREAMS; i++) SYNC(s[i]);
    for (int i = 0; i < STREAMS; i++) add(i, s[i], &t[i], 1);
    for (int i = 0; i < STREAMS; i++) SYNC(s[i]);
    for (int i = 0; i < 2; i++) must(&more[i], 2 * BYTES, s[0], 1);
    add_to(BY_DLSYM, s[0], &more[0], &more[1]); /* both at once */
    SYNC(s[0]);
    for (int i = 0; i < STREAMS; i++) check_value(&t[i]);
    for (int i = 0; i < 2; i++) check_value(&more[i]);
}

/* Two threads and their streams, with tensors of their own and more launches than moves. */
enum { RACERS = 2, RACED = 12, RACES = 1500 };
typedef struct racer {
    unsigned seed;
    CUstream s;
    tensor t[RACED];
} racer;

static void *run_racer(void *arg) {
    racer *r = arg;
    CUcontext ctx;
    OK(CALL(cuDevicePrimaryCtxRetain, &ctx, 0));
    OK(CALL(cuCtxSetCurrent, ctx));
    for (int i = 0; i < RACES; i++) {
        r->seed = r->seed * 1664525u + 1013904223u;
        /* A few tensors for a while, then others: what is about to leave is launched on once more. */
        tensor *t = &r->t[((unsigned)i / 50 + (r->seed >> 16) % 4) % RACED];
        add(i, r->s, t, r->seed & 7);
        if (i % 100 == 99) SYNC(r->s);
    }
    SYNC(r->s);
    return NULL;
}

static void race(void) {
    static racer r[RACERS];
    pthread_t thread[RACERS];
    for (int i = 0; i < RACERS; i++) {
        r[i].seed = (unsigned)i + 1, r[i].s = new_stream();
        for (int k = 0; k < RACED; k++) must(&r[i].t[k], (size_t)(2 + 2 * (k % 3)) * MiB, r[i].s, (uint32_t)k);
    }
    for (int i = 0; i < RACERS; i++) CHECK(!pthread_create(&thread[i], NULL, run_racer, &r[i]));
    for (int i = 0; i < RACERS; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < RACERS; i++)
        for (int k = 0; k < RACED; k++) check_value(&r[i].t[k]);
}

/* ---- copies and fills ---- */

static void copies(void) {
    CUstream s = new_stream();
    CUcontext ctx;
    OK(CALL(cuDevicePrimaryCtxRetain, &ctx, 0));
    tensor a, b;
    must(&a, BYTES, s, 11), must(&b, BYTES, s, 22);
    SYNC(s);
    begin_pressure();
    const uint64_t n = BYTES, words = BYTES / 4;
    uint32_t *host = malloc(BYTES), *pinned;
    OK(CALL(cuMemHostAlloc, &pinned, n, 0));
    uint32_t v = 1000;
#define BOTH_AWAY (SYNC(s), away(&a), away(&b), v++)
#define ALL(p) for (uint64_t i = 0; i < words; i++) (p)[i] = v
#define SAME(p) for (uint64_t i = 0; i < words; i++) CHECK_EQ((p)[i], a.value)
    /* Into it, from the host and by fills. */
    BOTH_AWAY; ALL(host); OK(CALL(cuMemcpyHtoD_v2, DEVICE(&a), host, n)); a.value = v, check_value(&a);
    BOTH_AWAY; ALL(pinned); OK(CALL(cuMemcpyHtoDAsync_v2, DEVICE(&a), pinned, n, s)); SYNC(s); a.value = v, check_value(&a);
    BOTH_AWAY; ALL(host); OK(CALL(cuMemcpyHtoDAsync_v2, DEVICE(&a), host, n, s)); SYNC(s); a.value = v, check_value(&a);
    BOTH_AWAY; ALL(host); OK(CALL(cuMemcpy, DEVICE(&a), host, n)); a.value = v, check_value(&a);
    BOTH_AWAY; ALL(pinned); OK(CALL(cuMemcpyAsync, DEVICE(&a), pinned, n, s)); SYNC(s); a.value = v, check_value(&a);
    BOTH_AWAY; OK(CALL(cuMemsetD32_v2, DEVICE(&a), v, words)); a.value = v, check_value(&a);
    BOTH_AWAY; OK(fill_fn(DEVICE(&a), v, words, s)); SYNC(s); a.value = v, check_value(&a);
    BOTH_AWAY; OK(CALL(cuMemsetD2D32_v2, DEVICE(&a), U64(4096), v, U64(1024), U64(n / 4096))); a.value = v, check_value(&a);
    /* Out of it; check_value, too, copies out what may be away. */
    BOTH_AWAY; OK(CALL(cuMemcpyDtoH_v2, host, DEVICE(&a), n)); SAME(host);
    BOTH_AWAY; OK(CALL(cuMemcpyDtoHAsync_v2, pinned, DEVICE(&a), n, s)); SYNC(s); SAME(pinned);
    BOTH_AWAY; OK(CALL(cuMemcpyDtoHAsync_v2, host, DEVICE(&a), n, s)); SYNC(s); SAME(host);
    BOTH_AWAY; OK(CALL(cuMemcpy, host, DEVICE(&a), n)); SAME(host);
    /* From one to the other. */
#define FROM_TO(call) BOTH_AWAY; OK(fill_fn(DEVICE(&a), v, words, s)); a.value = v; SYNC(s); away(&a); call; SYNC(s); b.value = v; check_value(&b), check_value(&a)
    FROM_TO(OK(CALL(cuMemcpyDtoD_v2, DEVICE(&b), DEVICE(&a), n)));
    FROM_TO(OK(CALL(cuMemcpyDtoDAsync_v2, DEVICE(&b), DEVICE(&a), n, s)));
    FROM_TO(OK(CALL(cuMemcpyPeer, DEVICE(&b), ctx, DEVICE(&a), ctx, n)));
    FROM_TO(OK(CALL(cuMemcpyPeerAsync, DEVICE(&b), ctx, DEVICE(&a), ctx, n, s)));
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = DEVICE(&a), .srcPitch = 4096, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .dstDevice = DEVICE(&b), .dstPitch = 4096, .WidthInBytes = 4096, .Height = BYTES / 4096};
    FROM_TO(OK(CALL(cuMemcpy2DAsync_v2, &c, s)));
    FROM_TO(OK(CALL(cuMemcpy2D_v2, &c)));
    free(host);
}

/* ---- memory that nothing has named ---- */

/* What the driver says of a tensor's address is the same when the tensor is away. */
static void attributes(void) {
    enum { CONTEXT = 1, TYPE = 2, POINTER = 3, HOST_POINTER = 4, MANAGED = 8, ORDINAL = 9, START = 11, SIZE = 12 };
    CUstream s = new_stream();
    tensor t;
    must(&t, 10 * MiB, s, 1);
    SYNC(s);
    begin_pressure();
    for (int round = 0; round < 2; round++) {
        if (round == 1) away(&t);
        CUdeviceptr p = DEVICE(&t) + 5 * MiB, pointer = 0, start = 0;
        unsigned type = 0, managed = 1;
        int ordinal = -1;
        size_t bytes = 0;
        void *context = NULL, *host = NULL;
        OK(CALL(cuPointerGetAttribute, &type, 2, p));
        CHECK_EQ(type, CU_MEMORYTYPE_DEVICE);
        type = 0;
        int asked[] = {CONTEXT, TYPE, POINTER, MANAGED, ORDINAL, START, SIZE};
        void *to[] = {&context, &type, &pointer, &managed, &ordinal, &start, &bytes};
        if (round == 1) { /* the stub has no contexts */
            OK(CALL(cuPointerGetAttributes, sizeof asked / sizeof *asked, asked, to, p));
            CHECK(context);
        } else {
            OK(CALL(cuPointerGetAttributes, sizeof asked / sizeof *asked - 1, asked + 1, to + 1, p));
        }
        CHECK(type == CU_MEMORYTYPE_DEVICE && pointer == p && !managed && !ordinal && start <= p && p < start + bytes);
        CHECK(round == 0 || (start == DEVICE(&t) && bytes == t.bytes));
        OK(CALL(cuMemGetAddressRange_v2, &start, &bytes, p));
        CHECK(start <= p && p < start + bytes);
        if (round == 1) CHECK(CALL(cuPointerGetAttribute, &host, HOST_POINTER, p) != CUDA_SUCCESS);
        CHECK(round == 0 || !resident(DEVICE(&t), t.bytes)); /* that somebody asks brings nothing in */
    }
    CUdeviceptr at = DEVICE(&t);
    drop(&t);
    for (int i = 0; i < 8; i++) pressure();
    unsigned type = 0;
    CHECK(resident(at, 10 * MiB) || CALL(cuPointerGetAttribute, &type, 2, at) != CUDA_SUCCESS);
    CHECK(CALL(cuPointerGetAttribute, &type, 2, (CUdeviceptr)(uintptr_t)&type) != CUDA_SUCCESS);
}

/* A range that is used again without having been named may be in use by something
 * that the hook does not see: it stays. */
static void never_named(void) {
    CUstream s = new_stream();
    tensor a;
    must(&a, 10 * MiB, s, 1);
    SYNC(s);
    drop(&a);
    a = (tensor){.p = P.malloc(10 * MiB, 0, s), .bytes = 10 * MiB, .value = 77, .stream = s};
    CHECK(a.p);
    CHECK_EQ(resident(DEVICE(&a), a.bytes), a.bytes); /* the same range, still mapped */
    CUresult (*fill)(CUdeviceptr, unsigned, size_t, CUstream) = (CUresult(*)(CUdeviceptr, unsigned, size_t, CUstream))unhooked("cuMemsetD32Async");
    OK(fill(DEVICE(&a), 76, a.bytes / 4, s));
    SYNC(s);
    begin_pressure();
    for (int i = 0; i < 4; i++) {
        pressure();
        CHECK_EQ(resident(DEVICE(&a), a.bytes), a.bytes);
    }
    OK(fill(DEVICE(&a), 77, a.bytes / 4, s));
    SYNC(s);
    check_value(&a);
    away(&a); /* now that it has been named */
    check_value(&a);
}

/* ---- tensors that die ---- */

/* While their copies are under way, in either direction. */
static void freed(void) {
    CUstream s = new_stream();
    begin_pressure();
    int moving = 0;
    for (int it = 0; it < 12; it++) {
        tensor t, u, *f = &filler[it % FILLERS];
        const size_t bytes = BYTES + (size_t)it * 2 * MiB; /* so that the next of the size finds only this one's range */
        must(&t, bytes, s, 5);
        SYNC(s);
        away(&t);
        add(it, s, &t, 1); /* returns when the copy in is submitted */
        drop(&t);
        must(&u, bytes, s, (uint32_t)it);
        add(it, s, &u, 1);
        /* And one on its way out. */
        for (int i = 1; i < FILLERS / 2; i++) add(it, fill_stream, &filler[(it + i) % FILLERS], 1);
        moving += strstr(stats(), "\"moving\":true") != NULL;
        drop(f);
        must(f, BYTES, fill_stream, 1);
        SYNC(s), SYNC(fill_stream);
        check_value(&u), check_value(f);
        drop(&u);
    }
    CHECK(moving > 0);
}

/* While another stream, which the engine has only been told of, works on it. */
static void record_stream(void) {
    CUstream s = new_stream(), side = new_stream();
    CUfunction slow = function("slow_add");
    launch_fn past = (launch_fn)unhooked("cuLaunchKernel");
    begin_pressure();
    for (int it = 0; it < 4; it++) {
        tensor t, u;
        must(&t, BYTES, s, 1);
        SYNC(s);
        CUdeviceptr p = DEVICE(&t);
        uint64_t n = BYTES / 4, us = 60000;
        uint32_t inc = 3;
        OK(past(slow, 1, 1, 1, 1, 1, 1, 0, side, (void *[]){&p, &n, &inc, &us}, NULL));
        launch(it, side, f_empty, NULL);
        P.record_stream(t.p, side);
        drop(&t);
        must(&u, BYTES, s, 50); /* the same size, for the same stream */
        if (it % 2) pressure();
        SYNC(s), SYNC(side);
        check_value(&u);
        drop(&u);
    }
}

/* ---- graphs ---- */

static CUgraph captured(CUstream s, tensor *a, tensor *b) {
    CUgraph g;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    add(BY_DLSYM, s, a, 1);
    OK(CALL(cuMemcpyDtoDAsync_v2, DEVICE(b), DEVICE(a), U64(BYTES), s));
    OK(CALL(cuStreamEndCapture, s, &g));
    a->value -= 1; /* it has not run */
    return g;
}

static void graphs(void) {
    CUstream s = new_stream();
    tensor t[4];
    for (uint32_t i = 0; i < 4; i++) must(&t[i], BYTES, s, i * 10);
    SYNC(s);
    begin_pressure();
    for (int i = 0; i < 4; i++) away(&t[i]);
    CUgraph first = captured(s, &t[0], &t[1]), second = captured(s, &t[2], &t[3]);
    CUgraphExec exec;
    OK(CALL(cuGraphInstantiateWithFlags, &exec, first, U64(0)));
    for (int it = 0; it < 3; it++) { /* replay */
        for (int i = 0; i < 4; i++) away(&t[i]);
        OK(CALL(cuGraphLaunch, exec, s));
        t[1].value = ++t[0].value;
        SYNC(s);
        check_value(&t[0]), check_value(&t[1]);
    }
    /* One node's parameters, then the whole graph's. */
    CUgraphNode node[2];
    size_t n = 2;
    OK(CALL(cuGraphGetNodes, first, node, &n));
    CUdeviceptr p = DEVICE(&t[3]);
    uint64_t words = BYTES / 4;
    uint32_t inc = 5;
    CUDA_KERNEL_NODE_PARAMS k = {.func = f_add, 1, 1, 1, 1, 1, 1, 0, .kernelParams = (void *[]){&p, &words, &inc}};
    OK(CALL(cuGraphExecKernelNodeSetParams_v2, exec, node[0], &k));
    for (int i = 0; i < 4; i++) away(&t[i]);
    OK(CALL(cuGraphLaunch, exec, s));
    t[3].value += 5, t[1].value = t[0].value;
    SYNC(s);
    for (int i = 0; i < 4; i++) check_value(&t[i]);
    for (int i = 0; i < 4; i++) away(&t[i]);
    CUgraphExecUpdateResultInfo info;
    OK(CALL(cuGraphExecUpdate_v2, exec, second, &info));
    OK(CALL(cuGraphLaunch, exec, s));
    t[3].value = ++t[2].value;
    SYNC(s);
    for (int i = 0; i < 4; i++) check_value(&t[i]);
}

/* A node of a type that the hook cannot read: everything is on the device first. */
static void unknown_nodes(void) {
    CUstream s = new_stream();
    tensor a, b;
    must(&a, BYTES, s, 1), must(&b, BYTES, s, 2);
    SYNC(s);
    begin_pressure();
    CUgraph g;
    CUgraphExec exec;
    CUgraphNode node;
    size_t n = 1;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    OK(CALL(cuMemcpyDtoDAsync_v2, DEVICE(&b), DEVICE(&a), U64(BYTES), s));
    OK(CALL(cuStreamEndCapture, s, &g));
    OK(CALL(cuGraphGetNodes, g, &node, &n));
    for (int type = CU_GRAPH_NODE_TYPE_MEMCPY_BATCH; type < 18; type++) {
        ((void (*)(CUgraphNode, int))driver("stub_tell_type"))(node, type);
        OK(CALL(cuGraphInstantiateWithFlags, &exec, g, U64(0)));
        away(&a), away(&b);
        for (int i = FILLERS / 2; i < FILLERS; i++) drop(&filler[i]); /* all that is left fits */
        OK(CALL(cuGraphLaunch, exec, s));
        SYNC(s);
        b.value = a.value;
        check_value(&a), check_value(&b);
        add(0, s, &a, 3);
        for (int i = FILLERS / 2; i < FILLERS; i++) must(&filler[i], BYTES, fill_stream, 1);
        SYNC(fill_stream); /* they are read past their stream at the end */
        OK(CALL(cuGraphExecDestroy, exec));
    }
    CHECK_EQ(stat_now("unresolved_launches"), 3); /* a batch can be read */
}

/* The memory of graphs leaves between their launches, also what was freed in their pool: a graph may read it. Filling it
 * is part of them. */
static void graph_pool(void) {
    enum { TENSORS = 12 }; /* more than the budget */
    CUstream s = new_stream();
    tensor t[TENSORS];
    begin_pressure();
    CHECK_EQ(P.begin_pool(0, 1, 2), 0);
    for (uint32_t i = 0; i < TENSORS; i++) must(&t[i], BYTES, s, i * 10);
    SYNC(s);
    for (int i = 0; i < TENSORS; i++) check_value(&t[i]);
    away(&t[0]), away(&t[1]), away(&t[2]);
    CUgraph g = captured(s, &t[0], &t[1]), filled;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    OK(CALL(cuMemsetD32Async, DEVICE(&t[2]), 77u, U64(BYTES / 4), s));
    OK(CALL(cuStreamEndCapture, s, &filled));
    CHECK_EQ(P.end_pool(0, 1, 2), 0);
    CUgraphExec exec, fill;
    OK(CALL(cuGraphInstantiateWithFlags, &exec, g, U64(0)));
    away(&t[2]);
    OK(CALL(cuGraphInstantiateWithFlags, &fill, filled, U64(0)));
    uint32_t freed = t[0].value;
    CUdeviceptr at = DEVICE(&t[0]);
    P.free(t[0].p, BYTES, 0, s);
    for (int it = 0; it < 3; it++) {
        while (resident(at, BYTES)) pressure();
        for (int i = 1; i < TENSORS; i++) away(&t[i]);
        OK(CALL(cuGraphLaunch, exec, s));
        t[1].value = ++freed;
        add(it, s, &t[3], 5);
        OK(CALL(cuGraphLaunch, fill, s));
        t[2].value = 77;
        SYNC(s);
        for (int i = 1; i < TENSORS; i++) check_value(&t[i]);
    }
    OK(CALL(cuGraphExecDestroy, exec));
    OK(CALL(cuGraphExecDestroy, fill));
    CHECK(stat_now("allocated_bytes") >= (long long)((TENSORS - 1) * BYTES));
    long long live = stat_now("allocated_bytes");
    /* What the graph made is there when its place is allocated again, though it has left in between. */
    P.free(t[1].p, BYTES, 0, s);
    while (resident(DEVICE(&t[1]), BYTES)) pressure();
    CHECK_EQ(P.restore_in_pool(t[1].p, BYTES, 0, 1, 2), 0);
    CHECK_EQ(stat_now("allocated_bytes"), live);
    check_value(&t[1]);
    for (int i = 1; i < TENSORS; i++) P.free(t[i].p, BYTES, 0, s);
    CHECK_EQ(live - stat_now("allocated_bytes"), (TENSORS - 1) * BYTES); /* counted once */
    CHECK_EQ(P.release_pool(0, 1, 2), 0);
}

/* A graph whose kernel was never launched asks when it is new; what is found for it says nothing
 * of the first kernel of the process, which reaches tensors through a table. */
static void graph_asks(void) {
    CUstream s = new_stream();
    f_table = function("table_add");
    tensor t[3], table;
    for (uint32_t i = 0; i < 3; i++) must(&t[i], LAYER_BYTES, s, i);
    must(&table, 4096, s, 0);
    SYNC(s);
    uint64_t list[1] = {DEVICE(&t[0])}, words = LAYER_BYTES / 4, one = 1;
    uint32_t inc = 3;
    CUdeviceptr at = DEVICE(&table);
    OK(CALL(cuMemcpyHtoD_v2, at, list, U64(sizeof list)));
    launch(BY_DLSYM, s, f_table, (void *[]){&at, &one, &words, &inc});
    t[0].value += inc;
    CUgraph g;
    CUgraphExec exec;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    sum(BY_DLSYM, s, &t[2], &t[1], &t[1]);
    OK(CALL(cuStreamEndCapture, s, &g));
    for (int i = 0; i < 20; i++) {
        OK(CALL(cuGraphInstantiateWithFlags, &exec, g, U64(0)));
        OK(CALL(cuGraphLaunch, exec, s));
        OK(CALL(cuGraphExecDestroy, exec));
    }
    SYNC(s);
    long long inspected = stat_now("inspected_launches");
    CHECK(inspected > 20);
    begin_pressure();
    away(&t[0]);
    launch(BY_DLSYM, s, f_table, (void *[]){&at, &one, &words, &inc});
    t[0].value += inc;
    SYNC(s);
    for (int i = 0; i < 3; i++) check_value(&t[i]);
}

/* ---- other libraries ---- */

static int (*stub_touch_fn)(uint64_t, size_t);

static void indirect_add(const stub_launch *l) {
    struct {
        uint64_t a, b;
        void *s;
    } *w = (void *)STUB_PARAM(l, uint64_t, 0);
    if (!stub_touch_fn(w->a, 4)) ++*(uint32_t *)w->a;
    if (w->b && w->b != w->a && !stub_touch_fn(w->b, 4)) ++*(uint32_t *)w->b;
    free(w);
}

/* NCCL's kernels find their buffers in memory of NCCL's own: only the calls name them. */
static void nccl(void) {
    void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    CHECK(lib);
    int (*all_reduce)() = (int (*)())dlsym(lib, "ncclAllReduce"), (*bcast)() = (int (*)())dlsym(lib, "ncclBcast");
    int (*start_group)(void) = (int (*)(void))dlsym(lib, "ncclGroupStart"), (*end_group)(void) = (int (*)(void))dlsym(lib, "ncclGroupEnd");
    CUstream s = new_stream();
    tensor t[3];
    for (uint32_t i = 0; i < 3; i++) must(&t[i], BYTES, s, i);
    SYNC(s);
    begin_pressure();
    uint32_t first[3] = {0, 1, 2};
    for (int it = 0; it < 3; it++) {
        for (int i = 0; i < 3; i++) away(&t[i]);
        OK(all_reduce(DEVICE(&t[0]), DEVICE(&t[1]), U64(1), 0, 0, NULL, s));
        SYNC(s);
        for (int i = 0; i < 3; i++) away(&t[i]);
        OK(start_group());
        OK(all_reduce(DEVICE(&t[0]), DEVICE(&t[2]), U64(1), 0, 0, NULL, s));
        OK(bcast(DEVICE(&t[1]), U64(1), 0, 0, NULL, s));
        OK(end_group());
        SYNC(s);
        for (int i = 0; i < 3; i++) {
            uint32_t word;
            first[i] += i == 2 ? 1 : 2;
            OK(CALL(cuMemcpyDtoH_v2, &word, DEVICE(&t[i]), U64(4)));
            CHECK_EQ(word, first[i]);
        }
    }
}

/* A call in a group that is in no table, whose kernels NCCL launches inside its own. */
static void nccl_unlisted(void) {
    void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    CHECK(lib);
    int (*all_reduce)() = (int (*)())dlsym(lib, "ncclAllReduce"), (*later)() = (int (*)())dlsym(lib, "ncclLater");
    int (*start_group)(void) = (int (*)(void))dlsym(lib, "ncclGroupStart"), (*end_group)(void) = (int (*)(void))dlsym(lib, "ncclGroupEnd");
    CUstream s = new_stream();
    tensor t[3];
    for (uint32_t i = 0; i < 3; i++) must(&t[i], BYTES, s, i);
    SYNC(s);
    begin_pressure();
    for (uint32_t it = 1; it <= 2; it++) {
        CUstream own = it == 1 ? s : new_stream();
        for (int i = 0; i < 3; i++) away(&t[i]);
        OK(start_group());
        OK(all_reduce(DEVICE(&t[0]), DEVICE(&t[0]), U64(1), 0, 0, NULL, s));
        OK(later(DEVICE(&t[1]), DEVICE(&t[2]), own));
        OK(end_group());
        SYNC(s), SYNC(own);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t word;
            OK(CALL(cuMemcpyDtoH_v2, &word, DEVICE(&t[i]), U64(4)));
            CHECK_EQ(word, i + it);
        }
    }
    /* On a stream that no listed call has, nothing tells when they are done: they stay. */
    for (int i = 0; i < 12; i++) pressure();
    for (int i = 1; i < 3; i++) CHECK_EQ(resident(DEVICE(&t[i]), BYTES), BYTES);
}

/* Memory whose handle NCCL takes inside a call others may write to at any time. */
static void nccl_handles(void) {
    void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    CHECK(lib);
    int (*all_reduce)() = (int (*)())dlsym(lib, "ncclAllReduce");
    CUstream s = new_stream();
    tensor t;
    must(&t, BYTES, s, 7);
    SYNC(s);
    begin_pressure();
    away(&t);
    *(int *)dlsym(lib, "fake_nccl_takes_handles") = 64;
    OK(all_reduce(DEVICE(&t), DEVICE(&t), U64(1), 0, 0, NULL, s));
    SYNC(s);
    for (int i = 0; i < 12; i++) {
        pressure();
        CHECK_EQ(resident(DEVICE(&t), BYTES), BYTES);
    }
}

/* A pointer handed to libraries that launch on their own. */
static void handed_on(int n, char **libraries) {
    CUstream s = new_stream();
    tensor t;
    must(&t, BYTES, s, 1);
    SYNC(s);
    begin_pressure();
    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
        void *lib = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
        if (!lib) fprintf(stderr, "%s\n", dlerror()), exit(1);
        int (*library_add)(void *, unsigned long, unsigned, void *) = (int (*)(void *, unsigned long, unsigned, void *))dlsym(lib, "library_add");
        for (int it = 0; it < 4; it++) {
            away(&t);
            OK(library_add(t.p, BYTES / 4, 2, s));
            t.value += 2;
            SYNC(s);
            check_value(&t);
        }
    }
}

/* Plain memory takes nearly all of the budget: nothing of a large tensor can come. */
static void crowded(void) {
    CUstream s = new_stream();
    CUdeviceptr p = (CUdeviceptr)(uintptr_t)P.malloc(96 * MiB, 0, s);
    CHECK(p);
    while (P.malloc(1000 * 1024, 0, s)) {}
    uint64_t n = 4;
    uint32_t inc = 1;
    CHECK(launch_dlsym(f_add, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){&p, &n, &inc}, NULL) != CUDA_SUCCESS);
    CHECK(strstr(stats(), "\"failure\":"));
    printf("STATS %s\n", stats());
    exit(0);
}

/* A kernel of the job's own reaches what is nobody's: the driver then answers every call with that error, and so
 * must whoever waits for memory, be it of operations behind that kernel, which never report that they are done. */
static void illegal(bool behind) {
    CUstream s = new_stream(), bad = behind ? s : new_stream();
    static tensor t[4 * LAYERS];
    for (int k = 0; k < 4 * LAYERS; k++) must(&t[k], LAYER_BYTES, s, 0);
    SYNC(s);
    uint64_t n = 4, us = behind ? 500000 : 2000, nowhere = 4096;
    uint32_t inc = 1;
    OK(launch_dlsym(f_spin, 1, 1, 1, 1, 1, 1, 0, bad, (void *[]){&us}, NULL)); /* so that launches are waiting when it comes */
    OK(launch_dlsym(f_add, 1, 1, 1, 1, 1, 1, 0, bad, (void *[]){&nowhere, &n, &inc}, NULL));
    CUresult r = CUDA_SUCCESS;
    for (int k = 0; !r; k = (k + 1) % (4 * LAYERS)) {
        CUdeviceptr p = DEVICE(&t[k]);
        r = launch_dlsym(f_add, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){&p, &n, &inc}, NULL);
    }
    CHECK_EQ(r, CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(CALL(cuStreamSynchronize, s), CUDA_ERROR_ILLEGAL_ADDRESS);
    P.close();
    exit(0);
}

static void illegal_beside(void) { illegal(false); }
static void illegal_behind(void) { illegal(true); }

/* Of which the job is told, while the engine has nothing to do. */
static void illegal_alone(void) {
    CUstream s = new_stream();
    uint64_t n = 4, nowhere = 4096;
    uint32_t inc = 1;
    OK(launch_dlsym(f_add, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){&nowhere, &n, &inc}, NULL));
    CHECK_EQ(CALL(cuStreamSynchronize, s), CUDA_ERROR_ILLEGAL_ADDRESS);
    P.close();
    exit(0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    load();
    resolve();
    if (P.init(0)) {
        printf("INIT %s\n", last_error());
        return 3;
    }
    const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"train", train}, {"frozen", frozen}, {"lengths", lengths}, {"streams", streams}, {"manystreams", many_streams}, {"ownstreams", own_streams}, {"released", tensors_released}, {"tails", tails}, {"race", race}, {"copies", copies}, {"nevernamed", never_named}, {"attributes", attributes}, {"globals", globals}, {"manyaddresses", many_addresses}, {"graphglobals", graph_globals}, {"unknownnodes", unknown_nodes}, {"textures", textures},
                 {"plaintables", plain_tables}, {"foreigntables", foreign_tables}, {"freed", freed}, {"recordstream", record_stream}, {"graphs", graphs}, {"graphpool", graph_pool}, {"graphasks", graph_asks}, {"graphtables", graph_tables}, {"nccl", nccl}, {"ncclunlisted", nccl_unlisted}, {"ncclhandles", nccl_handles}, {"crowded", crowded}, {"illegal", illegal_beside}, {"illegalbehind", illegal_behind}, {"illegalalone", illegal_alone}};
    tensor small; /* resolves what threads share */
    must(&small, 4096, NULL, 0);
    stub_touch_fn = (int (*)(uint64_t, size_t))driver("stub_touch");
    ((void (*)(const char *, stub_kernel_fn, void *, unsigned, const size_t *))driver("stub_register_kernel"))("indirect_add", indirect_add, NULL, 1, (const size_t[]){8});
    bool known = true;
    if (!strcmp(argv[1], "follow")) {
        follow();
    } else if (!strcmp(argv[1], "hosttables") || !strcmp(argv[1], "devicetables")) {
        tables(argv[1]);
    } else if (!strcmp(argv[1], "layers")) {
        CHECK(argc == 3);
        layers(argv[2]);
    } else if (!strcmp(argv[1], "workspaces")) {
        CHECK(argc == 3);
        workspaces(argv[2]);
    } else if (!strcmp(argv[1], "handedon")) {
        handed_on(argc - 2, argv + 2);
    } else {
        known = false;
        for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
            if (!strcmp(argv[1], modes[i].name)) modes[i].run(), known = true;
    }
    CHECK(known);
    finish();
    return 0;
}
