/* Contexts beside the engine's: whose default stream an operation is on, how far each is, and what their ends are. */
#include "strict.h"

static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }
static uint32_t *held; /* a pinned word */

static void enter_context(CUcontext c) { OK(CALL(cuCtxSetCurrent, c)); }

/* A context, which is current afterwards. */
static CUcontext make_context(void) {
    CUcontext c;
    OK(CALL(cuCtxCreate_v2, &c, U64(0), U64(0)));
    return c;
}

static CUresult add_per_thread(job *j) { return touch_add_by((launch_fn)driver("cuLaunchKernel_ptsz"), NULL, j->p, 1, 1); }

/* A launch on a stream of the context that is current; its index. */
static record *add_on(CUstream s) {
    OK(touch_add(s, at(2), 1, 1));
    return EXPECT(PSK_REC_LAUNCH, 2);
}

/* Until there is another context the default stream has index 0 and nothing is asked. */
static void alone(void) {
    CHECK_EQ(add_on(NULL)->stream, 0);
    CHECK_EQ(S->synchronize_others(), CUDA_SUCCESS);
    S->report_all();
    SYNC(NULL);
}

/* The engine's default stream is at work; those of another context are idle, and say nothing of it. */
static void apart(void) {
    hold(NULL, held);
    OK(touch_add(NULL, at(1), 1, 1));
    uint32_t seq = (uint32_t)must_take()->seq;
    CUcontext other = make_context();
    unsigned index = 0;
    for (int i = 0; i < 5; i++) { /* each reports itself: nobody else can have it reported */
        record *r = add_on(NULL);
        index = r->stream;
        CHECK(index != 0 && (r->flags & PSK_FLAG_PROGRESS));
        CHECK_EQ(S->streams[index], PSK_STREAM_PER_THREAD);
        EVENTUALLY(progress(index) == (uint32_t)r->seq);
    }
    /* A thread's own, too. */
    job j = {.p = at(2)};
    OK(add_per_thread(&j));
    record *r = EXPECT(PSK_REC_LAUNCH, 2);
    unsigned own = r->stream;
    CHECK(own != 0 && own != index && own != PSK_MAX_STREAMS - 1);
    EVENTUALLY(progress(own) == (uint32_t)r->seq);
    OK(add_per_thread(&j));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 2)->stream, own);
    SYNC(CU_STREAM_PER_THREAD); /* nothing below waits for that stream, and the word is looked at */
    CUstream s = new_stream();
    for (int i = 0; i < 5; i++) {
        r = add_on(s);
        CHECK(r->stream != 0 && r->stream != index && (r->flags & PSK_FLAG_PROGRESS));
        EVENTUALLY(progress(r->stream) == (uint32_t)r->seq);
    }
    S->report_all(); /* from this context */
    SYNC(NULL);
    CHECK((int32_t)(progress(0) - seq) < 0);
    /* The same for another thread of that context, and for a thread of the engine's. */
    enter_context(context);
    OK(touch_add(NULL, at(1), 1, 1));
    CHECK_EQ(must_take()->stream, 0);
    OK(add_per_thread(&j));
    CHECK(EXPECT(PSK_REC_LAUNCH, 2)->stream != own);
    SYNC(CU_STREAM_PER_THREAD);
    release(held);
    SYNC(NULL);
    S->report_all();
    SYNC(NULL);
    CHECK((int32_t)(progress(0) - seq) > 0);

    /* Its work can be waited for from the engine's. */
    enter_context(other);
    hold(NULL, held);
    OK(touch_add(NULL, at(2), 1, 1));
    uint32_t before = word_at(at(2));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 2)->stream, index);
    enter_context(context);
    OK(CALL(cuCtxSynchronize));
    CHECK_EQ(word_at(at(2)), before);
    release(held);
    CHECK_EQ(S->synchronize_others(), CUDA_SUCCESS);
    CHECK_EQ(word_at(at(2)), before + 1);
    CUcontext now_current;
    OK(CALL(cuCtxGetCurrent, &now_current));
    CHECK(now_current == context);
    OK(CALL(cuCtxDestroy_v2, other));
}

/* Contexts that come and go, by one handle, use up neither indices nor what is known of handles. */
static void churn(void) {
    unsigned most = 0;
    for (int i = 0; i < 3 * PSK_MAX_STREAMS; i++) {
        CUcontext c = make_context();
        record *r = add_on(NULL);
        unsigned index = r->stream;
        CHECK(index != 0);
        if (index > most) most = index;
        uint32_t seq = (uint32_t)r->seq;
        OK(CALL(cuCtxDestroy_v2, c));
        CHECK((int32_t)(progress(index) - seq) >= 0); /* its work has ended with it */
        enter_context(context);
        CHECK_EQ(add_on(NULL)->stream, 0);
        SYNC(NULL);
    }
    CHECK(most < 16);
}

/* A green context: made current like any, and destroyed by a handle of its own, after which functions are asked for again. */
static void green(void) {
    CUgreenCtx g;
    CUcontext c;
    OK(CALL(cuGreenCtxCreate, &g, NULL, 0, 1));
    OK(CALL(cuCtxFromGreenCtx, &c, g));
    OK(CALL(cuCtxPushCurrent_v2, c));
    unsigned index = add_on(NULL)->stream;
    CHECK(index != 0);
    OK(CALL(cuCtxPopCurrent_v2, &c));
    CHECK_EQ(add_on(NULL)->stream, 0);
    CHECK_EQ(S->synchronize_others(), CUDA_SUCCESS);
    uint64_t queries = count("param_queries");
    CHECK_EQ(add_on(NULL)->stream, 0);
    CHECK_EQ(count("param_queries"), queries);
    OK(CALL(cuGreenCtxDestroy, g));
    EVENTUALLY(S->streams[index] == PSK_STREAM_GONE);
    CHECK_EQ(add_on(NULL)->stream, 0);
    CHECK(count("param_queries") > queries);

    c = make_context();
    enter_context(context);
    queries = count("param_queries");
    OK(CALL(cuCtxDetach, c));
    CHECK_EQ(add_on(NULL)->stream, 0);
    CHECK(count("param_queries") > queries);
    SYNC(NULL);
}

/* While a stream captures that the legacy stream waits for, the driver neither says whether the legacy one captures nor
 * waits for it. What is launched there may run all the same: not before its memory is there, nor is it done before it is. */
static void beside_a_capture(void) {
    CUstream s;
    CUgraph g;
    OK(CALL(cuStreamCreate, &s, 0));
    uint32_t before = word_at(at(1));
    hold(NULL, held);
    OK(CALL(cuStreamBeginCapture_v2, s, 2));
    set_state(1, PSK_SLOT_ABSENT);
    job j = {.call = add_one, .p = at(1)};
    begin_job(&j);
    record *r = await();
    uint32_t seq = (uint32_t)r->seq;
    CHECK_EQ(r->stream, 0);
    CHECK(!(r->flags & PSK_FLAG_CAPTURED));
    waits(&j);
    arrive(10);
    set_arriving(1, 11); /* no wait can be put on the stream either */
    waits(&j);
    arrive(11);
    OK(end_job(&j));
    set_state(1, PSK_SLOT_RESIDENT);
    CHECK((int32_t)(progress(0) - seq) < 0);
    release(held);
    EVENTUALLY(word_at(at(1)) == before + 1);
    OK(CALL(cuStreamEndCapture, s, &g));
    S->report_all(); /* now it can be said */
    EVENTUALLY(progress(0) == seq);
    /* One that finds memory absent has what came before reported as soon as the capture has ended: the engine may wait for it. */
    OK(CALL(cuStreamBeginCapture_v2, s, 2));
    OK(touch_add(NULL, at(2), 1, 1));
    seq = (uint32_t)EXPECT(PSK_REC_LAUNCH, 2)->seq;
    set_state(1, PSK_SLOT_ABSENT);
    begin_job(&j);
    await();
    waits(&j);
    CHECK((int32_t)(progress(0) - seq) < 0);
    OK(CALL(cuStreamEndCapture, s, &g));
    EVENTUALLY(progress(0) == seq);
    set_state(1, PSK_SLOT_RESIDENT);
    OK(end_job(&j));
    SYNC(NULL);
    OK(CALL(cuStreamDestroy_v2, s));
}

/* A context whose work is not over when it is destroyed: it is when the call returns. */
static void destroyed_at_work(void) {
    CUcontext c = make_context();
    uint64_t us = 20000;
    OK(CALL(cuLaunchKernel, function("spin"), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&us}, NULL));
    record *r = must_take();
    unsigned index = r->stream;
    uint32_t seq = (uint32_t)r->seq;
    CHECK((int32_t)(progress(index) - seq) < 0);
    OK(CALL(cuCtxDestroy_v2, c));
    CHECK_EQ(progress(index), seq);
    enter_context(context);
}

int main(void) {
    start();
    attach(PSK_MODE_OBSERVE);
    S->serve();
    base = managed(4 * 2 * MiB);
    OK(CALL(cuMemHostAlloc, &held, U64(64), 0));
    for (uint32_t i = 1; i <= 3; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT);
    uint64_t us = 0;
    OK(touch_add(NULL, at(1), 1, 0));
    OK(CALL(cuLaunchKernel, function("spin"), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&us}, NULL));
    SYNC(NULL);
    must_take(), must_take();
    clear_function("touch_add");
    set_mode(PSK_MODE_STRICT);
    alone();
    beside_a_capture();
    apart();
    set_mode(PSK_MODE_GATED); /* where functions that are looked up anew, as after the end of a context, ask for nothing */
    churn();
    green();
    destroyed_at_work();
    none_left();
    CHECK_EQ(S->dropped, 0);
    return 0;
}
