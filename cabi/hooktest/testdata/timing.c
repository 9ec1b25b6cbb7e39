/* What operations are found to take does not depend on what they wait for. The main thread plays the engine. */
#include "strict.h"

static void sleeps(const stub_launch *l) {
    (void)l;
    usleep(4000);
}

static CUresult nap(CUstream s, CUdeviceptr p, unsigned grid) {
    void *params[] = {&p};
    return CALL(cuLaunchKernel, function("sleeps"), grid, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static uint64_t read_timings;

static int ascending(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

/* The shortest of those that were timed since, in ms, and the median: a busy machine makes some longer. */
static double shortest, middle;
static unsigned timings(void) {
    double ms[PSK_TIMINGS];
    unsigned n = 0;
    for (; read_timings < S->ntimings; read_timings++) {
        psk_timing *t = &S->timings[read_timings % PSK_TIMINGS];
        CHECK(t->seq && t->seq <= S->head);
        ms[n++] = t->ns * 1e-6;
    }
    qsort(ms, n, sizeof *ms, ascending);
    shortest = n ? ms[0] : 0;
    middle = n ? ms[n / 2] : 0;
    return n;
}

/* Has what is timed told: it is by the next one that is. */
static void told(CUstream s, CUdeviceptr p) {
    static unsigned grid = 1000;
    SYNC(s);
    grid++;
    OK(nap(s, p, grid));
    OK(nap(s, p, grid));
    SYNC(s);
}

static void drained(void) {
    record r;
    while (take(&r)) {
    }
}

int main(void) {
    start();
    const size_t size = sizeof(CUdeviceptr);
    ((void (*)(const char *, stub_kernel_fn, void *, unsigned, const size_t *))driver("stub_register_kernel"))("sleeps", sleeps, NULL, 1, &size);
    CUdeviceptr p = managed(2 * MiB);
    CUstream s = new_stream();
    attach(PSK_MODE_OBSERVE);
    OK(nap(s, p, 1));
    clear_function("sleeps");
    SYNC(s);
    set_mode(PSK_MODE_STRICT);
    own(1, p, 2 * MiB, PSK_SLOT_RESIDENT);

    for (int i = 0; i < 8; i++) OK(nap(s, p, 1)); /* nobody wants it */
    SYNC(s);
    CHECK_EQ(S->ntimings, 0);
    drained();

    __atomic_store_n(&S->timing, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 6; i++) OK(nap(s, p, 2)); /* one behind the other */
    told(s, p);
    CHECK(timings() >= 3);
    double undisturbed = shortest;
    CHECK(undisturbed >= 4 && undisturbed < 12);
    drained();

    /* Each waits for a copy, five times as long as it takes. */
    for (uint32_t ticket = 1; ticket <= 6; ticket++) {
        S->slot_ticket[1] = ticket;
        set_state(1, PSK_SLOT_ARRIVING);
        OK(nap(s, p, 3));
        usleep(20000);
        __atomic_store_n(S->arrived, ticket, __ATOMIC_RELEASE);
    }
    set_state(1, PSK_SLOT_RESIDENT);
    told(s, p);
    CHECK(timings() >= 3);
    CHECK(shortest < undisturbed * 2 && shortest > undisturbed / 2); /* with the wait it would be six times that; a busy machine sleeps long */
    CHECK(middle < 3 * undisturbed);
    drained();

    /* Each finds the device idle, as in a job that its CPU keeps back: more and more waits keep it busy. */
    uint64_t lost = S->timings_lost;
    for (int i = 0; i < 12; i++) {
        OK(nap(s, p, 4));
        SYNC(s);
    }
    told(s, p);
    CHECK(timings() >= 2);
    CHECK(S->timings_lost - lost < 12);
    drained();

    /* A stream that has reported nothing, timed while its first operation runs: in a job of long ago that one reports more than 2^31. */
    CUstream fresh = new_stream();
    S->progress_every = 1;
    for (int i = 0; i < 4; i++) OK(nap(fresh, p, 5));
    told(fresh, p);
    CHECK(timings() >= 2);
    drained();
    return 0;
}
