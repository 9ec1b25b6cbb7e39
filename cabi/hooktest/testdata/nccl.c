/*
 * NCCL's calls in strict mode. argv[1]: how they are found; "linked" and "dlsym"
 * (of a handle) do the same, "local" is a user of NCCL loaded with RTLD_LOCAL.
 */
#include "strict.h"

static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }
static void *library;
static int *calls, *fake_result, *takes_handles;

static void indirect_add(const stub_launch *l) {
    struct {
        uint64_t a, b;
        void *s;
    } *w = (void *)STUB_PARAM(l, uint64_t, 0);
    if (w->a) ++*(uint32_t *)w->a;
    if (w->b && w->b != w->a) ++*(uint32_t *)w->b;
    free(w);
}

#ifdef LINKED
int ncclAllReduce(), ncclReduce(), ncclBroadcast(), ncclBcast(), ncclAllGather(), ncclReduceScatter(), ncclSend(), ncclRecv(), ncclAlltoAll(), ncclGather(), ncclScatter(), ncclPutSignal(), ncclLater(), ncclCommRegister(), ncclCommWindowRegister(), ncclRedOpCreatePreMulSum();
int ncclAllReduceConfig(), ncclReduceConfig(), ncclBroadcastConfig(), ncclAllGatherConfig(), ncclReduceScatterConfig(), ncclAlltoAllConfig(), ncclGatherConfig(), ncclScatterConfig();
int ncclGroupStart(void), ncclGroupEnd(void), ncclGroupSimulateEnd(void *);
#define NCCL(name) name
#else
#define NCCL(name) ((int (*)())dlsym(library, #name))
#endif

#define N U64(1)
static int all_reduce(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclAllReduce)(from, to, N, 0, 0, NULL, s); }
static int reduce(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclReduce)(from, to, N, 0, 0, 0, NULL, s); }
static int broadcast(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclBroadcast)(from, to, N, 0, 0, NULL, s); }
static int bcast(CUdeviceptr from, CUdeviceptr to, CUstream s) { return (void)from, NCCL(ncclBcast)(to, N, 0, 0, NULL, s); }
static int all_gather(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclAllGather)(from, to, N, 0, NULL, s); }
static int reduce_scatter(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclReduceScatter)(from, to, N, 0, 0, NULL, s); }
static int send_to(CUdeviceptr from, CUdeviceptr to, CUstream s) { return (void)from, NCCL(ncclSend)(to, N, 0, 0, NULL, s); }
static int recv_from(CUdeviceptr from, CUdeviceptr to, CUstream s) { return (void)from, NCCL(ncclRecv)(to, N, 0, 0, NULL, s); }
static int all_to_all(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclAlltoAll)(from, to, N, 0, NULL, s); }
static int gather(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclGather)(from, to, N, 0, 0, NULL, s); }
static int scatter(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclScatter)(from, to, N, 0, 0, NULL, s); }
static int put_signal(CUdeviceptr from, CUdeviceptr to, CUstream s) { return (void)from, NCCL(ncclPutSignal)(to, N, 0, 0, NULL, U64(0), 0, 0, 0, NULL, s); }
static int all_reduce_c(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclAllReduceConfig)(from, to, N, 0, 0, NULL, s, NULL); }
static int reduce_c(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclReduceConfig)(from, to, N, 0, 0, 0, NULL, s, NULL); }
static int broadcast_c(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclBroadcastConfig)(from, to, N, 0, 0, NULL, s, NULL); }
static int all_gather_c(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclAllGatherConfig)(from, to, N, 0, NULL, s, NULL); }
static int reduce_scatter_c(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclReduceScatterConfig)(from, to, N, 0, 0, NULL, s, NULL); }
static int all_to_all_c(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclAlltoAllConfig)(from, to, N, 0, NULL, s, NULL); }
static int gather_c(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclGatherConfig)(from, to, N, 0, 0, NULL, s, NULL); }
static int scatter_c(CUdeviceptr from, CUdeviceptr to, CUstream s) { return NCCL(ncclScatterConfig)(from, to, N, 0, 0, NULL, s, NULL); }

static const struct {
    int (*call)(CUdeviceptr, CUdeviceptr, CUstream);
    uint32_t id;
    bool two;
} collectives[] = {
    {all_reduce, PSK_NCCL_ALL_REDUCE, true}, {reduce, PSK_NCCL_REDUCE, true}, {broadcast, PSK_NCCL_BROADCAST, true}, {bcast, PSK_NCCL_BCAST, false},
    {all_gather, PSK_NCCL_ALL_GATHER, true}, {reduce_scatter, PSK_NCCL_REDUCE_SCATTER, true}, {send_to, PSK_NCCL_SEND, false}, {recv_from, PSK_NCCL_RECV, false},
    {all_to_all, PSK_NCCL_ALL_TO_ALL, true}, {gather, PSK_NCCL_GATHER, true}, {scatter, PSK_NCCL_SCATTER, true}, {put_signal, PSK_NCCL_PUT, false},
    {all_reduce_c, PSK_NCCL_ALL_REDUCE, true}, {reduce_c, PSK_NCCL_REDUCE, true}, {broadcast_c, PSK_NCCL_BROADCAST, true}, {all_gather_c, PSK_NCCL_ALL_GATHER, true},
    {reduce_scatter_c, PSK_NCCL_REDUCE_SCATTER, true}, {all_to_all_c, PSK_NCCL_ALL_TO_ALL, true}, {gather_c, PSK_NCCL_GATHER, true}, {scatter_c, PSK_NCCL_SCATTER, true},
};
enum { COLLECTIVES = sizeof collectives / sizeof collectives[0] };
static int which;
static CUresult collective(job *j) { return collectives[which].call(at(1), at(2), j->s); }

/* Each alone: names its buffers, destination first, and waits for them before NCCL is called. */
static void alone(void) {
    CUstream s = new_stream();
    for (which = 0; which < COLLECTIVES; which++) {
        set_state(2, PSK_SLOT_ABSENT);
        uint32_t before = word_at(at(2));
        int called = *calls;
        job j = {.call = collective, .s = s};
        begin_job(&j);
        record *r = await();
        CHECK_EQ(r->kind, PSK_REC_COLLECTIVE);
        CHECK_EQ(r->id, collectives[which].id);
        CHECK_EQ(r->flags, PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
        CHECK_EQ(r->n, collectives[which].two ? 2 : 1);
        CHECK_EQ(r->slots[0], 2);
        waits(&j);
        CHECK_EQ(*calls, called);
        set_state(2, PSK_SLOT_RESIDENT);
        OK(end_job(&j));
        CHECK_EQ(*calls, called + 1);
        none_left(); /* NCCL's own launch is no record, nor a call within a call */
        SYNC(s);
        CHECK_EQ(word_at(at(2)), before + 1);
        CHECK_EQ(progress(r->stream), (uint32_t)r->seq);
    }
    /* What NCCL answers passes; a failed engine refuses. */
    *fake_result = 3;
    CHECK_EQ(all_reduce(at(1), at(2), s), 3);
    must_take();
    *fake_result = 0;
    set_state(2, PSK_SLOT_ABSENT);
    refuse(CUDA_ERROR_ILLEGAL_STATE);
    int called = *calls;
    CHECK_EQ(all_reduce(at(1), at(2), s), 1);
    CHECK_EQ(*calls, called);
    must_take();
    refuse(0);
    set_state(2, PSK_SLOT_RESIDENT);
    SYNC(s);
}

/* A group: nothing is recorded or waited for before its end; then there is one operation a stream, all before the real end. */
static CUstream streams[2];
static CUresult group(job *j) {
    (void)j;
    OK(NCCL(ncclGroupStart)());
    OK(NCCL(ncclGroupStart)());
    OK(all_reduce(at(3), at(4), streams[1]));
    OK(send_to(0, at(5), streams[0]));
    OK(NCCL(ncclGroupEnd)());
    OK(recv_from(0, at(6), streams[0]));
    OK(all_reduce(at(3), at(7), streams[1]));
    atomic_store((atomic_int *)j->host, 1);
    return NCCL(ncclGroupEnd)();
}
static void grouped(void) {
    for (int i = 0; i < 2; i++) streams[i] = new_stream();
    OK(touch_add(streams[0], at(1), 1, 0)); /* has the lower index */
    OK(touch_add(streams[1], at(1), 1, 0));
    unsigned index[2];
    for (int i = 0; i < 2; i++) index[i] = must_take()->stream;
    CHECK(index[0] < index[1]);
    uint32_t before[8];
    for (int i = 3; i <= 7; i++) before[i] = word_at(at(i)), set_state((uint32_t)i, PSK_SLOT_ABSENT);
    atomic_int at_end = 0;
    job j = {.call = group, .host = &at_end};
    begin_job(&j);
    EVENTUALLY(at_end); /* not waited for in between */
    record *r = await();
    CHECK_EQ(r->kind, PSK_REC_COLLECTIVE);
    CHECK_EQ(r->id, PSK_NCCL_GROUP);
    CHECK_EQ(r->stream, index[0]);
    CHECK(r->n == 2 && r->slots[0] + r->slots[1] == 11);
    set_state(5, PSK_SLOT_RESIDENT);
    waits(&j);
    none_left();
    set_state(6, PSK_SLOT_RESIDENT);
    r = await();
    CHECK_EQ(r->stream, index[1]);
    CHECK_EQ(r->n, 3);
    uint32_t seq = (uint32_t)r->seq;
    for (uint32_t i = 3; i <= 7; i++) {
        waits(&j);
        for (int k = 3; k <= 7; k++) CHECK_EQ(word_at(at(k)), before[k]); /* nothing of it runs before all of it may */
        set_state(i, PSK_SLOT_RESIDENT);
    }
    OK(end_job(&j));
    SYNC(streams[0]);
    SYNC(streams[1]);
    CHECK_EQ(word_at(at(3)), before[3] + 2);
    for (int i = 4; i <= 7; i++) CHECK_EQ(word_at(at(i)), before[i] + 1);
    CHECK_EQ(progress(index[1]), seq);
    none_left();

    /* A group that is refused calls nothing; the next one is whole again. */
    set_state(4, PSK_SLOT_ABSENT);
    refuse(CUDA_ERROR_ILLEGAL_STATE);
    CHECK_EQ(group(&j), 1);
    refuse(0);
    set_state(4, PSK_SLOT_RESIDENT);
    static record rest;
    while (take(&rest)) {
    }
    /* NCCL is still in its group then; a job that got an error ends. Here it goes on. */
    OK(((int (*)(void *))dlsym(library, "ncclGroupSimulateEnd"))(NULL));

    /* One that is only simulated is forgotten, and an end without a start is NCCL's to refuse. */
    OK(NCCL(ncclGroupStart)());
    OK(all_reduce(at(3), at(4), streams[0]));
    OK(NCCL(ncclGroupSimulateEnd)(NULL));
    CHECK_EQ(NCCL(ncclGroupEnd)(), 5);
    none_left();
    OK(all_reduce(at(3), at(4), streams[0]));
    CHECK_EQ(must_take()->id, PSK_NCCL_ALL_REDUCE);
    SYNC(streams[0]);
}

/* A call in a group that is in no table: its kernels are known by what they name. On a stream that no listed call
 * of the group has, nothing would report that they are done, so what they name stays. */
static CUstream listed;
static CUresult mixed(job *j) {
    OK(NCCL(ncclGroupStart)());
    OK(all_reduce(at(3), at(4), listed));
    OK(NCCL(ncclLater)(at(5), at(6), j->s));
    return NCCL(ncclGroupEnd)();
}
static void unlisted(void) {
    listed = new_stream();
    CUstream other = new_stream();
    for (int apart = 0; apart < 2; apart++) {
        uint32_t before[7];
        for (int i = 3; i <= 6; i++) before[i] = word_at(at(i));
        set_state(5, PSK_SLOT_ABSENT), set_state(6, PSK_SLOT_ABSENT);
        job j = {.call = mixed, .s = apart ? other : listed};
        begin_job(&j);
        record *r = await();
        CHECK_EQ(r->id, PSK_NCCL_GROUP);
        uint32_t stream = r->stream, outer = (uint32_t)r->seq;
        for (uint32_t slot = 5; slot <= 6; slot++) {
            r = await();
            CHECK_EQ(r->kind, PSK_REC_LAUNCH);
            CHECK(r->n == 1 && r->slots[0] == slot);
            CHECK_EQ(r->stream, stream);
            CHECK_EQ(r->flags & PSK_FLAG_KEEP, apart ? PSK_FLAG_KEEP : 0);
            waits(&j);
            CHECK((int32_t)(progress(stream) - outer) < 0); /* not even the listed one is done */
            CHECK_EQ(word_at(at((int)slot)), before[slot]);
            set_state(slot, PSK_SLOT_RESIDENT);
        }
        OK(end_job(&j));
        SYNC(listed), SYNC(other);
        for (int i = 3; i <= 6; i++) CHECK_EQ(word_at(at(i)), before[i] + 1);
        CHECK_EQ(progress(stream), (uint32_t)r->seq); /* all of them, by one report */
        none_left();
    }
    /* The engine fails meanwhile: the kernel is not launched. */
    set_state(5, PSK_SLOT_ABSENT);
    uint32_t before = word_at(at(5));
    job j = {.call = mixed, .s = listed};
    begin_job(&j);
    await(), await();
    waits(&j);
    refuse(CUDA_ERROR_ILLEGAL_STATE);
    end_job(&j); /* what NCCL makes of it: the stand-in nothing */
    refuse(0);
    set_state(5, PSK_SLOT_RESIDENT);
    static record rest;
    while (take(&rest)) {
    }
    SYNC(listed);
    CHECK_EQ(word_at(at(5)), before);
}

/* A handle that is taken inside a call: such memory stays. Also in a capture, which locks nothing and so asks. */
static CUresult with_handle(job *j) { return all_reduce(at(1), at(2), j->s); }
static void handles(void) {
    CUstream s = new_stream();
    *takes_handles = 6 * 2 * MiB; /* from the first: slot 7 */
    set_state(7, PSK_SLOT_ABSENT);
    job j = {.call = with_handle, .s = s};
    begin_job(&j);
    record *r = await();
    CHECK_EQ(r->kind, PSK_REC_COLLECTIVE);
    uint32_t outer = (uint32_t)r->seq, stream = r->stream;
    r = await();
    CHECK_EQ(r->kind, PSK_REC_STAY);
    CHECK(r->n == 1 && r->slots[0] == 7 && r->flags & PSK_FLAG_KEEP);
    waits(&j);
    CHECK_EQ(r->stream, stream);
    CHECK((int32_t)(progress(stream) - outer) < 0);
    set_arriving(7, 5);
    waits(&j); /* others may use it at once */
    arrive(5);
    OK(end_job(&j));
    set_state(7, PSK_SLOT_RESIDENT);
    SYNC(s);
    CUgraph g;
    OK(CALL(cuStreamBeginCapture_v2, s, 2));
    begin_job(&j);
    r = await();
    CHECK_EQ(r->flags, PSK_FLAG_CAPTURED);
    r = await();
    CHECK_EQ(r->kind, PSK_REC_STAY);
    waits(&j);
    grant(r->seq);
    OK(end_job(&j));
    OK(CALL(cuStreamEndCapture, s, &g));
    *takes_handles = 0;
    none_left();
}

/* Registered memory stays, all that is in the range. */
static CUresult do_register(job *j) { return NCCL(ncclCommRegister)(NULL, at(3) + 64, j->bytes, NULL); }
static CUresult do_window(job *j) { return NCCL(ncclCommWindowRegister)(NULL, at(3) + 64, j->bytes, NULL, 0); }
static CUresult do_scalar(job *j) { return (void)j, NCCL(ncclRedOpCreatePreMulSum)(NULL, at(3) + 64, 7, 0, NULL); }
static void registrations(void) {
    CUresult (*const forms[])(job *) = {do_register, do_window, do_scalar};
    for (int i = 0; i < 3; i++) {
        int called = *calls;
        job j = {.call = forms[i], .bytes = 2 * MiB};
        begin_job(&j);
        for (uint32_t slot = 3; slot <= (i == 2 ? 3u : 4u); slot++) {
            record *r = await();
            CHECK_EQ(r->kind, PSK_REC_STAY);
            CHECK(r->n == 1 && r->slots[0] == slot && r->flags & PSK_FLAG_KEEP);
            waits(&j);
            CHECK_EQ(*calls, called);
            grant(r->seq);
        }
        OK(end_job(&j));
        CHECK_EQ(*calls, called + 1);
    }
    OK(NCCL(ncclRedOpCreatePreMulSum)(NULL, at(3), 7, 1, NULL)); /* of the host */
    none_left();
}

/* Streams that share an index: all of them are done when the group's end returns, whichever is slow. */
static CUresult pair(job *j) {
    (void)j;
    OK(NCCL(ncclGroupStart)());
    OK(send_to(0, at(8), streams[0]));
    OK(send_to(0, at(9), streams[1]));
    return NCCL(ncclGroupEnd)();
}
static void crowded(void) {
    static CUstream many[300];
    for (int i = 0; i < 300; i++) {
        many[i] = new_stream();
        OK(touch_add(many[i], at(1), 1, 0));
        must_take();
    }
    uint32_t *held;
    OK(CALL(cuMemHostAlloc, &held, U64(64), 0));
    for (int slow = 0; slow < 2; slow++) {
        for (int i = 0; i < 2; i++) streams[i] = many[298 + i];
        uint32_t before = word_at(at(8)), before9 = word_at(at(9));
        hold(streams[slow], held);
        job j = {.call = pair};
        begin_job(&j);
        record *r = await();
        CHECK_EQ(r->stream, PSK_MAX_STREAMS - 1);
        CHECK_EQ(r->n, 2);
        waits(&j);
        release(held);
        OK(end_job(&j));
        CHECK_EQ(word_at(at(8)), before + 1);
        CHECK_EQ(word_at(at(9)), before9 + 1);
        CHECK_EQ(progress(PSK_MAX_STREAMS - 1), (uint32_t)r->seq);
    }
}

/* Other modes, and captures. */
static void elsewhere(void) {
    CUstream s = new_stream();
    set_mode(PSK_MODE_OBSERVE);
    OK(all_reduce(at(1), at(2), s));
    CHECK_EQ(must_take()->kind, PSK_REC_LAUNCH); /* NCCL's own */
    set_mode(PSK_MODE_STRICT);
    set_state(2, PSK_SLOT_ABSENT);
    CUgraph g;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    OK(all_reduce(at(1), at(2), s));
    CHECK_EQ(must_take()->flags, PSK_FLAG_CAPTURED);
    OK(CALL(cuStreamEndCapture, s, &g));
    set_state(2, PSK_SLOT_RESIDENT);
}

static int (*user_all_reduce)(CUdeviceptr, CUstream);
static CUresult by_user(job *j) { return user_all_reduce(at(2), j->s); }
static void local(void) {
    void *user = dlopen("libuses_nccl.so", RTLD_NOW | RTLD_LOCAL);
    if (!user) fprintf(stderr, "%s\n", dlerror());
    CHECK(user && (user_all_reduce = (int (*)(CUdeviceptr, CUstream))dlsym(user, "user_all_reduce")));
    set_state(2, PSK_SLOT_ABSENT);
    job j = {.call = by_user};
    begin_job(&j);
    CHECK_EQ(await()->kind, PSK_REC_COLLECTIVE);
    waits(&j);
    set_state(2, PSK_SLOT_RESIDENT);
    OK(end_job(&j));
    SYNC(NULL);
    CHECK_EQ(word_at(at(2)), 1);
    CHECK(!dlsym(RTLD_DEFAULT, "ncclSend")); /* in nobody's global scope, and so not found: the hook's own does not count */
}

/* A communicator that launches later ends the job, once and for all, and says why. */
static void non_blocking(void) {
    *fake_result = 7;
    CHECK_EQ(all_reduce(at(1), at(2), NULL), 1);
    CHECK_EQ(S->refuse, CUDA_ERROR_NOT_SUPPORTED);
    *fake_result = 0;
    set_state(1, PSK_SLOT_ABSENT);
    CHECK_EQ(all_reduce(at(1), at(2), NULL), 1); /* does not wait for what would never come */
    while (S->head != S->tail) must_take();
    SYNC(NULL);
}

int main(int argc, char **argv) {
    start();
    attach(PSK_MODE_OBSERVE);
    base = managed(10 * 2 * MiB);
    for (uint32_t i = 1; i <= 10; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT);
    ((void (*)(const char *, stub_kernel_fn, void *, unsigned, const size_t *))driver("stub_register_kernel"))("indirect_add", indirect_add, NULL, 1, (const size_t[]){8});
    OK(touch_add(NULL, at(1), 1, 0));
    SYNC(NULL);
    must_take();
    clear_function("touch_add");
    set_mode(PSK_MODE_STRICT);
    if (!strcmp(argv[1], "local")) {
        local();
        return 0;
    }
    library = dlopen("libnccl.so.2", RTLD_NOW);
    CHECK(library);
    calls = dlsym(library, "fake_nccl_calls");
    fake_result = dlsym(library, "fake_nccl_result");
    takes_handles = dlsym(library, "fake_nccl_takes_handles");
    alone();
    grouped();
    unlisted();
    handles();
    registrations();
    elsewhere();
    crowded();
    none_left();
    if (argc > 2) non_blocking();
    return 0;
}
