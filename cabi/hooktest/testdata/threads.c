/* Threads that resolve and launch at the same time, from the very first call on. */
#include "engine.h"

enum { THREADS = 8, LAUNCHES = 200, SHARED = 1000 };
static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }
static pthread_barrier_t barrier;
static void *found[THREADS];
static uint32_t *progress_words;

typedef CUresult (*getproc_v2)(const char *, void **, int, uint64_t, int *);

static void *run(void *arg) {
    int i = (int)(uintptr_t)arg;
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(lib);
    pthread_barrier_wait(&barrier);
    int status;
    launch_fn launch, stream_launch;
    if (i % 2)
        launch = (launch_fn)dlsym(lib, "cuLaunchKernel");
    else
        OK(((getproc_v2)dlsym(lib, "cuGetProcAddress_v2"))("cuLaunchKernel", (void **)&launch, 13000, 0, &status));
    stream_launch = (launch_fn)dlsym(lib, "cuLaunchKernel_ptsz");
    found[i] = (void *)launch;
    if (i == 0) start();
    pthread_barrier_wait(&barrier); /* the device is up */
    enter();
    if (i == 0) {
        attach(PSK_MODE_GATED);
        S->progress_every = 1;
        __atomic_store_n(&progress_words, S->progress, __ATOMIC_RELEASE);
        base = managed((THREADS + 1) * 2 * MiB);
        for (uint32_t k = 1; k <= THREADS + 1; k++) own(k, at((int)k), 2 * MiB, PSK_SLOT_RESIDENT);
        function("touch_add");
    }
    pthread_barrier_wait(&barrier);
    static CUfunction f;
    if (i == 0) f = function("touch_add");
    pthread_barrier_wait(&barrier);
    CUdeviceptr p = at(i + 1), shared = at(THREADS + 1) + 64 * (uint64_t)i;
    uint64_t n = 4;
    uint32_t inc = 1;
    void *params[] = {&p, &n, &inc};
    void *shared_params[] = {&shared, &n, &inc};
    for (int k = 0; k < LAUNCHES; k++) OK(stream_launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL)); /* the thread's own stream */
    for (int k = 0; k < SHARED; k++) OK(launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, shared_params, NULL));  /* one stream for all */
    SYNC(CU_STREAM_PER_THREAD);
    SYNC(NULL);
    CHECK_EQ(word_at(p), LAUNCHES);
    CHECK_EQ(word_at(shared), SHARED);
    pthread_barrier_wait(&barrier); /* what one launches on is no other's while it lives */
    return NULL;
}

/* Progress of a stream that several threads launch on never goes back: each write speaks for all before it. */
static atomic_int watching = 1;
static void *watch(void *arg) {
    (void)arg;
    uint32_t seen = 0;
    while (atomic_load(&watching)) {
        uint32_t p = __atomic_load_n(&progress_words[0], __ATOMIC_ACQUIRE);
        CHECK((int32_t)(p - seen) >= 0);
        seen = p;
    }
    return NULL;
}

int main(void) {
    pthread_t t[THREADS], w;
    CHECK(dlopen("libcuda.so.1", RTLD_NOW));
    driver("cuInit"); /* so that the shorthands' handle is set before the threads use it */
    CHECK(!pthread_barrier_init(&barrier, NULL, THREADS));
    for (uintptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&t[i], NULL, run, (void *)i));
    EVENTUALLY(__atomic_load_n(&progress_words, __ATOMIC_ACQUIRE) != NULL);
    CHECK(!pthread_create(&w, NULL, watch, NULL));
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    atomic_store(&watching, 0);
    pthread_join(w, NULL);
    for (int i = 1; i < THREADS; i++) CHECK(found[i] == found[0]);
    CHECK_EQ(S->launches, THREADS * (LAUNCHES + SHARED));
    /* Per stream, progress never names a record whose launch came later: the last write is the largest. */
    uint64_t last[PSK_MAX_STREAMS] = {0};
    static record r;
    int per_stream[PSK_MAX_STREAMS] = {0};
    while (take(&r)) {
        if (r.flags & PSK_FLAG_PROGRESS) last[r.stream] = r.seq;
        per_stream[r.stream]++;
    }
    CHECK_EQ(per_stream[0], THREADS * SHARED);
    int own_streams = 0;
    for (int i = 0; i < PSK_MAX_STREAMS; i++) {
        if (!per_stream[i]) continue;
        CHECK_EQ(progress((unsigned)i), (uint32_t)last[i]);
        if (i) CHECK_EQ(per_stream[i], LAUNCHES), own_streams++;
    }
    CHECK_EQ(own_streams, THREADS);
    CHECK_EQ(S->slot_last_seq[THREADS + 1] > 0, 1);
    return 0;
}
