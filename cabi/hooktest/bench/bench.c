/*
 * Nanoseconds a launch through cuLaunchKernel on the stub driver, for the modes
 * of the hook. Build and run, from this directory:
 *
 *   make -s -C ../../hook OUT=/tmp/b/libpenstock_hook.so && make -s -C ../../stub OUT=/tmp/b/libcuda.so.1
 *   gcc -O2 -o /tmp/b/bench bench.c -ldl -pthread
 *   LD_LIBRARY_PATH=/tmp/b /tmp/b/bench; LD_LIBRARY_PATH=/tmp/b LD_PRELOAD=/tmp/b/libpenstock_hook.so /tmp/b/bench
 *
 * The stub's launch costs far more than the hook, so a launch that it rejects at
 * once (a zero grid) is used: the difference to the run without the hook is the
 * hook. Gated and strict mode with everything resident (and, in strict mode, the
 * functions cleared) add the stream's lock; their progress write, every 64th
 * launch here, costs what the driver takes for it. "recorded" is observe mode with
 * the time of each call, as in recordings; "clock" where processors have no steady
 * counter.
 */
#include "../testdata/strict.h"

enum { SLOTS = 64, BATCH = 400 };
static CUdeviceptr base;

static void drain(void) { __atomic_store_n(&S->tail, __atomic_load_n(&S->head, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE); }

/* The engine of strict mode: the few launches that ask may go. */
static atomic_int granting;
static void *grant_all(void *arg) {
    (void)arg;
    while (atomic_load(&granting)) {
        grant(__atomic_load_n(&S->inspect_seq, __ATOMIC_ACQUIRE));
        for (uint32_t i = 0; i < __atomic_load_n(&S->nfuncs, __ATOMIC_ACQUIRE); i++) __atomic_store_n(&S->funcs[i].inspect, PSK_INSPECT_CLEARED, __ATOMIC_RELEASE);
        usleep(1000);
    }
    return NULL;
}

typedef struct multi {
    uint32_t count, inc;
    uint64_t p[48], n[48];
} multi;

/* Of this thread's processor time, so that a busy machine does not count. */
static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double measure(launch_fn launch, CUfunction f, void **params, long n, int hooked) {
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
        double t = 0;
        for (long done = 0; done < n; done += BATCH) {
            double from = cpu_now();
            for (int i = 0; i < BATCH; i++) launch(f, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
            t += cpu_now() - from;
            SYNC(NULL); /* the progress writes, which strict mode would wait for */
            if (hooked) drain();
        }
        if (t / (double)n < best) best = t / (double)n;
    }
    SYNC(NULL);
    return best * 1e9;
}

int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 200000;
    n = (n + BATCH - 1) / BATCH * BATCH;
    start();
    base = managed(SLOTS * 2 * MiB);
    launch_fn launch = (launch_fn)driver("cuLaunchKernel");
    CUfunction empty = function("empty"), add = function("vec_add"), many = function("multi_add");
    uint64_t v[4] = {base, base + 2 * MiB, base + 4 * MiB, 0};
    void *add_params[] = {&v[0], &v[1], &v[2], &v[3]};
    multi m = {.count = 0};
    for (int i = 0; i < 48; i++) m.p[i] = base + (uint64_t)i * 2 * MiB;
    void *many_params[] = {&m};
    int hooked = dlsym(RTLD_DEFAULT, "penstock_hook_attach") != NULL;
    printf("%-10s %12s %12s %24s   ns a launch, best of 5 x %ld\n", "mode", "no parameter", "3 pointers", "struct with 48 pointers", n);
    static const struct {
        const char *name;
        uint32_t mode, stamp;
    } rows[] = {{"off", PSK_MODE_OFF, 0}, {"observe", PSK_MODE_OBSERVE, 0}, {"recorded", PSK_MODE_OBSERVE, PSK_STAMP_TICKS}, {"clock", PSK_MODE_OBSERVE, PSK_STAMP_CLOCK}, {"gated", PSK_MODE_GATED, 0}, {"strict", PSK_MODE_STRICT, 0}};
    for (unsigned row = 0; row < (hooked ? sizeof rows / sizeof *rows : 1); row++) {
        uint32_t mode = rows[row].mode;
        if (hooked) {
            attach(mode);
            S->stamp = rows[row].stamp;
            S->progress_every = 64;
            for (uint32_t i = 1; i <= SLOTS; i++) own(i, base + (uint64_t)(i - 1) * 2 * MiB, 2 * MiB, PSK_SLOT_RESIDENT);
        }
        pthread_t engine;
        atomic_store(&granting, hooked && mode == PSK_MODE_STRICT);
        if (granting) CHECK(!pthread_create(&engine, NULL, grant_all, NULL));
        double a = measure(launch, empty, NULL, n, hooked), b = measure(launch, add, add_params, n, hooked), c = measure(launch, many, many_params, n, hooked);
        printf("%-10s %12.1f %12.1f %24.1f\n", hooked ? rows[row].name : "no hook", a, b, c);
        if (atomic_exchange(&granting, 0)) pthread_join(engine, NULL);
    }
    return 0;
}
