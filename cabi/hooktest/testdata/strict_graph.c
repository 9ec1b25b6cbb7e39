/* Strict mode: captured operations wait for nothing, a graph's launch for what its nodes name. */
#include "strict.h"

static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }

static CUgraphExec exec_of;
static CUresult launch(job *j) { return CALL(cuGraphLaunch, exec_of, j->s); }

static CUDA_KERNEL_NODE_PARAMS node_params(const char *name, void **params) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = function(name), 1, 1, 1, 1, 1, 1, 0, .kernelParams = params};
}

static CUgraphExec instantiated(CUgraph g, unsigned long long flags) {
    CUgraphExec e;
    OK(CALL(cuGraphInstantiateWithFlags, &e, g, U64(flags)));
    return e;
}

/* Launched, and granted when it asks. */
static record *granted(job *j) {
    begin_job(j);
    record *r = await();
    if (r->flags & (PSK_FLAG_OPAQUE | PSK_FLAG_INSPECT)) grant(r->seq);
    OK(end_job(j));
    SYNC(j->s);
    return r;
}

/* Nodes of types that are not known: nothing can be said of them. */
static void node_types(CUstream s) {
    job j = {.call = launch, .s = s};
    void (*tell)(CUgraphNode, int) = (void (*)(CUgraphNode, int))driver("stub_tell_type");
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = at(6), .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = at(7), .WidthInBytes = 8, .Height = 1, .Depth = 1};
    CUgraph g;
    CUgraphNode n;
    OK(CALL(cuGraphCreate, &g, 0));
    OK(CALL(cuGraphAddMemcpyNode, &n, g, NULL, U64(0), &c, NULL));
    for (int type = CU_GRAPH_NODE_TYPE_CONDITIONAL; type < 30; type++) {
        tell(n, type);
        exec_of = instantiated(g, 0);
        record *r = granted(&j);
        if (type != CU_GRAPH_NODE_TYPE_MEMCPY_BATCH) {
            CHECK_EQ(r->flags & PSK_FLAG_OPAQUE, PSK_FLAG_OPAQUE);
            continue;
        }
        CHECK_EQ(r->flags & PSK_FLAG_OPAQUE, 0);
        CHECK(r->n == 2 && r->slots[0] == 7 && r->slots[1] == 6);
        /* Another batch, and then what cannot be read. */
        CUdeviceptr dst = at(9), src = at(8);
        size_t bytes = 8;
        CUgraphNodeParams p = {.type = type, .memcpyBatch = {.count = 1, .dsts = &dst, .srcs = &src, .sizes = &bytes}};
        OK(CALL(cuGraphExecNodeSetParams, exec_of, n, &p));
        r = granted(&j);
        CHECK(r->n == 2 && r->slots[0] == 9 && r->slots[1] == 8);
        p.type = CU_GRAPH_NODE_TYPE_HOST;
        OK(CALL(cuGraphExecNodeSetParams, exec_of, n, &p));
        CHECK_EQ(granted(&j)->flags & PSK_FLAG_OPAQUE, 0);
        p.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
        OK(CALL(cuGraphExecNodeSetParams, exec_of, n, &p));
        CHECK_EQ(granted(&j)->flags & PSK_FLAG_OPAQUE, PSK_FLAG_OPAQUE);
    }
    for (int type = CU_GRAPH_NODE_TYPE_EMPTY; type <= CU_GRAPH_NODE_TYPE_MEM_FREE; type++) {
        tell(n, type);
        exec_of = instantiated(g, 0);
        record *r = granted(&j);
        CHECK(r->n == 0 && !(r->flags & PSK_FLAG_OPAQUE));
    }
}

/* Addresses that a graph copies to memory that nobody names are kept at each launch, and nothing else of the graph is. */
static void kept(CUstream s) {
    job j = {.call = launch, .s = s};
    CUdeviceptr global;
    uint64_t table[3] = {1, at(4) + 8, 2};
    CUgraph g;
    OK(CALL(cuMemAlloc_v2, &global, U64(4096)));
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    OK(CALL(cuMemcpyHtoDAsync_v2, global, table, U64(sizeof table), s));
    OK(CALL(cuMemcpyHtoDAsync_v2, at(5), table, U64(sizeof table), s));
    OK(CALL(cuStreamEndCapture, s, &g));
    must_take(), must_take();
    exec_of = instantiated(g, 0);
    for (int slot = 4; slot <= 6; slot += 2) {
        table[1] = at(slot) + 8;
        set_state((uint32_t)slot, PSK_SLOT_ABSENT);
        begin_job(&j);
        record *r = await();
        CHECK_EQ(r->kind, PSK_REC_COPY);
        CHECK(r->flags & PSK_FLAG_KEEP);
        CHECK(r->n == 1 && r->slots[0] == (uint32_t)slot);
        waits(&j);
        none_left();
        set_state((uint32_t)slot, PSK_SLOT_RESIDENT);
        OK(end_job(&j));
        r = must_take();
        CHECK(r->kind == PSK_REC_GRAPH && !(r->flags & PSK_FLAG_KEEP));
        CHECK_EQ(r->n, 2);
        SYNC(s);
    }
    table[1] = 3; /* no address: there is nothing to keep */
    CHECK_EQ(granted(&j)->kind, PSK_REC_GRAPH);
    OK(CALL(cuMemFree_v2, global));
}

static CUresult copy_captured(job *j) { return CALL(cuMemcpyDtoDAsync_v2, at(2), at(3) + 8, U64(4), j->s); }

/* A call at whose addresses the driver looks: what lies there is on the device while it does, and then free to leave. */
static void held(job *j, uint32_t first, uint32_t last) {
    begin_job(j);
    record *r = await();
    CHECK(r->kind == PSK_REC_STAY && !r->flags && r->n == last - first + 1);
    for (uint32_t i = first; i <= last; i++) {
        CHECK_EQ(r->slots[i - first], i);
        waits(j);
        set_state(i, PSK_SLOT_RESIDENT);
    }
    OK(end_job(j));
    CHECK_EQ(S->progress[r->stream * 16], (uint32_t)r->seq);
    none_left();
}

/* Of a fill the driver looks at them when its graph is instantiated. */
static CUgraph with_fill;
static CUresult instantiate(job *j) { return (void)j, CALL(cuGraphInstantiateWithFlags, &exec_of, with_fill, U64(0)); }
static void fills(CUstream s) {
    set_state(4, PSK_SLOT_ABSENT);
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    OK(CALL(cuMemsetD32Async, at(4) + 8, 7u, U64(4), s));
    CHECK_EQ(EXPECT(PSK_REC_COPY, 4)->flags, PSK_FLAG_CAPTURED | PSK_FLAG_HAS_DST);
    OK(CALL(cuStreamEndCapture, s, &with_fill));
    job j = {.call = instantiate};
    held(&j, 4, 4);
}

/* What a graph names that the device launches stays, from the instantiation on. */
static CUgraph to_instantiate;
static CUresult for_device(job *j) {
    CUDA_GRAPH_INSTANTIATE_PARAMS p = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH};
    return j->bytes ? CALL(cuGraphInstantiateWithParams, &exec_of, to_instantiate, &p) : CALL(cuGraphInstantiateWithFlags, &exec_of, to_instantiate, U64(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
}
static CUgraphNode to_set;
static CUresult set_fill(job *j) {
    CUDA_MEMSET_NODE_PARAMS p = {.dst = j->p, .elementSize = 4, .width = 4, .height = 1};
    return CALL(cuGraphExecMemsetNodeSetParams, exec_of, to_set, &p, NULL);
}
static CUresult update(job *j) {
    CUgraphExecUpdateResultInfo info;
    return (void)j, CALL(cuGraphExecUpdate_v2, exec_of, to_instantiate, &info);
}
static void by_device(void) {
    CUDA_MEMSET_NODE_PARAMS p[2] = {{.dst = at(10) + 4, .elementSize = 4, .width = 4, .height = 1}, {.dst = at(11), .elementSize = 4, .width = 4, .height = 1}};
    CUgraph g, other;
    CUgraphNode n;
    OK(CALL(cuGraphCreate, &g, 0));
    OK(CALL(cuGraphCreate, &other, 0));
    OK(CALL(cuGraphAddMemsetNode, &to_set, g, NULL, U64(0), &p[0], NULL));
    OK(CALL(cuGraphAddMemsetNode, &n, other, NULL, U64(0), &p[1], NULL));
    to_instantiate = g;
    const struct {
        job j;
        uint32_t slot;
        CUgraph g;
    } steps[] = {{{.call = for_device}, 10, g}, {{.call = for_device, .bytes = 1}, 10, g}, {{.call = set_fill, .p = at(12)}, 12, g}, {{.call = update}, 11, other}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        job j = steps[i].j;
        to_instantiate = steps[i].g;
        begin_job(&j);
        record *r = await();
        if (j.call == for_device) { /* its fill, which the driver looks at */
            CHECK(r->kind == PSK_REC_STAY && !(r->flags & PSK_FLAG_KEEP) && r->n == 1 && r->slots[0] == 10);
            r = await();
        }
        CHECK_EQ(r->kind, PSK_REC_STAY);
        CHECK(r->flags & PSK_FLAG_KEEP);
        CHECK(r->n == 1 && r->slots[0] == steps[i].slot);
        waits(&j);
        grant(r->seq);
        OK(end_job(&j));
    }
    set_state(10, PSK_SLOT_ABSENT);
    with_fill = g;
    job j = {.call = instantiate};
    held(&j, 10, 10);
}

/* A kernel node that the device may update: of its parameters those that were read say nothing. */
static void updatable(CUstream s) {
    job j = {.call = launch, .s = s};
    CUdeviceptr p = at(3);
    uint64_t one = 1;
    uint32_t inc = 0;
    void *params[] = {&p, &one, &inc};
    CUDA_KERNEL_NODE_PARAMS kp = node_params("touch_add", params);
    CUlaunchAttributeValue yes = {.deviceUpdatable = 1};
    CUgraph g;
    CUgraphNode n;
    OK(CALL(cuGraphCreate, &g, 0));
    OK(CALL(cuGraphAddKernelNode_v2, &n, g, NULL, U64(0), &kp));
    exec_of = instantiated(g, 0);
    CHECK_EQ(granted(&j)->flags & PSK_FLAG_OPAQUE, 0);
    OK(CALL(cuGraphKernelNodeSetAttribute, n, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &yes));
    exec_of = instantiated(g, 0);
    CHECK_EQ(granted(&j)->flags & PSK_FLAG_OPAQUE, PSK_FLAG_OPAQUE);
    OK(CALL(cuGraphExecKernelNodeSetParams_v2, exec_of, n, &kp));
    CHECK_EQ(granted(&j)->flags & PSK_FLAG_OPAQUE, PSK_FLAG_OPAQUE);
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
    job copy = {.call = copy_captured, .s = s};
    held(&copy, 2, 3);
    OK(CALL(cuStreamEndCapture, s, &g));
    for (uint32_t i = 2; i <= 3; i++) set_state(i, PSK_SLOT_ABSENT);
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

    /* Where the function is not known, as a graph, too: no more after two, but now and then, and each time where any graph's
     * search has found addresses. */
    S->funcs[id].inspect = PSK_INSPECT_NEW;
    for (int launches = 4; launches < 70; launches++) { /* since it was instantiated */
        S->graphs_chase = launches == 7;
        r = granted(&j);
        CHECK_EQ(!!(r->flags & PSK_FLAG_INSPECT), launches == 7 || launches == 64);
    }

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

    fills(s);
    node_types(s);
    kept(s);
    by_device();
    updatable(s);
    none_left();
    return 0;
}
