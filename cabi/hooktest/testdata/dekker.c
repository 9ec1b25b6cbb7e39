/*
 * Strict mode under an engine that evicts and brings back at random, as fast as
 * it can, while threads launch: no kernel ever runs on memory that is not there.
 *
 * The engine keeps the protocol of penstock_hook.h. Memory leaves only when
 * slot_state was stored, slot_last_seq then read is no newer than what was
 * drained, and the progress of every drained use was reported.
 */
#include "strict.h"

enum { SLOTS = 64, LAUNCHERS = 4, PARAMS = 3 };
#define SECONDS 1.5 /* and longer on a busy machine, until enough has happened */
static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }
static atomic_int there[SLOTS + 1]; /* the memory behind a slot */
static atomic_ulong violations, ran;
static atomic_int stop, launching = LAUNCHERS;
static CUfunction kernel;
static launch_fn launch;

static void run_kernel(const stub_launch *l) {
    for (int i = 0; i < PARAMS; i++) {
        uint32_t slot = (uint32_t)((STUB_PARAM(l, uint64_t, i) - base) / (2 * MiB)) + 1;
        if (!atomic_load(&there[slot])) atomic_fetch_add(&violations, 1);
    }
    atomic_fetch_add(&ran, 1);
}

static uint32_t random_below(uint32_t *seed, uint32_t n) {
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 8) % n;
}

typedef struct launcher {
    pthread_t thread;
    CUstream s;
    uint32_t seed;
    uint64_t made;
} launcher;

static void *launcher_main(void *arg) {
    launcher *l = arg;
    enter();
    while (!atomic_load(&stop)) {
        uint64_t v[PARAMS];
        void *params[PARAMS];
        for (int i = 0; i < PARAMS; i++) v[i] = at(1 + (int)random_below(&l->seed, SLOTS)), params[i] = &v[i];
        OK(launch(kernel, 1, 1, 1, 1, 1, 1, 0, l->s, params, NULL));
        if (++l->made % 64 == 0) SYNC(l->s); /* else nothing is idle on a busy machine */
    }
    atomic_fetch_sub(&launching, 1);
    return NULL;
}

/* Copies in: the memory is there a little after the slot was said to arrive. */
static struct {
    uint32_t slot;
} copies[1 << 16];
static atomic_uint submitted;
static void *copier(void *arg) {
    (void)arg;
    for (uint32_t done = 0;;) {
        if (done == atomic_load(&submitted)) {
            if (!atomic_load(&launching)) return NULL;
            sched_yield();
            continue;
        }
        if (done % 8 == 0) usleep(50);
        atomic_store(&there[copies[done++ % (1 << 16)].slot], 1);
        arrive(done); /* its ticket */
    }
}

static uint64_t used[SLOTS + 1][PSK_MAX_STREAMS]; /* the last drained seq */
static uint64_t drained, evictions, taken_back, arrivals;
static uint32_t tickets[SLOTS + 1];

static bool idle(uint32_t slot) {
    for (unsigned i = 0; i < S->nstreams; i++)
        if (used[slot][i] && (int32_t)(progress(i) - (uint32_t)used[slot][i]) < 0) return false;
    return true;
}

static void evict(uint32_t slot) {
    if (S->slot_state[slot] != PSK_SLOT_RESIDENT) return;
    set_state(slot, PSK_SLOT_ABSENT);
    if (__atomic_load_n(&S->slot_last_seq[slot], __ATOMIC_SEQ_CST) > drained) {
        taken_back++;
        set_state(slot, PSK_SLOT_RESIDENT);
    } else if (!idle(slot)) {
        set_state(slot, PSK_SLOT_RESIDENT);
    } else {
        atomic_store(&there[slot], 0);
        evictions++;
    }
}

static void bring(uint32_t slot, uint32_t *seed) {
    if (S->slot_state[slot] != PSK_SLOT_ABSENT) return;
    if (random_below(seed, 3) == 0) {
        atomic_store(&there[slot], 1);
        set_state(slot, PSK_SLOT_RESIDENT);
        return;
    }
    uint32_t ticket = atomic_load(&submitted) + 1;
    copies[(ticket - 1) % (1 << 16)].slot = slot;
    tickets[slot] = ticket;
    set_arriving(slot, ticket);
    atomic_store(&submitted, ticket);
    arrivals++;
}

static void engine(void) {
    static record r;
    uint32_t seed = 77;
    double until = now() + SECONDS;
    while (atomic_load(&launching)) {
        if (now() > until && evictions > 100 && arrivals > 50 && __atomic_load_n(&S->cpu_waits, __ATOMIC_RELAXED) > 50) atomic_store(&stop, 1);
        if (now() > until + 60) {
            fprintf(stderr, "no end: %d launch, %lu launched, %lu read, %lu evictions, %lu taken back, %lu arrivals, %lu waits\n", atomic_load(&launching), S->head, drained, evictions, taken_back, arrivals, S->cpu_waits);
            exit(1);
        }
        for (int i = 0; i < 16 && take(&r); i++) {
            drained = r.seq;
            for (uint32_t k = 0; k < r.n; k++) {
                used[r.slots[k]][r.stream] = r.seq;
                bring(r.slots[k], &seed);
            }
        }
        for (uint32_t i = 1; i <= SLOTS; i++)
            if (S->slot_state[i] == PSK_SLOT_ARRIVING && (int32_t)(*(volatile uint32_t *)S->arrived - tickets[i]) >= 0) set_state(i, PSK_SLOT_RESIDENT);
        evict(1 + random_below(&seed, SLOTS));
    }
}

int main(void) {
    start();
    attach(PSK_MODE_OBSERVE);
    for (int i = 0; i < PSK_MAX_STREAMS; i++) S->progress[i * 16] = (uint32_t)S->head; /* compared cyclically here */
    base = managed(SLOTS * 2 * MiB);
    for (uint32_t i = 1; i <= SLOTS; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT), atomic_store(&there[i], 1);
    ((void (*)(const char *, stub_kernel_fn, void *, unsigned, const size_t *))driver("stub_register_kernel"))("checked", run_kernel, NULL, PARAMS, (const size_t[]){8, 8, 8});
    kernel = function("checked");
    launch = (launch_fn)driver("cuLaunchKernel");
    uint64_t v = base;
    void *params[] = {&v, &v, &v};
    OK(launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    SYNC(NULL);
    drained = must_take()->seq;
    clear_function("checked");
    S->funcs[0].launches = 1ull << 37; /* never a power of 64 from here on */
    set_mode(PSK_MODE_STRICT);
    launcher l[LAUNCHERS];
    pthread_t c;
    CHECK(!pthread_create(&c, NULL, copier, NULL));
    CUstream shared = new_stream();
    for (uint32_t i = 0; i < LAUNCHERS; i++) {
        l[i] = (launcher){.s = i < 2 ? shared : new_stream(), .seed = i};
        CHECK(!pthread_create(&l[i].thread, NULL, launcher_main, &l[i]));
    }
    engine();
    uint64_t made = 1;
    for (int i = 0; i < LAUNCHERS; i++) {
        pthread_join(l[i].thread, NULL);
        SYNC(l[i].s);
        made += l[i].made;
    }
    pthread_join(c, NULL);
    CHECK_EQ(violations, 0);
    CHECK_EQ(ran, made);
    CHECK_EQ(S->dropped, 0);
    if (getenv("PRINT")) printf("%lu launches, %lu evictions, %lu taken back, %lu arrivals, %lu waits\n", made, evictions, taken_back, arrivals, S->cpu_waits);
    return 0;
}
