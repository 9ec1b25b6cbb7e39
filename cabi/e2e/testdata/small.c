/* Small programs, by name. */
#include <sys/mman.h>

#include "job.h"

/* Says why the engine does not start. */
static int init(void) {
    int rc = P.init(0);
    if (rc == 0) return 0;
    CHECK(rc < 0);
    CHECK(!P.malloc(8 * MiB, 0, NULL)); /* and goes on saying so, without a crash */
    CHECK(!P.malloc(8, 0, NULL));
    char json[8192];
    CHECK(P.stats(json, sizeof json) >= 0);
    printf("%s", last_error());
    return 3;
}

/* Forks with the library loaded and no call made yet: the child has no Go runtime to start an engine with. */
static int forkfirst(void) {
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        _exit(P.malloc(8 * MiB, 0, NULL) != NULL || P.init(0) >= 0);
    }
    int st;
    CHECK_EQ(waitpid(pid, &st, 0), pid);
    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);
    tensor t;
    CHECK(make(&t, 8 * MiB, NULL, 3));
    SYNC(NULL);
    check_value(&t);
    return 0;
}

/* Asks for another device while the engine starts: it has pinned memory, for which STUB_PIN_US has it wait. */
static void *second_device(void *rc) {
    double until = now() + 30;
    while (!count("live_allocations")) CHECK(now() < until), usleep(100);
    *(int *)rc = P.init(1);
    return NULL;
}

/* Two threads make the first call, for different devices. */
static int devices(void) {
    pthread_t second;
    int rc = 0;
    CHECK(!pthread_create(&second, NULL, second_device, &rc));
    CHECK_EQ(P.init(0), 0);
    pthread_join(second, NULL);
    CHECK(rc < 0);
    CHECK(strstr(last_error(), "device 1 asked for, device 0 is in use"));
    P.close();
    return 0;
}

/* Once the engine runs, the pages that records are written to are there: launches do not fault them in. */
static int ring(void) {
    static unsigned char present[sizeof(psk_entry) * PSK_RING_ENTRIES / 4096];
    CHECK_EQ(P.init(0), 0);
    CHECK(!mincore(hook_shared()->ring, sizeof(psk_entry) * PSK_RING_ENTRIES, present));
    for (size_t i = 0; i < sizeof present; i++) CHECK(present[i] & 1);
    P.close();
    return 0;
}

/* What is recorded of allocations: sizes say which. Between the calls of penstock_record nothing is. */
static int recorded(void) {
    void *early = P.malloc(1 * MiB, 0, NULL);
    for (int i = 0; i < 100; i++) { /* the later ones are served without entering Go */
        void *p = P.malloc(2 * MiB, 0, NULL);
        CHECK(p);
        P.free(p, 2 * MiB, 0, NULL);
    }
    CHECK_EQ(P.record(0), 0);
    void *unseen = P.malloc(3 * MiB, 0, NULL), *kept = P.malloc(4 * MiB, 0, NULL);
    CHECK(unseen && kept);
    P.free(early, 1 * MiB, 0, NULL);
    CHECK_EQ(P.record(1), 0);
    P.free(unseen, 3 * MiB, 0, NULL); /* of what nobody knows */
    void *again = P.malloc(1 * MiB, 0, NULL);
    CHECK(again == early); /* whose free nobody saw */
    P.free(again, 1 * MiB, 0, NULL);
    P.free(kept, 4 * MiB, 0, NULL);
    P.close();
    CHECK(P.record(1) < 0); /* nothing is recorded any more */
    return 0;
}

/* Allocates and frees, on a stream of its own. Its sizes are its own. */
enum { BUSY_THREADS = 3, BUSY_TURNS = 60000 };
static CUcontext busy_context;
static atomic_int busy_longer;

static void *busy_thread(void *arg) {
    uintptr_t me = (uintptr_t)arg;
    CUstream s;
    OK(CALL(cuCtxSetCurrent, busy_context));
    OK(CALL(cuStreamCreate, &s, 1));
    for (size_t i = 0; i < BUSY_TURNS || atomic_load(&busy_longer); i++) {
        size_t bytes = 512 * (BUSY_THREADS * (1 + i % 40) + me);
        void *p = P.malloc((ssize_t)bytes, 0, s);
        CHECK(p);
        P.free(p, (ssize_t)bytes, 0, s);
    }
    return NULL;
}

/* More calls than the log holds, from several threads that do nothing else: who reads cannot keep up.
 * The recording is switched off and on meanwhile so many times. */
static int busy(int switches) {
    busy_longer = switches > 0;
    CHECK_EQ(P.init(0), 0);
    pthread_t t[BUSY_THREADS];
    OK(CALL(cuCtxGetCurrent, &busy_context));
    for (uintptr_t i = 0; i < BUSY_THREADS; i++) CHECK(!pthread_create(&t[i], NULL, busy_thread, (void *)i));
    for (int i = 0; i < switches; i++) {
        usleep(10000);
        CHECK_EQ(P.record(0), 0);
        CHECK_EQ(P.record(1), 0);
    }
    busy_longer = 0;
    for (int i = 0; i < BUSY_THREADS; i++) pthread_join(t[i], NULL);
    P.close();
    return 0;
}

/* Works in less memory than it needs, recorded by turns. */
static int turns(void) {
    tensor t[24];
    for (int i = 0; i < 24; i++) CHECK(make(&t[i], 8 * MiB, NULL, 0));
    for (int it = 0; it < 60; it++) {
        CHECK_EQ(P.record(it % 4 == 0 || it % 4 == 3), 0);
        for (int i = 0; i < 24; i++) add(i, NULL, &t[i], 1);
        SYNC(NULL);
    }
    for (int i = 0; i < 24; i++) check_value(&t[i]);
    P.close();
    return 0;
}

/* Works until it is killed. */
static int endless(void) {
    tensor t[24];
    for (int i = 0; i < 24; i++) CHECK(make(&t[i], 8 * MiB, NULL, 0));
    for (int it = 0;; it++) {
        for (int i = 0; i < 24; i++) add(i, NULL, &t[i], 1);
        if (it == 2) printf("ready\n"), fflush(stdout);
        SYNC(NULL);
    }
}

/* Private pools, as a framework makes them around the capture of a graph. */
static int pools(void) {
    CHECK_EQ(P.init(0), 0);
    CHECK_EQ(P.begin_pool(0, 1, 2), 0);
    CHECK(P.begin_pool(0, 1, 3) < 0); /* no nesting */
    tensor t;
    CHECK(make(&t, 4 * MiB, NULL, 1));
    CHECK_EQ(resident(DEVICE(&t), t.bytes), t.bytes); /* plain memory */
    CHECK_EQ(P.end_pool(0, 1, 2), 0);
    tensor u;
    CHECK(make(&u, 4 * MiB, NULL, 2));
    CHECK_EQ(stat_now("allocated_bytes"), 8 * MiB);
    for (int i = 0; i < 5; i++) add(i, NULL, &t, 1), add(i, NULL, &u, 1);
    SYNC(NULL);
    check_value(&t), check_value(&u);
    drop(&t), drop(&u);
    CHECK_EQ(P.release_pool(0, 1, 2), 0);
    CHECK(P.release_pool(0, 1, 2) < 0);
    CHECK_EQ(stat_now("allocated_bytes"), 0);
    P.empty_cache();
    /* By name, several at once. */
    CHECK(!P.malloc_in_pool(8, 0, NULL, 3, 4)); /* nobody made it */
    CHECK(strstr(last_error(), "no private pool"));
    CHECK_EQ(P.pool_users(0, 3, 4), 0);
    CHECK_EQ(P.retain_pool(0, 3, 4), 0);
    CHECK_EQ(P.retain_pool(0, 3, 4), 0);
    CHECK_EQ(P.retain_pool(0, 3, 5), 0);
    CHECK_EQ(P.pool_users(0, 3, 4), 2);
    char *a = P.malloc_in_pool(100, 0, NULL, 3, 4), *b = P.malloc_in_pool(2 * MiB, 0, NULL, 3, 4), *c = P.malloc_in_pool(100, 0, NULL, 3, 5);
    CHECK(a && b && c);
    CHECK(!P.malloc_in_pool(0, 0, NULL, 3, 4));
    struct penstock_block blocks[2];
    CHECK_EQ(P.pool_blocks(0, 3, 4, NULL, 0), 2);
    CHECK_EQ(P.pool_blocks(0, 3, 4, blocks, 1), 2);
    CHECK_EQ(P.pool_blocks(0, 3, 4, blocks, 2), 2);
    CHECK(blocks[0].ptr < blocks[1].ptr && blocks[0].size + blocks[1].size == 100 + 2 * MiB);
    CHECK(P.restore_in_pool(a, 100, 0, 3, 4) < 0); /* it is allocated */
    P.free(a, 100, 0, NULL);
    CHECK(P.restore_in_pool(a, 100, 0, 3, 5) < 0); /* another pool's */
    CHECK_EQ(P.restore_in_pool(a, 100, 0, 3, 4), 0);
    CHECK_EQ(stat_now("allocated_bytes"), 200 + 2 * MiB);
    P.free(a, 100, 0, NULL), P.free(b, 0, 0, NULL), P.free(c, 0, 0, NULL);
    CHECK_EQ(P.release_pool(0, 3, 4), 0);
    CHECK_EQ(P.release_pool(0, 3, 4), 0);
    CHECK_EQ(P.release_pool(0, 3, 5), 0);
    CHECK(P.release_pool(0, 3, 4) < 0);
    P.empty_cache();
    /* Calls that make no sense are refused, not fatal. */
    P.free((void *)8, 0, 0, NULL);
    CHECK(*last_error());
    P.record_stream((void *)8, NULL);
    CHECK(P.set_memory_fraction(0, 0) < 0);
    CHECK(P.set_memory_fraction(1.5, 0) < 0);
    CHECK(strstr(last_error(), "fraction"));
    CHECK_EQ(P.set_memory_fraction(1, 0), 0);
    CHECK(!P.malloc(8, 1, NULL)); /* another device */
    CHECK(strstr(last_error(), "device 1"));
    char little[4];
    CHECK(P.stats(little, sizeof little) > (long)sizeof little);
    P.close();
    return 0;
}

/* What the self-test finds, alone and when the engine starts. RUNTIME names a CUDA runtime to load first. */
static int selftest(void) {
    const char *runtime = getenv("RUNTIME");
    if (runtime && !dlopen(runtime, RTLD_NOW | RTLD_LOCAL)) fprintf(stderr, "%s\n", dlerror()), exit(1);
    static char json[65536];
    long n = P.self_test(json, sizeof json);
    CHECK(n > 0 && n < (long)sizeof json);
    printf("SELFTEST %s\n", json);
    CHECK_EQ(P.init(0), 0);
    CHECK_EQ(stat_now("launches"), 0); /* probes are no launches */
    tensor t;
    CHECK(make(&t, 8 * MiB, NULL, 1));
    for (int i = 0; i < 8; i++) add(i, NULL, &t, 1);
    SYNC(NULL);
    check_value(&t); /* whatever was missed, the values are right */
    P.close();
    return 0;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    load();
    if (!strcmp(argv[1], "init")) return init();
    resolve();
    if (!strcmp(argv[1], "forkfirst")) return forkfirst();
    if (!strcmp(argv[1], "endless")) return endless();
    if (!strcmp(argv[1], "recorded")) return recorded();
    if (!strcmp(argv[1], "busy")) return busy(0);
    if (!strcmp(argv[1], "switched")) return busy(10);
    if (!strcmp(argv[1], "turns")) return turns();
    if (!strcmp(argv[1], "pools")) return pools();
    if (!strcmp(argv[1], "devices")) return devices();
    if (!strcmp(argv[1], "ring")) return ring();
    if (!strcmp(argv[1], "selftest")) return selftest();
    fprintf(stderr, "unknown: %s\n", argv[1]);
    return 2;
}
