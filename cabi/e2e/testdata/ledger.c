/*
 * Residency as the ledger says. The program holds its stream back before each
 * launch until the engine has brought the tensor in: no kernel faults, so the
 * stub's residency and the engine's statistics must agree exactly whenever
 * nothing moves, and the device never holds more than the budget.
 */
#include "job.h"

enum { TENSORS = 24, ITERATIONS = 4, SMALLS = 8, FLUSH = 16 };
#define TENSOR_BYTES (8 * MiB)
#define EACH_MOVE_SECONDS 20
static tensor t[TENSORS];
static uint32_t *hold;
static uint32_t held;
static long long budget;

static atomic_int sampling = 1;
static atomic_llong highest;
static void *sample(void *arg) {
    (void)arg;
    while (atomic_load(&sampling)) {
        long long n = device_bytes();
        if (n > atomic_load(&highest)) atomic_store(&highest, n);
        usleep(50);
    }
    return NULL;
}

/* One launch, after a fill of a new tensor, released when the tensor is on the device. */
static void step(int route, tensor *x, uint32_t inc, bool new) {
    OK(CALL(cuStreamWaitValue32_v2, x->stream, (CUdeviceptr)(uintptr_t)hold, ++held, 0 /* at least */));
    if (new) OK(CALL(cuMemsetD32Async, DEVICE(x), x->value, U64(x->bytes / 4), x->stream));
    add(route, x->stream, x, inc);
    for (int i = 0; i < FLUSH; i++) launch(BY_DLSYM, x->stream, f_empty, NULL); /* so that progress is written after it */
    double until = now() + EACH_MOVE_SECONDS;
    /* The statistics read the hook's ring first: from then on the tensor stays. Nothing that began before may take it away. */
    while (strstr(stats(), "\"moving\":true") || resident(DEVICE(x), x->bytes) < x->bytes) {
        if (now() > until) {
            fprintf(stderr, "the tensor of a queued launch was not brought in: %llu of %zu bytes on the device; %s\n",
                    (unsigned long long)resident(DEVICE(x), x->bytes), x->bytes, stats());
            exit(1);
        }
        usleep(100);
    }
    __atomic_store_n(hold, held, __ATOMIC_RELEASE);
    SYNC(x->stream);
}

/* Waits until nothing moves, and compares. */
static void agree(const char *when) {
    double until = now() + EACH_MOVE_SECONDS;
    long long said = -1, is = -2;
    int same = 0;
    while (same < 5) { /* in a row, with no move under way */
        char before[8192];
        snprintf(before, sizeof before, "%s", stats());
        is = device_bytes();
        const char *after = stats();
        said = stat_of(after, "resident_bytes");
        bool still = strstr(before, "\"moving\":false") && strstr(after, "\"moving\":false");
        same = still && said == is && stat_of(before, "resident_bytes") == said ? same + 1 : 0;
        if (now() > until) {
            fprintf(stderr, "%s: %lld bytes on the device, the ledger says %lld\n", when, is, said);
            exit(1);
        }
        usleep(1000);
    }
    CHECK(said <= budget);
}

int main(void) {
    load();
    resolve();
    if (P.init(0)) {
        fprintf(stderr, "%s\n", last_error());
        return 1;
    }
    budget = stat_now("budget_bytes");
    OK(CALL(cuMemHostAlloc, &hold, U64(4096), 0));
    *hold = 0; /* it contains anything, and what the first launch waits for must not be there */
    CUstream s = new_stream();
    tensor small[SMALLS];
    for (int i = 0; i < SMALLS; i++) CHECK(make(&small[i], 100000, s, 5));
    pthread_t sampler;
    CHECK(!pthread_create(&sampler, NULL, sample, NULL));
    for (int i = 0; i < TENSORS; i++) {
        CHECK((t[i].p = P.malloc(TENSOR_BYTES, 0, s)));
        t[i] = (tensor){.p = t[i].p, .bytes = TENSOR_BYTES, .value = (unsigned)i, .stream = s};
    }
    for (int i = 0; i < TENSORS; i++) step(i, &t[i], 1, true);
    agree("after the first iteration");

    CHECK_EQ(count("faults"), 0);
    ((void (*)(void))driver("stub_reset_counts"))();
    long long in = stat_now("h2d_bytes"), out = stat_now("d2h_bytes"), fetches = stat_now("fetches");
    for (int it = 1; it < ITERATIONS; it++) {
        for (int i = 0; i < TENSORS; i++) step(it + i, &t[i], (unsigned)it, false);
        agree("after an iteration");
    }
    CHECK_EQ(count("faults"), 0);
    CHECK_EQ(count("evictions"), 0); /* by the driver itself: it never had to */
    CHECK(stat_now("fetches") > fetches);
    CHECK_EQ(stat_now("h2d_bytes") - in, count("h2d_bytes"));
    CHECK_EQ(stat_now("d2h_bytes") - out, count("d2h_bytes"));
    /* Three times the budget is gone over, so two thirds at least must move each time. */
    CHECK(count("h2d_bytes") >= (ITERATIONS - 1) * (TENSORS * TENSOR_BYTES - (uint64_t)budget));

    for (int i = 0; i < TENSORS; i += 2) drop(&t[i]);
    for (int i = 0; i < FLUSH; i++) launch(BY_DLSYM, s, f_empty, NULL);
    SYNC(s);
    agree("after frees");
    for (int i = 0; i < TENSORS; i += 2) {
        CHECK((t[i].p = P.malloc(TENSOR_BYTES, 0, s)));
        t[i].value = 9;
        step(i, &t[i], 1, true);
        step(i, &t[i ^ 1], 1, false);
    }
    agree("after new allocations");
    CHECK_EQ(count("faults"), 0);
    for (int i = 0; i < TENSORS; i++) check_value(&t[i]);
    for (int i = 0; i < SMALLS; i++) check_value(&small[i]);
    atomic_store(&sampling, 0);
    pthread_join(sampler, NULL);
    if (atomic_load(&highest) > budget) {
        fprintf(stderr, "at some time %lld bytes were on the device, above the budget of %lld\n", atomic_load(&highest), budget);
        return 1;
    }
    CHECK_EQ(stat_now("late_launches"), 0);
    printf("STATS %s\n", stats());
    P.close();
    return 0;
}
