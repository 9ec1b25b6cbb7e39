/* Graphs: captured launches, what a graph launch names, and how it follows changes. */
#include "engine.h"

static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }
static uint64_t count(const char *name) { return ((uint64_t(*)(const char *))driver("stub_count"))(name); }

static CUDA_KERNEL_NODE_PARAMS node_params(void **params) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = function("touch_add"), 1, 1, 1, 1, 1, 1, 0, .kernelParams = params};
}

static void capture(CUgraphExec *exec, CUgraph *graph) {
    CUstream s = new_stream(), joined = new_stream(), other = new_stream();
    CUevent fork, join;
    OK(CALL(cuEventCreate, &fork, 0));
    OK(CALL(cuEventCreate, &join, 0));
    uint64_t waits = count("wait_values"), writes = count("write_values");

    OK(CALL(cuStreamBeginCapture_v2, s, 2)); /* relaxed: this thread waits for another stream meanwhile */
    set_state(1, PSK_SLOT_ABSENT); /* captured: neither gated nor waited for */
    OK(touch_add(s, at(1), 8, 1));
    record *r = EXPECT(PSK_REC_LAUNCH, 1);
    CHECK_EQ(r->flags, PSK_FLAG_CAPTURED);
    CHECK_EQ(S->slot_last_seq[1], 0); /* it does not run now */
    OK(CALL(cuMemsetD32Async, at(2), 5, U64(8), s));
    CHECK_EQ(EXPECT(PSK_REC_COPY, 2)->flags, PSK_FLAG_CAPTURED | PSK_FLAG_HAS_DST);
    /* A stream that joins the capture is captured as well, one beside it is not. */
    OK(CALL(cuEventRecord, fork, s));
    OK(CALL(cuStreamWaitEvent, joined, fork, 0));
    OK(touch_add(joined, at(3), 8, 1));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 3)->flags, PSK_FLAG_CAPTURED);
    OK(touch_add(other, at(4), 8, 1));
    r = EXPECT(PSK_REC_LAUNCH, 4);
    CHECK_EQ(r->flags & ~PSK_FLAG_PROGRESS, 0);
    SYNC(other);
    CHECK_EQ(word_at(at(4)), 1);
    OK(CALL(cuEventRecord, join, joined));
    OK(CALL(cuStreamWaitEvent, s, join, 0));
    OK(CALL(cuMemcpyDtoDAsync_v2, at(6), at(5), U64(4), s));
    CHECK_EQ(EXPECT(PSK_REC_COPY, 6, 5)->flags, PSK_FLAG_CAPTURED | PSK_FLAG_HAS_DST);
    OK(CALL(cuStreamEndCapture, s, graph));
    CHECK_EQ(count("wait_values"), waits);
    CHECK_EQ(count("write_values"), writes);
    CHECK_EQ(word_at(at(1)), 0); /* nothing ran */

    set_state(1, PSK_SLOT_RESIDENT);
    OK(CALL(cuGraphInstantiateWithFlags, exec, *graph, U64(0)));
    OK(CALL(cuGraphLaunch, *exec, s));
    r = EXPECT(PSK_REC_GRAPH, 1, 2, 3, 6, 5);
    CHECK_EQ(r->flags & ~PSK_FLAG_PROGRESS, 0);
    CHECK_EQ(S->slot_last_seq[1], r->seq);
    uint32_t id = r->id;
    SYNC(s);
    CHECK_EQ(word_at(at(1)), 1);
    CHECK_EQ(word_at(at(2)), 5);
    OK(CALL(cuGraphLaunch_ptsz, *exec, NULL));
    r = EXPECT(PSK_REC_GRAPH, 1, 2, 3, 6, 5);
    CHECK(r->id == id && r->stream != 0);
    SYNC(CU_STREAM_PER_THREAD);
    /* After the capture the stream launches as before: not captured. */
    OK(touch_add(s, at(1), 8, 1));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1)->flags & ~PSK_FLAG_PROGRESS, 0);
    SYNC(s);
    /* A freed allocation is no longer named; another one behind the same address is. */
    set_state(3, PSK_SLOT_FREE);
    own(33, at(5), 2 * MiB, PSK_SLOT_RESIDENT);
    OK(CALL(cuGraphLaunch, *exec, s));
    EXPECT(PSK_REC_GRAPH, 1, 2, 6, 33);
    SYNC(s);
    set_state(3, PSK_SLOT_RESIDENT);
    own(5, at(5), 2 * MiB, PSK_SLOT_RESIDENT);
    /* A graph launched into a capture is captured. */
    CUgraph outer;
    OK(CALL(cuStreamBeginCapture, s));
    OK(CALL(cuGraphLaunch, *exec, s));
    CHECK_EQ(must_take()->flags, PSK_FLAG_CAPTURED);
    OK(CALL(cuStreamEndCapture, s, &outer));
    CUgraphExec outer_exec;
    OK(CALL(cuGraphInstantiate_v2, &outer_exec, outer, NULL, NULL, U64(0)));
    OK(CALL(cuGraphLaunch, outer_exec, s));
    EXPECT(PSK_REC_GRAPH, 1, 2, 3, 6, 5); /* through its child */
    SYNC(s);
    OK(CALL(cuGraphExecDestroy, outer_exec));
}

/* Other ways to begin a capture. */
static void other_captures(void) {
    CUstream s = new_stream();
    CUgraph g;
    OK(CALL(cuGraphCreate, &g, 0));
    for (int way = 0; way < 4; way++) {
        switch (way) {
        case 0: OK(CALL(cuStreamBeginCaptureToGraph, s, g, NULL, NULL, U64(0), 0)); break;
        case 1: OK(CALL(cuStreamBeginRecaptureToGraph, s, 0, g, NULL, NULL)); break;
        case 2: OK(CALL(cuStreamBeginRecaptureToGraph_ptsz, s, 0, g, NULL, NULL)); break;
        case 3: OK(CALL(cuStreamBeginCaptureToCig, s, NULL)); break;
        }
        OK(touch_add(s, at(1), 8, 1));
        CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1)->flags, PSK_FLAG_CAPTURED);
        if (way == 3)
            OK(CALL(cuStreamEndCaptureToCig, s));
        else
            OK(CALL(cuStreamEndCapture, s, &g));
        OK(touch_add(s, at(1), 8, 1));
        CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1)->flags & ~PSK_FLAG_PROGRESS, 0);
        SYNC(s);
    }
}

static void gated(CUgraphExec exec) {
    CUstream s = new_stream();
    set_state(6, PSK_SLOT_ABSENT);
    uint32_t before = word_at(at(1));
    OK(CALL(cuGraphLaunch, exec, s));
    record *r = must_take();
    CHECK_EQ(r->flags, PSK_FLAG_GATED | PSK_FLAG_PROGRESS);
    uint32_t seq = (uint32_t)r->seq;
    unsigned index = r->stream;
    CHECK_EQ(CALL(cuStreamQuery, s), CUDA_ERROR_NOT_READY);
    CHECK_EQ(word_at(at(1)), before);
    set_state(6, PSK_SLOT_RESIDENT);
    open_gate(index, seq);
    SYNC(s);
    CHECK_EQ(progress(index), seq);
    CHECK_EQ(word_at(at(1)), before + 1);
}

static void changes(void) {
    CUstream s = NULL;
    CUgraph g, other, child, child2;
    CUgraphNode k, m, f, c, inner;
    CUdeviceptr p = at(10), q = at(11);
    uint64_t n = 8;
    uint32_t inc = 1;
    void *params[] = {&p, &n, &inc};
    CUDA_KERNEL_NODE_PARAMS kp = node_params(params);
    CUDA_MEMCPY3D cp = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = at(12), .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = at(13), .WidthInBytes = 4, .Height = 1, .Depth = 1};
    CUDA_MEMSET_NODE_PARAMS fp = {.dst = at(14), .elementSize = 4, .width = 4, .height = 1, .value = 3};
    CUDA_KERNEL_NODE_PARAMS ip = node_params(params);
    OK(CALL(cuGraphCreate, &g, 0));
    OK(CALL(cuGraphCreate, &child, 0));
    p = at(15);
    OK(CALL(cuGraphAddKernelNode_v2, &inner, child, NULL, U64(0), &ip));
    p = at(10);
    OK(CALL(cuGraphAddKernelNode_v2, &k, g, NULL, U64(0), &kp));
    OK(CALL(cuGraphAddMemcpyNode, &m, g, &k, U64(1), &cp, NULL));
    OK(CALL(cuGraphAddMemsetNode, &f, g, &m, U64(1), &fp, NULL));
    OK(CALL(cuGraphAddChildGraphNode, &c, g, &f, U64(1), child));
    CUgraphExec e;
    CUDA_GRAPH_INSTANTIATE_PARAMS gp = {0};
    OK(CALL(cuGraphInstantiateWithParams, &e, g, &gp));
    OK(CALL(cuGraphLaunch, e, s));
    uint32_t id = EXPECT(PSK_REC_GRAPH, 10, 13, 12, 14, 15)->id;

    /* The driver copies what p points to; a later change of p changes nothing. */
    p = at(20);
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 10, 13, 12, 14, 15);

    params[0] = &q; /* slot 11 */
    OK(CALL(cuGraphExecKernelNodeSetParams, e, k, &kp));
    OK(CALL(cuGraphLaunch, e, s));
    CHECK_EQ(EXPECT(PSK_REC_GRAPH, 13, 12, 14, 15, 11)->id, id);
    q = at(16);
    kp.kern = (CUkernel)kp.func, kp.func = NULL;
    CUgraphNodeParams np = {.type = CU_GRAPH_NODE_TYPE_KERNEL, .kernel = kp};
    OK(CALL(cuGraphExecKernelNodeSetParams_v2, e, k, &kp));
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 13, 12, 14, 15, 16);
    q = at(17);
    OK(CALL(cuGraphExecNodeSetParams, e, k, &np));
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 13, 12, 14, 15, 17);
    cp.srcDevice = at(18);
    OK(CALL(cuGraphExecMemcpyNodeSetParams, e, m, &cp, NULL));
    fp.dst = at(19);
    OK(CALL(cuGraphExecMemsetNodeSetParams, e, f, &fp, NULL));
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 15, 17, 13, 18, 19);
    OK(CALL(cuGraphCreate, &child2, 0));
    q = at(21);
    ip = node_params(params);
    OK(CALL(cuGraphAddKernelNode, &inner, child2, NULL, U64(0), &ip));
    OK(CALL(cuGraphExecChildGraphNodeSetParams, e, c, child2));
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 17, 13, 18, 19, 21);
    SYNC(s);
    CHECK_EQ(word_at(at(21)), 1);
    /* A failed change changes nothing. */
    CHECK_EQ(CALL(cuGraphExecMemsetNodeSetParams, e, k, &fp, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 17, 13, 18, 19, 21);

    /* A whole update. */
    OK(CALL(cuGraphCreate, &other, 0));
    q = at(22), cp.srcDevice = at(23), cp.dstDevice = at(24), fp.dst = at(25);
    kp = node_params(params);
    OK(CALL(cuGraphAddKernelNode, &k, other, NULL, U64(0), &kp));
    OK(CALL(cuGraphAddMemcpyNode, &m, other, &k, U64(1), &cp, NULL));
    OK(CALL(cuGraphAddMemsetNode, &f, other, &m, U64(1), &fp, NULL));
    OK(CALL(cuGraphAddChildGraphNode, &c, other, &f, U64(1), child));
    CUgraphExecUpdateResultInfo info;
    OK(CALL(cuGraphExecUpdate_v2, e, other, &info));
    OK(CALL(cuGraphLaunch, e, s));
    CHECK_EQ(EXPECT(PSK_REC_GRAPH, 22, 24, 23, 25, 15)->id, id);
    int result;
    OK(CALL(cuGraphExecUpdate, e, g, NULL, &result));
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 10, 13, 12, 14, 15);
    CHECK(CALL(cuGraphExecUpdate_v2, e, child, &info) != CUDA_SUCCESS); /* another topology */
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 10, 13, 12, 14, 15);
    SYNC(s);
    OK(CALL(cuGraphExecDestroy, e));

    /* The same handle again, most likely: what the old one named is forgotten. */
    CUgraphExec again;
    OK(CALL(cuGraphInstantiate, &again, child, NULL, NULL, U64(0)));
    OK(CALL(cuGraphLaunch, again, s));
    CHECK(EXPECT(PSK_REC_GRAPH, 15)->id != id);
    SYNC(s);
}

/* Memory operations of a graph. */
static void memory_operations(void) {
    CUstream s = new_stream();
    CUstreamBatchMemOpParams ops[] = {
        {.value = {CU_STREAM_MEM_OP_WRITE_VALUE_32, at(26), {.value = 5}, 0, 0}},
        {.operation = CU_STREAM_MEM_OP_BARRIER},
        {.value = {CU_STREAM_MEM_OP_WAIT_VALUE_64, at(27), {.value64 = 0}, 0, 0}},
        {.reduction = {CU_STREAM_MEM_OP_ATOMIC_REDUCTION, 0, CU_STREAM_ATOMIC_REDUCTION_OP_ADD, CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32, at(28) + 8, 3, 0}},
    };
    CUDA_BATCH_MEM_OP_NODE_PARAMS p = {.count = 4, .paramArray = ops};
    CUgraph g;
    CUgraphNode node;
    CUgraphExec e;
    OK(CALL(cuGraphCreate, &g, 0));
    OK(CALL(cuGraphAddBatchMemOpNode, &node, g, NULL, U64(0), &p));
    OK(CALL(cuGraphInstantiateWithFlags, &e, g, U64(0)));
    for (unsigned i = 1; i <= 2; i++) {
        OK(CALL(cuGraphLaunch, e, s));
        EXPECT(PSK_REC_GRAPH, 26, 27, 28);
        SYNC(s);
        CHECK_EQ(word_at(at(26)), 5);
        CHECK_EQ(word_at(at(28) + 8), 3 * i);
    }
    ops[0].value.address = at(29);
    OK(CALL(cuGraphExecBatchMemOpNodeSetParams, e, node, &p));
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 29, 27, 28);
    ops[0].value.address = at(30);
    CUgraphNodeParams np = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .memOp = p};
    OK(CALL(cuGraphExecNodeSetParams, e, node, &np));
    OK(CALL(cuGraphLaunch, e, s));
    EXPECT(PSK_REC_GRAPH, 30, 27, 28);
    SYNC(s);
    CHECK_EQ(word_at(at(29)), 5);
    CHECK_EQ(word_at(at(30)), 5);
    OK(CALL(cuGraphExecDestroy, e));
}

/* What cannot be read is said to be opaque. */
static void opaque(void) {
    CUdeviceptr p = at(10);
    uint64_t n = 1;
    uint32_t inc = 1;
    void *params[] = {&p, &n, &inc};
    CUDA_KERNEL_NODE_PARAMS kp = node_params(params);
    kp.func = function("opaque_add");
    CUgraph g;
    CUgraphNode k;
    CUgraphExec e, before;
    OK(CALL(cuGraphCreate, &g, 0));
    OK(CALL(cuGraphAddKernelNode_v2, &k, g, NULL, U64(0), &kp));
    OK(CALL(cuGraphInstantiateWithFlags, &e, g, U64(0)));
    uint64_t opaques = S->opaque_launches;
    OK(CALL(cuGraphLaunch, e, NULL));
    record *r = must_take();
    CHECK(r->kind == PSK_REC_GRAPH && r->n == 0 && (r->flags & PSK_FLAG_OPAQUE));
    set_mode(PSK_MODE_OFF);
    OK(CALL(cuGraphInstantiateWithFlags, &before, g, U64(0)));
    set_mode(PSK_MODE_OBSERVE);
    OK(CALL(cuGraphLaunch, before, NULL));
    CHECK(must_take()->flags & PSK_FLAG_OPAQUE);
    CHECK_EQ(S->opaque_launches, opaques + 2);
    SYNC(NULL);
}

/* A graph whose kernels name more slots than one entry holds. */
static void large(void) {
    CUgraph g;
    CUgraphExec e;
    OK(CALL(cuGraphCreate, &g, 0));
    for (int i = 1; i <= 90; i++) {
        CUdeviceptr p = at(i);
        uint64_t n = 1;
        uint32_t inc = 1;
        void *params[] = {&p, &n, &inc};
        CUDA_KERNEL_NODE_PARAMS kp = node_params(params);
        CUgraphNode k;
        OK(CALL(cuGraphAddKernelNode_v2, &k, g, NULL, U64(0), &kp));
        OK(CALL(cuGraphAddKernelNode_v2, &k, g, NULL, U64(0), &kp)); /* twice: a double */
    }
    OK(CALL(cuGraphInstantiateWithFlags, &e, g, U64(0)));
    OK(CALL(cuGraphLaunch, e, NULL));
    record *r = must_take();
    CHECK_EQ(r->n, 90);
    for (uint32_t i = 0; i < 90; i++) CHECK_EQ(r->slots[i], i + 1);
    SYNC(NULL);
}

int main(void) {
    start();
    attach(PSK_MODE_GATED);
    base = managed(100 * 2 * MiB);
    for (uint32_t i = 1; i <= 100; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT);
    CUgraphExec exec;
    CUgraph graph;
    capture(&exec, &graph);
    gated(exec);
    other_captures();
    changes();
    memory_operations();
    opaque();
    large();
    none_left();
    return 0;
}
