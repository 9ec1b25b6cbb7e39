/* What a job that runs for days does: streams and threads that come and go, and more
 * operations than 32 bits count. */
#include "strict.h"

static CUdeviceptr base;
static uint32_t *held;

static void drain(void) {
    static record r;
    while (take(&r)) {
    }
}

/* Lets go what is held, while another thread is in cuStreamDestroy. */
static void *release_later(void *arg) {
    (void)arg;
    usleep(2000);
    release(held);
    return NULL;
}

/* A stream by a handle that none had before. */
static CUstream fresh_stream(void) {
    for (int i = 0; i < 64; i++) CHECK(malloc(192 + 16 * (size_t)i % 256)); /* takes the place of those that are gone */
    return new_stream();
}

/* Streams that come and go keep indices of their own, also when they are destroyed at work,
 * as does one that stays. */
static void indices(uint32_t mode) {
    set_mode(mode);
    const int streams = mode == PSK_MODE_OBSERVE ? 3500 : 600; /* more than there are rows, and than indices */
    CUstream stays = new_stream();
    OK(touch_add(stays, base, 1, 0));
    uint32_t index = must_take()->stream;
    drain();
    for (int i = 0; i < streams; i++) {
        CUstream s = fresh_stream();
        bool busy = i % 16 == 0;
        pthread_t later;
        OK(touch_add(s, base, 1, 0));
        if (busy) hold(s, held), OK(touch_add(s, base, 1, 0));
        record *r = must_take();
        CHECK(r->stream < 32);
        if (busy)
            CHECK(!pthread_create(&later, NULL, release_later, NULL));
        else if (i % 2)
            SYNC(s);
        OK(CALL(cuStreamDestroy_v2, s));
        if (busy) pthread_join(later, NULL);
        drain();
    }
    CHECK(S->nstreams < 32);
    OK(touch_add(stays, base, 1, 0));
    CHECK_EQ(must_take()->stream, index);
    drain();
    OK(CALL(cuStreamDestroy_v2, stays));
    set_mode(PSK_MODE_OFF);
}

static void *thread(void *arg) {
    (void)arg;
    OK(touch_add_by((launch_fn)driver("cuLaunchKernel_ptsz"), NULL, base, 1, 0));
    return NULL;
}

/* Threads' own default streams do, too; what they launch last is reported. */
static void threads(uint32_t mode) {
    set_mode(mode);
    for (int i = 0; i < 1000; i++) {
        pthread_t t;
        CHECK(!pthread_create(&t, NULL, thread, NULL));
        pthread_join(t, NULL);
        record *r = must_take();
        CHECK(r->stream > 0 && r->stream < 64);
        if (mode != PSK_MODE_OBSERVE) EVENTUALLY(progress(r->stream) == (uint32_t)r->seq);
        drain();
    }
    set_mode(PSK_MODE_OFF);
}

/* A stream that has been quiet for more than half of 2^32 operations: the word it left
 * compares as if it were ahead of the next. */
enum { AHEAD = 3000 };
static CUresult run_ahead(job *j) {
    for (int i = 0; i < AHEAD; i++) {
        CUresult r = touch_add(j->s, j->p, 1, 1);
        if (r) return r;
    }
    return CUDA_SUCCESS;
}
static void quiet(int before, uint64_t operations) {
    set_mode(PSK_MODE_STRICT);
    CUstream s = new_stream();
    for (int i = 0; i < before; i++) OK(touch_add(s, base, 1, 0));
    SYNC(s);
    drain();
    advance(S->head + operations);
    hold(s, held);
    uint32_t was = word_at(base);
    job j = {.call = run_ahead, .s = s, .p = base};
    begin_job(&j);
    EVENTUALLY(count("queued") >= PSK_MAX_UNFINISHED / 2);
    for (uint64_t seen = 0; seen != count("queued"); usleep(20000)) seen = count("queued");
    CHECK(!atomic_load(&j.done));
    CHECK(count("queued") <= PSK_MAX_UNFINISHED + 3);
    release(held);
    while (!atomic_load(&j.done)) drain();
    OK(end_job(&j));
    SYNC(s);
    drain();
    CHECK_EQ(word_at(base), was + AHEAD);
    OK(CALL(cuStreamDestroy_v2, s));
    set_mode(PSK_MODE_OFF);
}

/* Streams that are quiet are reported from time to time also where the modes that report
 * began after so many operations. */
static void unread(void) {
    set_mode(PSK_MODE_GATED);
    CUstream s = new_stream(), busy = new_stream();
    advance((1ull << 31) + 12345);
    OK(touch_add(s, base, 1, 0));
    uint32_t index = must_take()->stream;
    CHECK(progress(index) != (uint32_t)S->head);
    uint64_t seq = S->head;
    for (int i = 0; i < 1200; i++) OK(touch_add(busy, base, 1, 0)), must_take();
    EVENTUALLY(progress(index) == (uint32_t)seq);
    set_mode(PSK_MODE_OFF);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    start();
    attach(PSK_MODE_OBSERVE);
    base = managed(2 * MiB);
    OK(CALL(cuMemHostAlloc, &held, U64(64), 0));
    own(1, base, 2 * MiB, PSK_SLOT_RESIDENT);
    OK(touch_add(NULL, base, 1, 0)), must_take();
    clear_function("touch_add");
    S->funcs[0].launches = 1ull << 37; /* never a power of 64 from here on */
    const uint32_t modes[] = {PSK_MODE_OBSERVE, PSK_MODE_GATED, PSK_MODE_STRICT};
    for (int i = 0; i < 3; i++) {
        if (!strcmp(argv[1], "indices")) indices(modes[i]);
        if (!strcmp(argv[1], "threads")) threads(modes[i]);
    }
    if (!strcmp(argv[1], "quiet")) {
        quiet(0, 3ull << 30);
        quiet(1, 3ull << 30);   /* not reported before */
        quiet(300, 3ull << 30); /* reported, and nobody has looked */
        quiet(300, (1ull << 32) + 5);
        S->progress_every = 1; /* a command and a write each, so that the queue is full at the 256th: its word is then what it was */
        for (uint64_t full = PSK_MAX_UNFINISHED / 2 - 1; full <= PSK_MAX_UNFINISHED / 2 + 1; full++) quiet(1, (1ull << 32) - full);
    }
    if (!strcmp(argv[1], "unread")) unread();
    return 0;
}
