/*
 * A job drawn from a seed: threads that each repeat a list of operations on tensors of
 * their own, of which some change from one iteration to the next. Everything that may
 * be done with memory is in it, in any order. Every word is compared with what the
 * program says that it must be: now and then, and at the end. One of them works on the default
 * stream; so does a visitor, in a context of its own, on tensors of its own.
 *
 *     chaos SEED [ITERATIONS [KINDS [SECONDS]]]
 *
 * KINDS has a bit for each kind of operation that may occur, to find out which of them a fault needs. When
 * SECONDS are given, each thread once has a kernel that takes so long, and the others go on beside it.
 */
#include "job.h"

enum { THREADS = 3, KEPT = 14, OPERATIONS = 40, MOST_TABLE = 4 };

typedef struct operation {
    int kind, a, b, route;
    size_t bytes;
    uint32_t value;
} operation;

typedef struct worker {
    uint64_t random;
    CUstream main, side;
    void *event;
    tensor kept[KEPT], table;
    operation list[OPERATIONS];
} worker;

static CUfunction f_table, f_derive, f_multiply;
static int iterations = 6;
static unsigned long kinds = ~0ul;
static double seconds;

static uint64_t draw(worker *w) { return draw_from(&w->random); }
static uint64_t below(worker *w, uint64_t n) { return draw_below(&w->random, n); }

/* From a few words to several chunks of what can leave, most of them neither round nor small. */
static size_t draw_bytes(worker *w) {
    switch (below(w, 6)) {
    case 0: return 4 * (1 + below(w, 5000));
    case 1: return MiB - 4096 + 4096 * below(w, 3);
    case 2: return 2 * MiB * (1 + below(w, 3));
    default: return MiB + 512 * below(w, 10000);
    }
}

static void must(tensor *t, size_t bytes, CUstream s, uint32_t value) {
    if (make(t, bytes, s, value)) return;
    fprintf(stderr, "allocation of %zu bytes: %s\n", bytes, last_error());
    exit(1);
}

/* What is put on a stream from now on comes after what is on the other. */
static void after(worker *w, CUstream first, CUstream then) {
    OK(CALL(cuEventRecord, w->event, first));
    OK(CALL(cuStreamWaitEvent, then, w->event, 0));
}

static void linger(worker *w, CUstream s, int route) {
    uint64_t us = below(w, 400);
    launch(route, s, f_spin, (void *[]){&us});
}

/* A tensor read late by the other stream, freed before that has happened. */
static void hand_over(worker *w, const operation *o, bool recorded) {
    tensor t;
    must(&t, o->bytes, w->main, o->value);
    add(o->route, w->main, &t, 1);
    after(w, w->main, w->side);
    linger(w, w->side, o->route);
    tensor *to = &w->kept[o->a];
    after(w, w->main, w->side); /* and whatever was done with it */
    add_to(o->route, w->side, to, &t);
    if (to->bytes > t.bytes) { /* only the first part got it */
        after(w, w->side, w->main);
        to->value -= t.value;
        OK(fill_fn(DEVICE(to), to->value, to->bytes / 4, w->main));
    } else {
        after(w, w->side, w->main);
    }
    if (recorded) P.record_stream(t.p, w->side);
    drop(&t);
}

/* Pointers in memory, that no parameter shows. */
static void by_table(worker *w, const operation *o) {
    uint64_t list[MOST_TABLE], n = 1 + o->value % MOST_TABLE, words = UINT64_MAX;
    for (uint64_t i = 0; i < n; i++) {
        tensor *t = &w->kept[(o->a + (int)i) % KEPT];
        list[i] = DEVICE(t);
        if (t->bytes / 4 < words) words = t->bytes / 4;
    }
    CUdeviceptr table = DEVICE(&w->table);
    SYNC(w->main); /* the copy is on no stream, and the launch before may not have read the table */
    OK(CALL(cuMemcpyHtoD_v2, table, list, U64(n * sizeof *list)));
    uint32_t inc = 3;
    launch(o->route, w->main, f_table, (void *[]){&table, &n, &words, &inc});
    for (uint64_t i = 0; i < n; i++) { /* the rest of each gets it, too */
        tensor *t = &w->kept[(o->a + (int)i) % KEPT];
        t->value += inc;
        if (t->bytes / 4 > words) OK(fill_fn(DEVICE(t) + words * 4, t->value, t->bytes / 4 - words, w->main));
    }
}

static void by_graph(worker *w, const operation *o) {
    tensor *a = &w->kept[o->a], *b = &w->kept[o->b];
    uint32_t was_a = a->value, was_b = b->value;
    CUgraph g;
    CUgraphExec exec;
    OK(CALL(cuStreamBeginCapture_v2, w->side, 2 /* relaxed: the others go on */));
    add(o->route, w->side, a, 2);
    add(o->route, w->side, b, 5);
    OK(CALL(cuStreamEndCapture, w->side, &g));
    OK(CALL(cuGraphInstantiateWithFlags, &exec, g, U64(0)));
    uint32_t inc_a = a->value - was_a, inc_b = b->value - was_b;
    a->value = was_a, b->value = was_b;
    for (int i = 0; i < 2; i++) {
        OK(CALL(cuGraphLaunch, exec, w->main));
        if (a == b) a->value += inc_a;
        else a->value += inc_a, b->value += inc_b;
    }
    SYNC(w->main);
    OK(CALL(cuGraphExecDestroy, exec));
    OK(CALL(cuGraphDestroy, g));
}

/* A graph of so many tensors that it is launched in parts. */
static void by_large_graph(worker *w, const operation *o) {
    enum { MORE = 6, ALL = KEPT + MORE };
    tensor more[MORE], *all[ALL];
    uint32_t was[ALL], inc[ALL];
    for (int i = 0; i < MORE; i++) must(&more[i], 4 * MiB, w->main, o->value + (uint32_t)i);
    for (int i = 0; i < ALL; i++) {
        all[i] = i < KEPT ? &w->kept[(o->a + i) % KEPT] : &more[i - KEPT];
        was[i] = all[i]->value;
    }
    CUgraph g;
    CUgraphExec exec;
    OK(CALL(cuStreamBeginCapture_v2, w->side, 2));
    for (int i = 0; i < 2 * ALL; i++) add(o->route, w->side, all[i % ALL], (uint32_t)i);
    OK(CALL(cuStreamEndCapture, w->side, &g));
    OK(CALL(cuGraphInstantiateWithFlags, &exec, g, U64(0)));
    OK(CALL(cuGraphDestroy, g));
    for (int i = 0; i < ALL; i++) inc[i] = all[i]->value - was[i], all[i]->value = was[i];
    for (int k = 0; k < 2; k++) {
        CUstream s = k ? w->side : w->main;
        if (k) after(w, w->main, w->side);
        OK(CALL(cuGraphLaunch, exec, s));
        for (int i = 0; i < ALL; i++) all[i]->value += inc[i];
    }
    after(w, w->side, w->main);
    OK(CALL(cuGraphExecDestroy, exec));
    if (o->b % 2) SYNC(w->main), check_value(&more[o->b % MORE]);
    for (int i = 0; i < MORE; i++) drop(&more[i]);
}

/* A tensor that is computed from two others, by a kernel whose launches can be issued again. */
static void derive(worker *w, const operation *o) {
    tensor *a = &w->kept[o->a], *b = &w->kept[o->b], *c = &w->kept[(o->b + 1) % KEPT];
    if (a == b || a == c) return;
    tensor t = {.bytes = b->bytes < c->bytes ? b->bytes : c->bytes, .stream = w->main};
    CHECK((t.p = P.malloc((ssize_t)t.bytes, 0, w->main)));
    uint32_t n = (uint32_t)(t.bytes / 4);
    uint64_t by = o->value % 1000 + 1, p[] = {DEVICE(&t), DEVICE(b), DEVICE(c)};
    if (by % 2) {
        launch(o->route, w->main, f_derive, (void *[]){&n, &by, p});
        t.value = (b->value + c->value) * (uint32_t)by;
    } else { /* as a matrix library does, with a workspace that has to be zero */
        tensor workspace = {.bytes = 4096, .stream = w->main};
        CHECK((workspace.p = P.malloc((ssize_t)workspace.bytes, 0, w->main)));
        OK(CALL(cuMemsetD32Async, DEVICE(&workspace), 0, U64(workspace.bytes / 4), w->main));
        struct {
            uint64_t out, a, b, workspace;
            uint32_t n, scribbles;
        } g = {p[0], p[1], p[2], DEVICE(&workspace), n, 0};
        launch(o->route, w->main, f_multiply, (void *[]){&g});
        t.value = 3 * b->value + c->value;
        drop(&workspace);
    }
    drop(a);
    *a = t;
}

static void copy_in(tensor *t, uint32_t value, CUstream s) {
    uint32_t *from = malloc(t->bytes);
    for (size_t i = 0; i < t->bytes / 4; i++) from[i] = value;
    SYNC(s); /* as above */
    OK(CALL(cuMemcpyHtoD_v2, DEVICE(t), from, U64(t->bytes)));
    free(from);
    t->value = value;
}

static void renew_stream(worker *w) {
    after(w, w->side, w->main);
    if (below(w, 2)) SYNC(w->side);
    OK(CALL(cuStreamDestroy_v2, w->side));
    w->side = new_stream();
}

enum { ADD, ADD_TO, TEMPORARY, RECORDED, UNRECORDED, COPY, COPY_IN, READ, REPLACE, TABLE, GRAPH, STREAM, QUIET, EMPTY, DERIVE, KINDS };
static const int weight[KINDS] = {20, 20, 14, 8, 8, 6, 3, 3, 6, 5, 2, 2, 2, 1, 16};

static operation draw_operation(worker *w) {
    int sum = 0, kind = 0;
    for (int k = 0; k < KINDS; k++) sum += weight[k];
    for (int at = (int)below(w, (uint64_t)sum); at >= weight[kind]; kind++) at -= weight[kind];
    return (operation){kind, (int)below(w, KEPT), (int)below(w, KEPT), (int)below(w, ROUTES), draw_bytes(w), (uint32_t)draw(w)};
}

static void run(worker *w, const operation *o) {
    if (!(kinds >> o->kind & 1)) return;
    tensor *a = &w->kept[o->a], *b = &w->kept[o->b], t;
    switch (o->kind) {
    case ADD: add(o->route, w->main, a, o->value); break;
    case ADD_TO:
        if (a->bytes <= b->bytes && a != b) add_to(o->route, w->main, a, b);
        break;
    case TEMPORARY:
        must(&t, o->bytes, w->main, o->value);
        add(o->route, w->main, &t, 1);
        if (a->bytes <= t.bytes) add_to(o->route, w->main, a, &t);
        drop(&t);
        break;
    case RECORDED: hand_over(w, o, true); break;
    case UNRECORDED: hand_over(w, o, false); break;
    case COPY:
        if (a->bytes > b->bytes || a == b) break;
        OK(CALL(cuMemcpyDtoDAsync_v2, DEVICE(a), DEVICE(b), U64(a->bytes), w->main));
        a->value = b->value;
        break;
    case COPY_IN: copy_in(a, o->value, w->main); break;
    case READ:
        SYNC(w->main);
        check_value(a);
        break;
    case REPLACE: /* with work on the old one still queued */
        drop(a);
        must(a, o->bytes, w->main, o->value);
        break;
    case TABLE: by_table(w, o); break;
    case GRAPH: o->value % 4 ? by_graph(w, o) : by_large_graph(w, o); break;
    case STREAM: renew_stream(w); break;
    case QUIET: SYNC(w->main), usleep((useconds_t)below(w, 3000)); break;
    case EMPTY: P.empty_cache(); break;
    case DERIVE: derive(w, o); break;
    }
}

/* A kernel as long as a collective may be that waits for a peer. */
static void take_long(worker *w) {
    uint64_t us = (uint64_t)(seconds * 1e6);
    launch((int)below(w, ROUTES), below(w, 2) ? w->main : w->side, f_spin, (void *[]){&us});
}

static void *work(void *arg) {
    worker *w = arg;
    CUcontext ctx;
    OK(CALL(cuDevicePrimaryCtxRetain, &ctx, 0));
    OK(CALL(cuCtxSetCurrent, ctx));
    OK(CALL(cuEventCreate, &w->event, 0));
    must(&w->table, 4096, w->main, 0);
    for (int i = 0; i < KEPT; i++) must(&w->kept[i], draw_bytes(w), w->main, (uint32_t)i);
    for (int i = 0; i < OPERATIONS; i++) w->list[i] = draw_operation(w);
    uint64_t long_at = seconds > 0 ? below(w, (uint64_t)iterations * OPERATIONS) : UINT64_MAX;
    for (int it = 0; it < iterations; it++) {
        if (it % 4 == 3)
            for (int n = (int)below(w, 4); n > 0; n--) w->list[below(w, OPERATIONS)] = draw_operation(w);
        for (int i = 0; i < OPERATIONS; i++) {
            if ((uint64_t)(it * OPERATIONS + i) == long_at) take_long(w);
            run(w, &w->list[i]);
        }
    }
    SYNC(w->main), SYNC(w->side);
    return NULL;
}

/* A guest: its context comes and goes, its tensors and its streams are its own. It hurries at first, as the others do, and takes its
 * time while they wait for a kernel that is long: it would take a processor for as long. */
static atomic_int done;
static void *visit(void *arg) {
    worker *w = arg;
    enum { GUESTS = 4, HURRIED = 500, REST_US = 50000 };
    int turns = 0;
    while (!atomic_load(&done)) {
        CUcontext own;
        OK(CALL(cuCtxCreate_v2, &own, U64(0), U64(0)));
        CUstream streams[2] = {NULL, new_stream()};
        for (int i = 0; i < GUESTS; i++) must(&w->kept[i], draw_bytes(w), streams[1], (uint32_t)i);
        SYNC(streams[1]);
        for (uint64_t n = below(w, 200); n > 0 && !atomic_load(&done); n--) {
            tensor *t = &w->kept[below(w, GUESTS)];
            CUstream s = streams[below(w, 2)];
            int route = (int)below(w, ROUTES);
            add(route, s, t, (uint32_t)draw(w));
            linger(w, s, route);
            add(route, s, t, 1);
            if (below(w, 4) == 0) usleep((useconds_t)below(w, 2000));
            SYNC(s); /* the next one may be on the other stream */
            if (below(w, 8) == 0) check_value(t);
            if (++turns > HURRIED) usleep(REST_US);
        }
        for (int i = 0; i < GUESTS; i++) {
            check_value(&w->kept[i]);
            drop(&w->kept[i]);
        }
        OK(CALL(cuStreamDestroy_v2, streams[1]));
        OK(CALL(cuCtxDestroy_v2, own));
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    uint64_t seed = strtoull(argv[1], NULL, 10);
    if (argc > 2) iterations = atoi(argv[2]);
    if (argc > 3) kinds = strtoul(argv[3], NULL, 0);
    if (argc > 4) seconds = atof(argv[4]);
    load();
    resolve();
    f_table = function("table_add");
    f_multiply = function("stub_gemm");
    f_derive = function("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_3StuESt5arrayIPcLm3EEEEviT0_T1_");
    if (P.init(0)) {
        fprintf(stderr, "%s\n", last_error());
        return 1;
    }
    static worker w[THREADS], guest;
    pthread_t thread[THREADS], visitor;
    for (int i = 0; i < THREADS; i++) {
        w[i].random = (seed * THREADS + (uint64_t)i + 1) * 0x9e3779b97f4a7c15ull | 1;
        w[i].main = i ? new_stream() : NULL, w[i].side = new_stream();
        must(&w[i].table, 4096, w[i].main, 0); /* resolves what the threads share */
        drop(&w[i].table);
    }
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, work, &w[i]));
    guest.random = w[0].random ^ seed << 8;
    CHECK(!pthread_create(&visitor, NULL, visit, &guest));
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    atomic_store(&done, 1);
    pthread_join(visitor, NULL);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < KEPT; k++) check_value(&w[i].kept[k]);
    CHECK_EQ(count("illegal"), 0);
    CHECK_EQ(stat_now("allocations_live"), THREADS * (KEPT + 1));
    printf("STATS %s\n", stats());
    P.close();
    return 0;
}
