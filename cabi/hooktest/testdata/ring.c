/* The ring: wrap-around, overflow, several writers at once, the doorbell. */
#include "engine.h"

static CUdeviceptr base;
enum { SLOTS = 60, TWO = 2 * PSK_ENTRY_SLOTS /* slots that fill two entries */ };
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }
static CUfunction empty_fn, multi_fn;
static launch_fn launch;

typedef struct multi {
    uint32_t count, inc;
    uint64_t p[48], n[48];
} multi;

static void launch_empty(CUstream s) { OK(launch(empty_fn, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL)); }

/* Records of one and of two entries, across the end of the ring. */
static void wrap(void) {
    multi m = {.count = 0};
    for (int i = 0; i < TWO; i++) m.p[i] = at(1 + i);
    void *params[] = {&m};
    uint64_t seq = S->tail + 1;
    for (int i = 0; i < 60000; i++) {
        bool two = i % 3 == 0;
        if (two)
            OK(launch(multi_fn, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
        else
            launch_empty(NULL);
        record *r = must_take();
        CHECK_EQ(r->seq, seq);
        CHECK_EQ(r->n, two ? TWO : 0);
        for (uint32_t k = 0; k < r->n; k++) CHECK_EQ(r->slots[k], k + 1);
        seq += two ? 2 : 1;
    }
    CHECK(seq > PSK_RING_ENTRIES);
    none_left();
    SYNC(NULL);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static double launched_in(uint32_t n) {
    double from = seconds();
    for (uint32_t i = 0; i < n; i++) launch_empty(NULL);
    return seconds() - from;
}

/* A full ring is waited for while somebody reads it, however slowly. */
static void *slow_reader(void *arg) {
    uint64_t *seq = arg;
    for (uint32_t i = 0; i < PSK_RING_ENTRIES + 40; i++) {
        static record buffer;
        record *r = &buffer;
        if (i < 40) usleep(10000);
        while (!take(r)) sched_yield();
        CHECK_EQ(r->seq, ++*seq);
    }
    return NULL;
}

static void back_pressure(int mode) {
    set_mode(mode);
    uint64_t seq = S->tail;
    for (uint32_t i = 0; i < PSK_RING_ENTRIES; i++) launch_empty(NULL);
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, slow_reader, &seq));
    CHECK(launched_in(40) > 0.2); /* one for each that is read, every 10 ms */
    CHECK_EQ(S->dropped, 0);
    pthread_join(t, NULL);
    none_left();
    set_mode(PSK_MODE_OBSERVE);
}

/* Full, and nobody reads: launches go through, the losses are counted, and what is in the ring stays whole. */
static void overflow(void) {
    uint64_t from = S->tail;
    for (uint32_t i = 0; i < PSK_RING_ENTRIES - 1; i++) launch_empty(NULL);
    CHECK_EQ(S->dropped, 0);
    /* One entry is left: a record of two does not fit, one of one does. */
    multi m = {.count = 0};
    for (int i = 0; i < TWO; i++) m.p[i] = at(1 + i);
    void *params[] = {&m};
    double began = seconds();
    OK(launch(multi_fn, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    CHECK(seconds() - began > 0.09); /* it waits until the reader is given up */
    CHECK_EQ(S->dropped, 1);
    launch_empty(NULL);
    CHECK_EQ(S->dropped, 1);
    CHECK(launched_in(21) < 21 * 0.09); /* after it nobody does */
    CHECK_EQ(S->dropped, 22);
    /* An absent slot of a dropped record cannot be waited for: it is not gated. */
    set_mode(PSK_MODE_GATED);
    set_state(1, PSK_SLOT_ABSENT);
    OK(touch_add(NULL, at(1), 1, 1));
    SYNC(NULL);
    CHECK_EQ(word_at(at(1)), 1);
    CHECK_EQ(S->dropped, 23);
    CHECK_EQ(S->gated, 0);
    set_state(1, PSK_SLOT_RESIDENT);
    set_mode(PSK_MODE_OBSERVE);
    for (uint32_t i = 0; i < PSK_RING_ENTRIES; i++) CHECK_EQ(must_take()->seq, from + i + 1);
    none_left();
    OK(touch_add(NULL, at(1), 1, 1));
    EXPECT(PSK_REC_LAUNCH, 1);
}

enum { WRITERS = 4, EACH = 30000 };

static void *writer(void *arg) {
    uint32_t slot = (uint32_t)(uintptr_t)arg;
    multi m = {.count = 0};
    CUstream s = new_stream();
    for (uint32_t i = 0; i < EACH; i++) {
        /* Full is not the subject here: keep below. */
        while (__atomic_load_n(&S->head, __ATOMIC_RELAXED) - __atomic_load_n(&S->tail, __ATOMIC_RELAXED) > PSK_RING_ENTRIES / 2) sched_yield();
        uint32_t n = i % 40;
        for (uint32_t k = 0; k < 40; k++) m.p[k] = k < n ? at((int)(slot + (k ? 10 + k : 0))) : 0;
        void *params[] = {&m};
        OK(launch(multi_fn, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
    }
    SYNC(s);
    return NULL;
}

/* Writers at once: every record whole, in the order of its seq, in the order of its thread, and none lost. */
static void writers(void) {
    pthread_t t[WRITERS];
    uint32_t next[PSK_MAX_STREAMS] = {0}, first[PSK_MAX_STREAMS] = {0};
    uint64_t seq = S->tail + 1;
    for (uintptr_t i = 0; i < WRITERS; i++) CHECK(!pthread_create(&t[i], NULL, writer, (void *)(i + 1)));
    record *r = malloc(sizeof *r);
    for (uint32_t got = 0; got < WRITERS * EACH;) {
        if (!take(r)) {
            sched_yield();
            continue;
        }
        got++;
        CHECK_EQ(r->seq, seq);
        seq += r->n > PSK_ENTRY_SLOTS ? 2 : 1;
        CHECK_EQ(r->n, next[r->stream]++ % 40);
        if (!r->n) continue;
        if (!first[r->stream]) first[r->stream] = r->slots[0];
        CHECK_EQ(r->slots[0], first[r->stream]); /* a thread, a stream, a first slot */
        for (uint32_t k = 1; k < r->n; k++) CHECK_EQ(r->slots[k], first[r->stream] + 10 + k);
    }
    for (int i = 0; i < WRITERS; i++) pthread_join(t[i], NULL);
    CHECK(!take(r));
    free(r);
    CHECK_EQ(S->dropped, 23);
}

static void *same_slot(void *arg) {
    CUdeviceptr p = at(1);
    void *params[] = {&p, &p, &p, &p};
    for (uint32_t i = 0; i < EACH; i++) {
        while (__atomic_load_n(&S->head, __ATOMIC_RELAXED) - __atomic_load_n(&S->tail, __ATOMIC_RELAXED) > PSK_RING_ENTRIES / 2) sched_yield();
        launch((CUfunction)arg, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL); /* refused by the driver, recorded all the same */
        uint64_t last = __atomic_load_n(&S->slot_last_seq[1], __ATOMIC_SEQ_CST);
        CHECK(__atomic_load_n(&S->slot_last_seq[1], __ATOMIC_SEQ_CST) >= last);
    }
    return NULL;
}

/* slot_last_seq only grows, and ends as the largest seq of all writers. */
static void last_seq(void) {
    pthread_t t[WRITERS];
    CUfunction f = function("vec_add");
    for (int i = 0; i < WRITERS; i++) CHECK(!pthread_create(&t[i], NULL, same_slot, f));
    uint64_t last = 0;
    for (int got = 0; got < WRITERS * EACH; got++) {
        while (!(__atomic_load_n(&S->ring[S->tail % PSK_RING_ENTRIES].turn, __ATOMIC_ACQUIRE) == S->tail + 1)) sched_yield();
        last = EXPECT(PSK_REC_LAUNCH, 1)->seq;
        CHECK(__atomic_load_n(&S->slot_last_seq[1], __ATOMIC_SEQ_CST) >= last); /* stored before the record came out */
    }
    for (int i = 0; i < WRITERS; i++) pthread_join(t[i], NULL);
    CHECK_EQ(S->slot_last_seq[1], last);
}

/* A sleeping reader is woken by the next record, and only one wake is spent on it. */
static void *sleeper(void *arg) {
    uint32_t value = __atomic_load_n(&S->doorbell, __ATOMIC_SEQ_CST);
    __atomic_store_n(&S->reader_sleeping, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n((int *)arg, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &S->doorbell, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
    return NULL;
}

static void doorbell(void) {
    int ready = 0;
    pthread_t t;
    uint32_t before = S->doorbell;
    launch_empty(NULL);
    CHECK_EQ(S->doorbell, before); /* nobody sleeps */
    CHECK(!pthread_create(&t, NULL, sleeper, &ready));
    EVENTUALLY(__atomic_load_n(&ready, __ATOMIC_SEQ_CST));
    launch_empty(NULL);
    pthread_join(t, NULL);
    CHECK_EQ(S->doorbell, before + 1);
    launch_empty(NULL);
    CHECK_EQ(S->doorbell, before + 1);
    for (int i = 0; i < 3; i++) must_take();
}

int main(void) {
    start();
    attach(PSK_MODE_OBSERVE);
    base = managed(SLOTS * 2 * MiB);
    for (uint32_t i = 1; i <= SLOTS; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT);
    launch = (launch_fn)driver("cuLaunchKernel");
    empty_fn = function("empty");
    multi_fn = function("multi_add");
    wrap();
    back_pressure(PSK_MODE_OBSERVE);
    back_pressure(PSK_MODE_GATED);
    overflow();
    writers();
    last_seq();
    doorbell();
    none_left();
    return 0;
}
