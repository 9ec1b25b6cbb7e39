/*
 * A job with a context beside the one that its tensors are of. A kernel that runs for long must keep its tensor on the
 * device until it is done, whatever the default stream of the other context has done meanwhile; and what the job frees
 * must not go to another before its work in either is over.
 *
 *     contexts default   the kernel on the default stream, the other context launches on its own one
 *     contexts stream    the other context launches on a stream
 *     contexts green     the kernel on the default stream of a green context, the other launches on the primary one's
 *     contexts plain     memory that never leaves, used by the other context alone
 *     contexts current   the calls of the library leave the thread's context as it is
 */
#include "job.h"

enum { FILLERS = 16, ROUNDS = 4, SMALL = 900000 };
#define BYTES (6 * MiB)
#define SLOW_US 300000

static CUresult (*set_current)(CUcontext);
static CUfunction f_slow;
static atomic_int stop;

static CUcontext current(void) {
    CUcontext c;
    OK(CALL(cuCtxGetCurrent, &c));
    return c;
}

/* A context of the thread's own, which is current afterwards. */
static CUcontext make_context(void) {
    CUcontext c;
    OK(CALL(cuCtxCreate_v2, &c, U64(0), U64(0)));
    return c;
}

static void add_slowly(CUstream s, tensor *t, uint64_t us) {
    CUdeviceptr p = DEVICE(t);
    uint64_t n = t->bytes / 4;
    uint32_t inc = 1;
    launch(BY_DLSYM, s, f_slow, (void *[]){&p, &n, &inc, &us});
    t->value += 1;
}

typedef struct beside {
    CUcontext in; /* NULL: one of its own */
    bool on_stream;
} beside;

/* Small kernels, as many as report a quiet stream each. */
static void *launch_beside(void *arg) {
    const beside *b = arg;
    CUcontext own = b->in ? NULL : make_context();
    OK(set_current(b->in ? b->in : own));
    CUstream s = b->on_stream ? new_stream() : NULL;
    while (!atomic_load(&stop)) {
        for (int i = 0; i < (b->on_stream ? 64 : 1); i++) launch(BY_DLSYM, s, f_empty, NULL);
        usleep(500);
    }
    SYNC(s);
    if (own) OK(CALL(cuCtxDestroy_v2, own));
    return NULL;
}

/* The long kernel in `in`, while the job goes through more tensors than the budget has room for. */
static void overlap(CUcontext in, beside b) {
    static tensor filler[FILLERS];
    CUstream fill = new_stream();
    tensor t;
    CHECK(make(&t, BYTES, NULL, 100));
    SYNC(NULL);
    for (int i = 0; i < FILLERS; i++) CHECK(make(&filler[i], BYTES, fill, (uint32_t)i));
    for (int i = 0; i < 3 * FILLERS; i++) add(i, fill, &filler[i % FILLERS], 1);
    for (int i = 0; i < 3; i++) add_slowly(NULL, &t, 0); /* it has been searched by now */
    SYNC(NULL), SYNC(fill);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, launch_beside, &b));
    for (int round = 0; round < ROUNDS; round++) {
        OK(set_current(in));
        add_slowly(NULL, &t, SLOW_US);
        OK(set_current(context));
        double end = now() + SLOW_US * 1e-6;
        for (int i = 0; now() < end; i++) add(i, fill, &filler[i % FILLERS], 1);
        OK(set_current(in));
        SYNC(NULL);
        OK(set_current(context));
        check_value(&t);
    }
    SYNC(fill);
    atomic_store(&stop, 1);
    pthread_join(thread, NULL);
    check_value(&t);
    for (int i = 0; i < FILLERS; i++) check_value(&filler[i]);
}

static void green(void) {
    CUgreenCtx g;
    CUcontext c;
    OK(CALL(cuGreenCtxCreate, &g, NULL, 0, 1));
    OK(CALL(cuCtxFromGreenCtx, &c, g));
    overlap(c, (beside){.in = context});
    OK(CALL(cuGreenCtxDestroy, g));
}

/* Freed memory of the other context's work, for another stream: only once that work is over. */
static void plain(void) {
    CUcontext other = make_context();
    tensor t, more[64];
    OK(set_current(other));
    CHECK(make(&t, SMALL, NULL, 1));
    add_slowly(NULL, &t, SLOW_US);
    double end = now() + SLOW_US * 1e-6;
    drop(&t);
    OK(set_current(context));
    CUstream s = new_stream();
    void *freed = t.p;
    for (int i = 0; i < 64; i++) {
        more[i] = (tensor){.p = P.malloc(SMALL, 0, s), .bytes = SMALL, .stream = s};
        CHECK(more[i].p);
        if (more[i].p == freed) CHECK(now() >= end);
    }
    for (int i = 0; i < 64; i++) drop(&more[i]);
    P.empty_cache();
    /* What is given back to the driver is no longer there for a kernel that runs. */
    OK(set_current(other));
    CHECK(make(&t, SMALL, NULL, 1));
    add_slowly(NULL, &t, SLOW_US);
    drop(&t);
    OK(set_current(context));
    P.empty_cache();
    OK(CALL(cuCtxDestroy_v2, other));
}

static void unchanged(void) {
    CUcontext other = make_context();
    static tensor t[8];
    for (int i = 0; i < 8; i++) {
        CHECK(make(&t[i], i % 2 ? BYTES : SMALL, NULL, 1));
        CHECK(current() == other);
    }
    P.record_stream(t[0].p, new_stream());
    P.record_stream(t[1].p, new_stream());
    CHECK(current() == other);
    for (int i = 0; i < 8; i++) {
        drop(&t[i]);
        CHECK(current() == other);
    }
    P.empty_cache();
    CHECK(current() == other);
    P.reset();
    CHECK(current() == other);
    OK(P.begin_pool(0, 1, 2));
    CHECK(make(&t[0], SMALL, NULL, 1));
    CHECK(current() == other);
    OK(P.end_pool(0, 1, 2));
    drop(&t[0]);
    OK(P.release_pool(0, 1, 2));
    CHECK(current() == other);
    stats();
    CHECK(current() == other);
    /* One without a context gets the primary one, as from the CUDA runtime. */
    OK(set_current(NULL));
    P.empty_cache();
    CHECK(current() == context);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    load();
    resolve();
    set_current = (CUresult(*)(CUcontext))driver("cuCtxSetCurrent");
    f_slow = function("slow_add");
    if (P.init(0)) {
        fprintf(stderr, "%s\n", last_error());
        return 1;
    }
    if (!strcmp(argv[1], "default")) overlap(context, (beside){0});
    else if (!strcmp(argv[1], "stream")) overlap(context, (beside){.on_stream = true});
    else if (!strcmp(argv[1], "green")) green();
    else if (!strcmp(argv[1], "plain")) plain();
    else if (!strcmp(argv[1], "current")) unchanged();
    else return 2;
    CHECK_EQ(count("illegal"), 0);
    P.close();
    return 0;
}
