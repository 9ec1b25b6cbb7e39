/* Launches that are only recorded while nothing is published: the short way of psk_plain_launch. */
#include "engine.h"

static launch_fn launch;

/* Refused by the driver, recorded all the same. */
static void launch_on(CUfunction f, CUstream s) {
    uint64_t v[4] = {0};
    void *params[] = {&v[0], &v[1], &v[2], &v[3]};
    launch(f, 0, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

/* What the second launch of a function leaves is what the first, which is looked up, left. */
static void as_the_long_way(void) {
    CUfunction f = function("vec_add");
    CUstream own = new_stream();
    for (int i = 0; i < 2; i++) {
        CUstream s = i ? own : NULL;
        uint64_t launches = S->launches;
        S->stamp = PSK_STAMP_TICKS;
        record first, second;
        launch_on(f, s), first = *must_take();
        uint64_t from = psk_stamp(PSK_STAMP_TICKS);
        launch_on(f, s), second = *must_take();
        CHECK(from <= second.when && second.when <= psk_stamp(PSK_STAMP_TICKS));
        CHECK_EQ(second.kind, PSK_REC_LAUNCH);
        CHECK(!strcmp(func_name(second.id), "vec_add"));
        CHECK_EQ(second.id, first.id);
        CHECK_EQ(second.stream, first.stream);
        CHECK_EQ(S->streams[second.stream], (uint64_t)(uintptr_t)s);
        CHECK_EQ(second.flags, 0);
        CHECK_EQ(second.n, 0);
        CHECK_EQ(second.seq, first.seq + 1);
        CHECK(second.brief);
        CHECK_EQ(first.brief, i); /* remembered by then, on whatever stream */
        CHECK_EQ(S->launches, launches + !i);
        S->stamp = PSK_STAMP_NONE;
        launch_on(f, s);
        CHECK_EQ(must_take()->when, 0);
    }
}

/* A captured launch does not run now, and says so. */
static void captured(void) {
    CUstream s = new_stream();
    CUdeviceptr p = managed(2 * MiB);
    OK(touch_add(s, p, 8, 1));
    OK(touch_add(s, p, 8, 1));
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    OK(touch_add(s, p, 8, 1));
    CUgraph g;
    OK(CALL(cuStreamEndCapture, s, &g));
    CHECK_EQ(must_take()->flags, 0);
    CHECK_EQ(must_take()->flags, 0);
    CHECK_EQ(must_take()->flags, PSK_FLAG_CAPTURED);
    SYNC(s);
}

/* A handle that is given out again is another function. */
static void unloaded(void) {
    CUmodule m;
    CUfunction f, g;
    OK(CALL(cuModuleLoadData, &m, "image"));
    OK(CALL(cuModuleGetFunction, &f, m, "touch_add"));
    launch_on(f, NULL), launch_on(f, NULL);
    CHECK(!strcmp(func_name(must_take()->id), "touch_add") && !strcmp(func_name(must_take()->id), "touch_add"));
    OK(CALL(cuModuleUnload, m));
    OK(CALL(cuModuleLoadData, &m, "image"));
    OK(CALL(cuModuleGetFunction, &g, m, "multi_add"));
    CHECK(g == f);
    for (int i = 0; i < 3; i++) {
        launch_on(g, NULL);
        CHECK(!strcmp(func_name(must_take()->id), "multi_add"));
    }
}

static void no_op(const stub_launch *l) { (void)l; }

/* More functions than are remembered. */
static void many(void) {
    enum { MANY = 600 };
    static char name[MANY][16];
    static CUfunction f[MANY];
    for (int i = 0; i < MANY; i++) {
        snprintf(name[i], sizeof name[i], "many%d", i);
        ((void (*)(const char *, stub_kernel_fn, void *, unsigned, const size_t *))driver("stub_register_kernel"))(name[i], no_op, NULL, 1, (const size_t[]){4});
        f[i] = function(name[i]);
    }
    for (int i = 0; i < 4 * MANY; i++) {
        launch_on(f[i % MANY], NULL);
        launch_on(f[i * 7 % MANY], NULL);
        CHECK(!strcmp(func_name(must_take()->id), name[i % MANY]));
        CHECK(!strcmp(func_name(must_take()->id), name[i * 7 % MANY]));
    }
}

enum { WRITERS = 4, EACH = 30000 };
static const char *const names[] = {"empty", "vec_add", "multi_add", "touch_add"};
static CUstream streams[WRITERS];

static void *writer(void *arg) {
    uintptr_t i = (uintptr_t)arg;
    CUfunction f = function(names[i]);
    for (int k = 0; k < EACH; k++) {
        while (__atomic_load_n(&S->head, __ATOMIC_RELAXED) - __atomic_load_n(&S->tail, __ATOMIC_RELAXED) > PSK_RING_ENTRIES / 2) sched_yield();
        launch_on(f, streams[i]);
    }
    return NULL;
}

/* Writers at once: every record whole, of the right function, and none lost. */
static void writers(void) {
    pthread_t t[WRITERS];
    uint64_t seq = S->tail;
    for (uintptr_t i = 0; i < WRITERS; i++) streams[i] = new_stream();
    for (uintptr_t i = 0; i < WRITERS; i++) CHECK(!pthread_create(&t[i], NULL, writer, (void *)i));
    record r;
    for (int got = 0; got < WRITERS * EACH;) {
        if (!take(&r)) {
            sched_yield();
            continue;
        }
        got++;
        CHECK_EQ(r.seq, ++seq);
        CHECK_EQ(r.n, 0);
        uintptr_t i = 0;
        while (i < WRITERS && (uint64_t)(uintptr_t)streams[i] != S->streams[r.stream]) i++;
        CHECK(i < WRITERS && !strcmp(func_name(r.id), names[i]));
    }
    for (int i = 0; i < WRITERS; i++) pthread_join(t[i], NULL);
    none_left();
    CHECK_EQ(S->dropped, 0);
}

/* Full, and nobody reads: what is in the ring stays whole. */
static void overflow(void) {
    CUfunction f = function("empty");
    uint64_t from = S->tail;
    for (uint32_t i = 0; i < PSK_RING_ENTRIES + 5; i++) launch_on(f, NULL);
    CHECK_EQ(S->dropped, 5);
    for (uint32_t i = 0; i < PSK_RING_ENTRIES; i++) CHECK_EQ(must_take()->seq, from + i + 1);
    none_left();
    launch_on(f, NULL);
    CHECK_EQ(must_take()->seq, from + PSK_RING_ENTRIES + 1);
}

static void doorbell(void) {
    CUfunction f = function("empty");
    uint32_t before = S->doorbell;
    launch_on(f, NULL);
    CHECK_EQ(S->doorbell, before);
    S->reader_sleeping = 1;
    launch_on(f, NULL);
    CHECK_EQ(S->doorbell, before + 1);
    CHECK_EQ(S->reader_sleeping, 0);
    must_take(), must_take();
}

int main(void) {
    start();
    attach(PSK_MODE_OBSERVE);
    CHECK_EQ(S->published, 0);
    launch = (launch_fn)driver("cuLaunchKernel");
    as_the_long_way();
    captured();
    unloaded();
    many();
    writers();
    overflow();
    doorbell();
    none_left();
    return 0;
}
