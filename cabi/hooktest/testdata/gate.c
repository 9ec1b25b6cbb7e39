/* Gates and progress. The main thread launches; the checks play the engine. */
#include "engine.h"

static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }
static uint64_t count(const char *name) { return ((uint64_t(*)(const char *))driver("stub_count"))(name); }

/* A closed gate holds its launch and all behind it on the stream, and no other stream. */
static void holds(void) {
    CUstream s = new_stream(), other = new_stream();
    set_state(2, PSK_SLOT_ABSENT);
    OK(touch_add(s, at(1), 8, 1)); /* resident: runs */
    OK(touch_add(s, at(2), 8, 1)); /* absent: waits */
    OK(touch_add(s, at(1), 8, 1)); /* behind it */
    OK(touch_add(other, at(3), 8, 1));
    SYNC(other);
    CHECK_EQ(word_at(at(3)), 1);
    record *r = EXPECT(PSK_REC_LAUNCH, 1);
    CHECK_EQ(r->flags, 0);
    unsigned index = r->stream;
    uint32_t before = (uint32_t)r->seq;
    r = EXPECT(PSK_REC_LAUNCH, 2);
    CHECK_EQ(r->flags, PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    uint64_t seq = r->seq;
    CHECK_EQ(S->slot_last_seq[2], seq);
    r = EXPECT(PSK_REC_LAUNCH, 1);
    CHECK_EQ(r->flags, PSK_FLAG_GATED | PSK_FLAG_PROGRESS); /* gated with it: what it needs may move meanwhile */
    uint64_t behind = r->seq;
    CHECK(EXPECT(PSK_REC_LAUNCH, 3)->stream != index);
    EVENTUALLY(word_at(at(1)) == 1);
    CHECK_EQ(word_at(at(2)), 0);
    EVENTUALLY(progress(index) == before); /* standing at the gate, the stream says that what came before is done */
    open_gate(index, seq - 1);             /* not yet */
    usleep(2000);
    CHECK_EQ(word_at(at(2)), 0);
    CHECK_EQ(progress(index), before);
    set_state(2, PSK_SLOT_RESIDENT);
    open_gate(index, seq);
    EVENTUALLY(progress(index) == (uint32_t)seq);
    CHECK_EQ(word_at(at(2)), 1);
    CHECK_EQ(word_at(at(1)), 1);
    open_gate(index, behind);
    SYNC(s);
    CHECK_EQ(word_at(at(1)), 2);
    CHECK_EQ(progress(index), (uint32_t)behind);
    CHECK_EQ(S->gated, 2);
    /* All open: no gate any more. */
    OK(touch_add(s, at(1), 8, 1));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1)->flags, 0);
    SYNC(s);
}

/* Without gates, a progress write every progress_every records of a stream, with the seq of the last. */
static void every(void) {
    CUstream s = new_stream();
    uint64_t writes = count("write_values");
    uint64_t last = 0;
    unsigned index = 0;
    for (int i = 1; i <= 12; i++) {
        OK(touch_add(s, at(1), 1, 0));
        record *r = EXPECT(PSK_REC_LAUNCH, 1);
        CHECK_EQ(r->flags, i % 4 ? 0 : PSK_FLAG_PROGRESS);
        if (r->flags) last = r->seq;
        index = r->stream;
    }
    SYNC(s);
    CHECK_EQ(count("write_values"), writes + 3);
    CHECK_EQ(progress(index), (uint32_t)last);
    CHECK_EQ(count("wait_values"), 2); /* those of holds */
}

/* Opens the next gate, after a look that what it holds did not happen. */
static void *open_later(void *arg) {
    (void)arg;
    static record r;
    do {
        while (!take(&r)) sched_yield();
    } while (!(r.flags & PSK_FLAG_GATED));
    usleep(1000);
    CHECK(word_at(at(2)) != 9);
    set_state(2, PSK_SLOT_RESIDENT);
    open_gate(r.stream, r.seq);
    return NULL;
}

/* Every kind of call is held by an absent slot: also the synchronous copies, whose caller waits. */
static void copies(void) {
    static uint32_t host[4] = {9, 9, 9, 9};
    static const char *const names[] = {"cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"};
    for (int i = 0; i < 2; i++) {
        set_state(2, PSK_SLOT_ABSENT);
        pthread_t t;
        CHECK(!pthread_create(&t, NULL, open_later, NULL));
        OK(((CUresult(*)(CUdeviceptr, void *, size_t))driver(names[i]))(at(2), host, sizeof host));
        CHECK_EQ(word_at(at(2)), 9);
        pthread_join(t, NULL);
        *(volatile uint32_t *)at(2) = 0;
    }
    none_left();
    CUstream s = new_stream();
    set_state(2, PSK_SLOT_ABSENT);
    OK(CALL(cuMemcpyDtoHAsync_v2, host, at(2), U64(16), s));
    OK(CALL(cuMemsetD32Async, at(2), 4, U64(4), s));
    record *r = EXPECT(PSK_REC_COPY, 2);
    CHECK_EQ(r->flags, PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    r = EXPECT(PSK_REC_COPY, 2);
    CHECK_EQ(r->flags, PSK_FLAG_GATED | PSK_FLAG_PROGRESS | PSK_FLAG_HAS_DST);
    CHECK_EQ(CALL(cuStreamQuery, s), CUDA_ERROR_NOT_READY);
    CHECK_EQ(host[0], 9);
    set_state(2, PSK_SLOT_RESIDENT);
    open_gate(r->stream, r->seq); /* the later gate opens the earlier one too */
    SYNC(s);
    CHECK_EQ(host[0], 0);
    CHECK_EQ(word_at(at(2)), 4);
    CHECK_EQ(progress(r->stream), (uint32_t)r->seq);
    /* The thread's own stream has a gate of its own. */
    set_state(2, PSK_SLOT_ABSENT);
    OK(touch_add_by((launch_fn)driver("cuLaunchKernel_ptsz"), NULL, at(2), 1, 1));
    r = EXPECT(PSK_REC_LAUNCH, 2);
    CHECK(r->stream != 0 && (r->flags & PSK_FLAG_GATED));
    SYNC(NULL); /* the legacy stream is not held */
    CHECK_EQ(word_at(at(2)), 4);
    set_state(2, PSK_SLOT_RESIDENT);
    open_gate(r->stream, r->seq);
    SYNC(CU_STREAM_PER_THREAD);
    CHECK_EQ(word_at(at(2)), 5);
}

/* A launch that fails must not leave the engine waiting for its progress. */
static void failing(void) {
    CUstream s = new_stream();
    set_state(2, PSK_SLOT_ABSENT);
    CUdeviceptr p = at(2);
    uint64_t n = 1;
    uint32_t inc = 1;
    void *params[] = {&p, &n, &inc};
    CHECK_EQ(CALL(cuLaunchKernel, function("touch_add"), 0, 1, 1, 1, 1, 1, 0, s, params, NULL), CUDA_ERROR_INVALID_VALUE);
    record *r = EXPECT(PSK_REC_LAUNCH, 2);
    CHECK(r->flags & PSK_FLAG_PROGRESS);
    open_gate(r->stream, r->seq);
    SYNC(s);
    CHECK_EQ(progress(r->stream), (uint32_t)r->seq);
    set_state(2, PSK_SLOT_RESIDENT);
}

/* Values compare cyclically: the words live on when seq passes 2^32. */
static void wraps(void) {
    uint64_t near = (1ull << 32) - 3;
    S->head = S->tail = near; /* nothing is in flight */
    memset(S->gate, 0xff, 64 * PSK_MAX_STREAMS); /* as if all earlier gates had been opened: 2^32 - 1 is behind */
    CUstream s = new_stream();
    for (int i = 0; i < 6; i++) {
        set_state(2, PSK_SLOT_ABSENT);
        OK(touch_add(s, at(2), 1, 1));
        record *r = EXPECT(PSK_REC_LAUNCH, 2);
        CHECK(r->flags & PSK_FLAG_GATED);
        CHECK_EQ(r->seq, near + 1 + (uint64_t)i);
        open_gate(r->stream, r->seq);
        SYNC(s);
        CHECK_EQ(progress(r->stream), (uint32_t)r->seq);
    }
    set_state(2, PSK_SLOT_RESIDENT);
}

/* Much queued behind a closed gate: the hook pauses the caller before the driver's queue is full. */
static void *open_when_quiet(void *arg) {
    uint64_t *seq = arg;
    static record r;
    int n = 0;
    double quiet = now();
    uint64_t gate = 0;
    unsigned index = 0;
    while (now() - quiet < 0.2) { /* until nothing more comes: the launcher is paused */
        if (!take(&r)) {
            usleep(100);
            continue;
        }
        quiet = now();
        n++;
        if (r.flags & PSK_FLAG_GATED) gate = r.seq, index = r.stream;
    }
    *seq = (uint64_t)n;
    CHECK(gate);
    open_gate(index, gate);
    return NULL;
}

static void backlog(void) {
    CUstream s = new_stream();
    uint32_t before = word_at(at(1));
    uint64_t seen = 0;
    pthread_t t;
    set_state(2, PSK_SLOT_ABSENT);
    CHECK(!pthread_create(&t, NULL, open_when_quiet, &seen));
    OK(touch_add(s, at(2), 1, 1));
    for (int i = 0; i < 900; i++) OK(touch_add(s, at(1), 1, 1));
    pthread_join(t, NULL);
    SYNC(s);
    CHECK_EQ(word_at(at(1)), before + 900);
    CHECK(seen > 200 && seen < 300);
    set_state(2, PSK_SLOT_RESIDENT);
    static record r;
    while (take(&r)) {
    }
}

/* Streams beyond the table share the last index: recorded, never gated, nothing written for them. */
static void many_streams(void) {
    static CUstream streams[300];
    set_state(2, PSK_SLOT_ABSENT);
    unsigned shared = 0;
    for (int i = 0; i < 300; i++) {
        streams[i] = new_stream();
        OK(touch_add(streams[i], at(2), 1, 0));
        record *r = EXPECT(PSK_REC_LAUNCH, 2);
        if (r->stream == PSK_MAX_STREAMS - 1) {
            CHECK_EQ(r->flags, 0);
            shared++;
        } else {
            CHECK(r->flags & PSK_FLAG_GATED);
            CHECK_EQ(S->streams[r->stream], (uintptr_t)streams[i]);
            open_gate(r->stream, r->seq);
        }
        SYNC(streams[i]);
    }
    CHECK(shared >= 300 - (PSK_MAX_STREAMS - 1) && shared < 100);
    CHECK_EQ(S->nstreams, PSK_MAX_STREAMS);
    CHECK_EQ(progress(PSK_MAX_STREAMS - 1), 0);
    /* The indices of idle destroyed streams come back. */
    for (int i = 0; i < 300; i++) OK(CALL(cuStreamDestroy_v2, streams[i]));
    CUstream fresh = new_stream();
    OK(touch_add(fresh, at(2), 1, 0));
    record *r = EXPECT(PSK_REC_LAUNCH, 2);
    CHECK(r->stream < PSK_MAX_STREAMS - 1 && (r->flags & PSK_FLAG_GATED));
    CHECK_EQ(S->streams[r->stream], (uintptr_t)fresh);
    open_gate(r->stream, r->seq);
    SYNC(fresh);
    set_state(2, PSK_SLOT_RESIDENT);
}

/* A destroyed stream leaves nothing unreported, whether it is idle or not: nobody would wait for it in vain. */
static void destroyed(void) {
    for (int busy = 0; busy < 2; busy++) {
        CUstream s = new_stream();
        OK(touch_add(s, at(1), 1, 0));
        record *r = EXPECT(PSK_REC_LAUNCH, 1);
        CHECK_EQ(r->flags, 0);
        unsigned index = r->stream;
        uint32_t seq = (uint32_t)r->seq;
        if (busy) { /* as a stream that waits for another's event */
            uint64_t us = 20000;
            void *params[] = {&us};
            OK(CALL(cuLaunchKernel, function("spin"), 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
            seq = (uint32_t)must_take()->seq;
        } else {
            SYNC(s);
        }
        CHECK(progress(index) != seq);
        OK(CALL(cuStreamDestroy_v2, s));
        EVENTUALLY(progress(index) == seq);
    }
}

/* A stream on which nothing is launched any more is reported by those who launch on
 * others, once they come from its own context: the driver refuses anything else. */
static void quiet(void) {
    CUcontext own, other;
    OK(CALL(cuCtxGetCurrent, &own));
    OK(CALL(cuCtxCreate_v2, &other, 0, 0));
    OK(CALL(cuCtxSetCurrent, own));
    CUstream s = new_stream(), busy = new_stream();
    OK(touch_add(s, at(1), 1, 0));
    record *r = EXPECT(PSK_REC_LAUNCH, 1);
    unsigned index = r->stream;
    uint32_t seq = (uint32_t)r->seq;
    CHECK_EQ(r->flags, 0);
    for (int there = 1; there >= 0; there--) {
        OK(CALL(cuCtxSetCurrent, there ? other : own));
        CHECK(progress(index) != seq);
        for (int i = 0; i < 600; i++) {
            OK(touch_add(busy, at(2), 1, 0));
            EXPECT(PSK_REC_LAUNCH, 2);
        }
        SYNC(s);
    }
    EVENTUALLY(progress(index) == seq);
    OK(CALL(cuCtxDestroy_v2, other));
    OK(CALL(cuStreamDestroy_v2, s));
    OK(CALL(cuStreamDestroy_v2, busy));
}

/* A driver that refuses stream waits: said once on stderr, and the launches go through. */
static void refused(void) {
    set_state(2, PSK_SLOT_ABSENT);
    uint32_t before = word_at(at(2));
    for (int i = 0; i < 3; i++) OK(touch_add(NULL, at(2), 1, 1));
    SYNC(NULL);
    CHECK_EQ(word_at(at(2)), before + 3);
    CHECK(must_take()->flags & PSK_FLAG_GATED); /* said before it was known */
    CHECK_EQ(must_take()->flags, 0);
    CHECK_EQ(must_take()->flags, 0);
}

int main(int argc, char **argv) {
    start();
    attach(PSK_MODE_GATED);
    base = managed(10 * 2 * MiB);
    for (uint32_t i = 1; i <= 10; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT);
    if (argc > 1 && !strcmp(argv[1], "refused")) {
        refused();
        return 0;
    }
    holds();
    every();
    copies();
    failing();
    destroyed();
    quiet();
    backlog();
    many_streams();
    wraps();
    none_left();
    CHECK_EQ(S->dropped, 0);
    return 0;
}
