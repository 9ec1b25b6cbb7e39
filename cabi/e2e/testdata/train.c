/*
 * A training loop in small: two threads with two streams each, tensors that come
 * and go while work on them is queued, a fork in the middle. Every word is
 * compared at the end. With the argument "failing" an allocation may fail; the
 * program then says so and ends with status 3, with right values all the same.
 */
#include "job.h"

enum { THREADS = 2, TENSORS = 12, SUMS = 4, SMALLS = 8, ITERATIONS = 6 };
#define TENSOR_BYTES (8 * MiB)
#define ACTIVATION_BYTES (3 * MiB + 4096) /* not a multiple of the block */
static bool failing;

/* In a forked child every call is harmless. */
static int child(void *parents) {
    char text[4096] = "untouched";
    if (P.malloc(8 * MiB, 0, NULL)) return 10;
    if (P.malloc(100, 0, NULL)) return 11;
    P.free(parents, 0, 0, NULL);
    P.record_stream(parents, NULL);
    if (P.stats(text, sizeof text) >= 0 || strcmp(text, "untouched")) return 12;
    if (P.last_error(text, sizeof text) >= 0) return 13;
    if (P.init(0) >= 0 || P.set_memory_fraction(0.5, 0) >= 0 || P.begin_pool(0, 1, 2) >= 0) return 14;
    P.empty_cache(), P.reset(), P.reset_peak_stats();
    P.close();
    pid_t pid = fork();
    if (pid == 0) _exit(P.malloc(8 * MiB, 0, NULL) != NULL);
    int st;
    return waitpid(pid, &st, 0) == pid && WIFEXITED(st) && !WEXITSTATUS(st) ? 0 : 15;
}

static void fork_once(void *parents) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(20); /* a hang is a failure, not a wait */
        _exit(child(parents));
    }
    int st;
    CHECK_EQ(waitpid(pid, &st, 0), pid);
    if (!WIFEXITED(st) || WEXITSTATUS(st)) {
        fprintf(stderr, "child: exit %d, signal %d\n", WEXITSTATUS(st), WTERMSIG(st));
        exit(1);
    }
}

/* What one thread owns; the tensors outlive it. */
typedef struct worker {
    int id;
    CUstream main, side;
    tensor t[TENSORS], sum[SUMS], small[SMALLS];
    bool stopped; /* an allocation failed */
} worker;

static bool need(worker *w, tensor *t, size_t bytes, CUstream s, uint32_t value) {
    if (make(t, bytes, s, value)) return true;
    if (!failing) {
        fprintf(stderr, "allocation of %zu bytes: %s\n", bytes, last_error());
        exit(1);
    }
    w->stopped = true;
    return false;
}

static void step(worker *w, int it, int k, void *event) {
    int route = it + k + w->id;
    tensor a, b;
    if (!need(w, &a, ACTIVATION_BYTES, w->main, 0x100u * (unsigned)it + (unsigned)k)) return;
    add(route, w->main, &w->t[k], (unsigned)(it + 1));
    add(route + 1, w->main, &w->small[k % SMALLS], 1);
    OK(CALL(cuEventRecord, event, w->main));
    /* Another stream reads the activation late; its memory is freed, and asked for again, before. */
    OK(CALL(cuStreamWaitEvent, w->side, event, 0));
    uint64_t us = 300;
    launch(route, w->side, f_spin, (void *[]){&us});
    add_to(route + 2, w->side, &w->sum[k % SUMS], &a);
    P.record_stream(a.p, w->side);
    drop(&a);
    if (!need(w, &b, ACTIVATION_BYTES, w->main, 0xdead)) return;
    add(route, w->main, &b, 1);
    drop(&b);
    /* A weight that is made anew, with work on the old one still queued. */
    if (it % 2 && k == it) {
        drop(&w->t[k]);
        need(w, &w->t[k], TENSOR_BYTES, w->main, 7);
    }
}

static void *work(void *arg) {
    worker *w = arg;
    CUcontext ctx;
    void *event;
    OK(CALL(cuDevicePrimaryCtxRetain, &ctx, 0));
    OK(CALL(cuCtxSetCurrent, ctx));
    OK(CALL(cuEventCreate, &event, 0));
    for (int k = 0; k < SMALLS && !w->stopped; k++) need(w, &w->small[k], (size_t)4096 << k % 8, w->main, 1);
    for (int k = 0; k < TENSORS && !w->stopped; k++) need(w, &w->t[k], TENSOR_BYTES, w->main, (unsigned)k);
    for (int k = 0; k < SUMS && !w->stopped; k++) need(w, &w->sum[k], ACTIVATION_BYTES, w->side, 0);
    for (int it = 0; it < ITERATIONS && !w->stopped; it++) {
        if (it == ITERATIONS / 2 && w->id == 0) fork_once(w->t[0].p);
        for (int k = 0; k < TENSORS && !w->stopped; k++) step(w, it, k, event);
    }
    SYNC(w->main);
    SYNC(w->side);
    OK(CALL(cuEventDestroy_v2, event));
    return NULL;
}

static void each(worker *w, void (*f)(tensor *)) {
    for (int k = 0; k < TENSORS; k++)
        if (w->t[k].p) f(&w->t[k]);
    for (int k = 0; k < SUMS; k++)
        if (w->sum[k].p) f(&w->sum[k]);
    for (int k = 0; k < SMALLS; k++)
        if (w->small[k].p) f(&w->small[k]);
}

static long long live_bytes, live_count;
static void tally(tensor *t) { live_bytes += (long long)t->bytes, live_count++; }
static void check(tensor *t) { check_value(t); }

static void limits(void) {
    CHECK(!P.malloc(0, 0, NULL));
    CHECK(!P.malloc(-1, 0, NULL));
    long long ooms = stat_now("ooms");
    CHECK(!P.malloc(1l << 30, 0, NULL));
    CHECK_EQ(stat_now("ooms"), ooms + 1);
    printf("OOM %s\n", last_error());
    /* Both budgets, filled to the brim, and empty again. */
    enum { MOST = 100 };
    tensor fill[MOST];
    int n = 0;
    while (n < MOST && (fill[n].p = P.malloc(TENSOR_BYTES, 0, NULL))) fill[n++].bytes = TENSOR_BYTES;
    CHECK(n > 10 && n < MOST);
    CHECK(stat_now("allocated_bytes") + (long long)TENSOR_BYTES > stat_now("budget_bytes") + stat_now("host_budget_bytes") - 64 * (long long)MiB);
    for (int i = 0; i < n; i++) drop(&fill[i]);
    CHECK((fill[0].p = P.malloc(TENSOR_BYTES, 0, NULL)));
    drop(&fill[0]);
}

int main(int argc, char **argv) {
    failing = argc > 1 && !strcmp(argv[1], "failing");
    load();
    resolve();
    if (P.init(0)) {
        printf("INIT %s\n", last_error());
        return 3;
    }
    static worker w[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        w[i] = (worker){.id = i, .main = i ? new_stream() : NULL, .side = new_stream()};
        make(&w[i].t[0], 4096, w[i].main, 0); /* resolves what the threads share */
        if (w[i].t[0].p) drop(&w[i].t[0]);
    }
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, work, &w[i]));
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    bool stopped = w[0].stopped || w[1].stopped;
    for (int i = 0; i < THREADS; i++) each(&w[i], check), each(&w[i], tally);
    CHECK_EQ(count("illegal"), 0);
    end_late();
    printf("STATS %s\n", stats());
    printf("STUB {\"launches\": %llu, \"evictions\": %llu}\n", (unsigned long long)count("launches"), (unsigned long long)count("evictions"));
    if (stopped) {
        printf("STOPPED %s\n", last_error());
        P.close();
        return 3;
    }
    CHECK_EQ(stat_now("allocated_bytes"), live_bytes);
    CHECK_EQ(stat_now("allocations_live"), live_count);
    CHECK(stat_now("resident_bytes") <= stat_now("budget_bytes"));
    CHECK(stat_now("resident_peak_bytes") <= stat_now("budget_bytes"));
    if (!failing) limits();
    P.reset_peak_stats();
    CHECK_EQ(stat_now("allocated_peak_bytes"), live_bytes);
    P.close();
    P.close(); /* and again: nothing */
    /* Allocations stay valid until exit; what the explicit engine has put elsewhere is out of reach, and copies of it are refused. */
    const char *engine = getenv("PENSTOCK_ENGINE");
    if (engine && !strcmp(engine, "explicit")) return 0;
    for (int i = 0; i < THREADS; i++) each(&w[i], check);
    for (int i = 0; i < THREADS; i++) each(&w[i], drop);
    return 0;
}
