/* Strict mode: captured operations wait for nothing, a graph's launch for what its nodes name. */
#include "strict.h"

static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }

static CUgraphExec exec_of;
static CUresult launch(job *j) { return CALL(cuGraphLaunch, exec_of, j->s); }

static CUDA_KERNEL_NODE_PARAMS node_params(const char *name, void **params) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = function(name), 1, 1, 1, 1, 1, 1, 0, .kernelParams = params};
}

int main(void) {
    start();
    attach(PSK_MODE_OBSERVE);
    base = managed(20 * 2 * MiB);
    for (uint32_t i = 1; i <= 19; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT);
    own(PSK_SLOT_PLAIN, at(20), 2 * MiB, 0);
    OK(touch_add(NULL, at(1), 1, 0));
    SYNC(NULL);
    uint32_t id = must_take()->id;
    clear_function("touch_add");
    set_mode(PSK_MODE_STRICT);

    /* Capture: absent memory and a function that asks are passed by. */
    CUstream s = new_stream();
    CUgraph g;
    uint64_t launches = S->funcs[id].launches, seq = S->slot_last_seq[1];
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    for (uint32_t i = 1; i <= 3; i++) set_state(i, PSK_SLOT_ABSENT);
    S->funcs[id].inspect = PSK_INSPECT_ALWAYS;
    OK(touch_add(s, at(1) + 64, 1, 1));
    record *r = EXPECT(PSK_REC_LAUNCH, 1);
    CHECK_EQ(r->flags, PSK_FLAG_CAPTURED);
    CHECK_EQ(S->slot_last_seq[1], seq); /* from before: this does not run now */
    CHECK_EQ(S->funcs[id].launches, launches);
    OK(touch_add(s, at(20) + 4096, 1, 1));
    CHECK_EQ(must_take()->n, 0);
    OK(CALL(cuMemcpyDtoDAsync_v2, at(2), at(3) + 8, U64(4), s));
    CHECK_EQ(EXPECT(PSK_REC_COPY, 2, 3)->flags, PSK_FLAG_CAPTURED | PSK_FLAG_HAS_DST);
    OK(CALL(cuStreamEndCapture, s, &g));
    OK(CALL(cuGraphInstantiateWithFlags, &exec_of, g, U64(0)));
    none_left();

    /* Cleared: waits for its slots, one after the other, and does not ask. */
    clear_function("touch_add");
    job j = {.call = launch, .s = s};
    begin_job(&j);
    r = await();
    CHECK_EQ(r->kind, PSK_REC_GRAPH);
    CHECK_EQ(r->n, 3);
    CHECK_EQ(r->flags, PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    for (uint32_t i = 1; i <= 3; i++) {
        waits(&j);
        CHECK_EQ(word_at(at(20) + 4096), 0);
        set_state(4 - i, PSK_SLOT_RESIDENT);
    }
    OK(end_job(&j));
    SYNC(s);
    CHECK_EQ(word_at(at(20) + 4096), 1);
    CHECK_EQ(progress(r->stream), (uint32_t)r->seq);
    CHECK_EQ(S->grants_asked, 0);

    /* Not cleared: asks, with the exact addresses of all nodes. */
    for (uint32_t state = 0; state <= PSK_INSPECT_ALWAYS; state += PSK_INSPECT_ALWAYS) {
        S->funcs[id].inspect = state;
        begin_job(&j);
        r = await();
        CHECK_EQ(r->flags, PSK_FLAG_INSPECT | PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
        CHECK_EQ(S->inspect_seq, r->seq);
        CHECK_EQ(S->inspect_n, 4);
        CHECK(S->inspect_addr[0] == at(1) + 64 && S->inspect_addr[1] == at(20) + 4096 && S->inspect_addr[2] == at(2) && S->inspect_addr[3] == at(3) + 8);
        waits(&j);
        grant(r->seq);
        OK(end_job(&j));
        SYNC(s);
    }
    CHECK_EQ(S->grants_asked, 2);

    /* An update changes what is asked about: a node of another function. */
    CUgraphNode nodes[3];
    size_t n = 3;
    OK(CALL(cuGraphGetNodes, g, nodes, &n));
    CUdeviceptr p = at(5) + 16;
    uint64_t one = 1;
    uint32_t inc = 1;
    void *params[] = {&p, &one, &inc};
    CUDA_KERNEL_NODE_PARAMS kp = node_params("touch_add", params);
    OK(CALL(cuGraphExecKernelNodeSetParams_v2, exec_of, nodes[0], &kp));
    begin_job(&j);
    r = await();
    CHECK_EQ(r->n, 3);
    bool found = false;
    for (uint32_t i = 0; i < S->inspect_n; i++) found |= S->inspect_addr[i] == p;
    CHECK(found);
    grant(r->seq);
    OK(end_job(&j));

    /* A node that cannot be read: opaque, although all functions are cleared. */
    clear_function("touch_add");
    CUgraph og;
    CUgraphNode k;
    kp = node_params("opaque_add", params);
    OK(CALL(cuGraphCreate, &og, 0));
    OK(CALL(cuGraphAddKernelNode_v2, &k, og, NULL, U64(0), &kp));
    OK(CALL(cuGraphInstantiateWithFlags, &exec_of, og, U64(0)));
    clear_function("opaque_add");
    begin_job(&j);
    r = await();
    CHECK_EQ(r->flags, PSK_FLAG_OPAQUE | PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    waits(&j);
    grant(r->seq);
    OK(end_job(&j));
    SYNC(s);

    /* Addresses in one block are told apart: several allocations may lie in it. */
    CUdeviceptr v[3] = {at(20), at(20) + 4096, at(20) + 8192};
    void *three[] = {&v[0], &v[1], &v[2], &one};
    kp = node_params("vec_add", three);
    OK(CALL(cuGraphCreate, &og, 0));
    OK(CALL(cuGraphAddKernelNode_v2, &k, og, NULL, U64(0), &kp));
    OK(CALL(cuGraphInstantiateWithFlags, &exec_of, og, U64(0)));
    begin_job(&j);
    r = await();
    CHECK_EQ(r->n, 0);
    CHECK_EQ(S->inspect_n, 3);
    CHECK(S->inspect_addr[0] == v[0] && S->inspect_addr[1] == v[1] && S->inspect_addr[2] == v[2]);
    grant(r->seq);
    OK(end_job(&j));
    SYNC(s);

    /* A graph launched into a capture is captured. */
    OK(CALL(cuStreamBeginCapture, s));
    OK(launch(&j));
    CHECK_EQ(must_take()->flags, PSK_FLAG_CAPTURED);
    OK(CALL(cuStreamEndCapture, s, &g));
    none_left();
    return 0;
}
