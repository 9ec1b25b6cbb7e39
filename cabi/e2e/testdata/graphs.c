/*
 * Graphs that name more than the budget, one mode each. The stub runs of the nodes that may run the one that was added
 * last, ends the process at an access to what is not on the device, and every word is compared with a model.
 */
#include "job.h"

#define BYTES (4 * MiB)
enum { TENSORS = 26, BRANCHES = 3 }; /* 104 MiB */
static tensor t[TENSORS];
static CUstream s;

/* What a node does, to the model: dst += src. */
typedef struct step {
    int dst, src;
    CUgraphNode node;
} step;
static step steps[4 * TENSORS];
static int nsteps;

static CUDA_KERNEL_NODE_PARAMS params_of(CUdeviceptr at[3], uint64_t *words, void *list[4]) {
    *words = BYTES / 4;
    list[0] = &at[0], list[1] = &at[1], list[2] = &at[2], list[3] = words;
    return (CUDA_KERNEL_NODE_PARAMS){.func = f_vec, 1, 1, 1, 32, 1, 1, 0, .kernelParams = list};
}

/* Adds a node after others. */
static CUgraphNode put(CUgraph g, int dst, int src, const CUgraphNode *after, size_t n) {
    CUdeviceptr at[3] = {DEVICE(&t[dst]), DEVICE(&t[dst]), DEVICE(&t[src])};
    uint64_t words;
    void *list[4];
    CUDA_KERNEL_NODE_PARAMS p = params_of(at, &words, list);
    CUgraphNode node;
    OK(CALL(cuGraphAddKernelNode_v2, &node, g, after, U64(n), &p));
    steps[nsteps++] = (step){dst, src, node};
    return node;
}

static CUgraph new_graph(void) {
    CUgraph g;
    OK(CALL(cuGraphCreate, &g, 0));
    nsteps = 0;
    return g;
}

/* Chains beside one another, which join at the end: each node names two tensors. */
static CUgraph branches(void) {
    CUgraph g = new_graph();
    CUgraphNode last[BRANCHES] = {0};
    for (int i = BRANCHES; i < TENSORS; i++) {
        CUgraphNode *before = &last[i % BRANCHES];
        *before = put(g, i, i - BRANCHES, before, *before ? 1 : 0);
    }
    put(g, 0, TENSORS - 1, last, BRANCHES);
    return g;
}

static CUgraphExec instantiated(CUgraph g) {
    CUgraphExec e;
    OK(CALL(cuGraphInstantiateWithFlags, &e, g, U64(0)));
    return e;
}

static void ran(void) {
    for (int i = 0; i < nsteps; i++) t[steps[i].dst].value += t[steps[i].src].value;
}

static void check_all(void) {
    SYNC(s);
    for (int i = 0; i < TENSORS; i++) check_value(&t[i]);
}

/* Launches, and says as how many graphs the driver saw it. */
static uint64_t launched(CUgraphExec e, CUstream on) {
    uint64_t before = count("graph_launches");
    OK(CALL(cuGraphLaunch, e, on));
    return count("graph_launches") - before;
}

static void parts(void) {
    CUgraph g = branches();
    CUgraphExec e = instantiated(g);
    OK(CALL(cuGraphDestroy, g));
    for (int it = 0; it < 4; it++) {
        CHECK(launched(e, s) > 3);
        ran();
        if (it % 2) check_all();
    }
    OK(CALL(cuGraphExecDestroy, e));
}

/* Parts that name more than a record of the hook has room for. */
static void many(void) {
    enum { MANY = 360 }; /* 720 MiB */
    static tensor x[MANY];
    const uint64_t words = 2 * MiB / 4;
    for (uint32_t i = 0; i < MANY; i++) CHECK(make(&x[i], 2 * MiB, s, i));
    SYNC(s);
    CUgraph g = new_graph();
    CUgraphNode last = NULL;
    for (int i = 1; i < MANY; i++) {
        CUdeviceptr at[3] = {DEVICE(&x[i]), DEVICE(&x[i]), DEVICE(&x[i - 1])};
        uint64_t n;
        void *list[4];
        CUDA_KERNEL_NODE_PARAMS p = params_of(at, &n, list);
        n = words;
        OK(CALL(cuGraphAddKernelNode_v2, &last, g, &last, U64(last ? 1 : 0), &p));
    }
    CUgraphExec e = instantiated(g);
    for (int it = 0; it < 3; it++) {
        CHECK(launched(e, s) > 3);
        for (int i = 1; i < MANY; i++) x[i].value += x[i - 1].value;
    }
    SYNC(s);
    for (int i = 0; i < MANY; i++) check_value(&x[i]);
}

/* One that fits stays whole. */
static void small(void) {
    CUgraph g = new_graph();
    CUgraphNode last = put(g, 1, 0, NULL, 0);
    put(g, 2, 1, &last, 1);
    CUgraphExec e = instantiated(g);
    CHECK_EQ(launched(e, s), 1);
    ran();
    check_all();
}

/* What waits for memory elsewhere, for longer than the engine goes without a look at the driver, does not spoil a capture. */
static void captured(void) {
    CUgraph g;
    CUstream other = new_stream();
    uint64_t us = 400000;
    nsteps = 0;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    launch(0, other, f_spin, (void *[]){&us});
    for (int i = 0; i < TENSORS; i++) add(i, other, &t[i], 1);
    for (int i = 1; i < TENSORS; i++) {
        add_to(i, s, &t[i], &t[i - 1]);
        t[i].value -= t[i - 1].value; /* it has not run */
        steps[nsteps++] = (step){.dst = i, .src = i - 1};
    }
    OK(CALL(cuStreamEndCapture, s, &g));
    SYNC(other);
    CUgraphExec e = instantiated(g);
    for (int it = 0; it < 3; it++) {
        CHECK(launched(e, s) > 3);
        ran();
    }
    check_all();
}

/* A graph does not run beside itself: launches on other streams come after all of the one before, also where it had other
 * parts, or none. */
static void streams(void) {
    CUstream other = new_stream();
    CUgraph g = branches();
    CUgraphExec e = instantiated(g);
    CUgraphExecUpdateResultInfo info;
    for (int it = 0; it < 8; it++) {
        if (it == 3) OK(CALL(cuGraphExecUpdate_v2, e, g, &info));
        CHECK(launched(e, it % 2 ? other : s) > 3);
        ran();
    }
    /* A copy from pageable memory, which may be a table of addresses. */
    static uint32_t from[1024];
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = DEVICE(&t[0]), .WidthInBytes = sizeof from, .Height = 1, .Depth = 1};
    CUDA_MEMCPY3D within = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = DEVICE(&t[TENSORS - 1]), .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = DEVICE(&t[0]), .WidthInBytes = BYTES, .Height = 1, .Depth = 1};
    CUgraph copies = branches();
    CUgraphNode copy;
    OK(CALL(cuGraphAddMemcpyNode, &copy, copies, &steps[nsteps - 1].node, U64(1), &within, NULL));
    SYNC(other), SYNC(s);
    e = instantiated(copies);
    CHECK(launched(e, other) > 3);
    ran();
    t[0].value = t[TENSORS - 1].value;
    ran();
    for (size_t i = 0; i < sizeof from / sizeof *from; i++) from[i] = t[0].value;
    OK(CALL(cuGraphExecMemcpyNodeSetParams, e, copy, &c, NULL));
    CHECK_EQ(launched(e, s), 1);
    check_all();
}

/* What is set of nodes is set in their parts. */
static void set(void) {
    CUgraph g = new_graph();
    CUgraphNode last = NULL;
    for (int i = 1; i < TENSORS; i++) last = put(g, i, i - 1, &last, last ? 1 : 0);
    CUgraphExec e = instantiated(g);
    for (int i = 0; i < nsteps; i += 5) {
        steps[i].src = (steps[i].src + 17) % TENSORS; /* never dst, which is src + 1 */
        CUdeviceptr at[3] = {DEVICE(&t[steps[i].dst]), DEVICE(&t[steps[i].dst]), DEVICE(&t[steps[i].src])};
        uint64_t words;
        void *list[4];
        CUDA_KERNEL_NODE_PARAMS p = params_of(at, &words, list);
        OK(CALL(cuGraphExecKernelNodeSetParams_v2, e, steps[i].node, &p));
    }
    for (int it = 0; it < 3; it++) {
        CHECK(launched(e, s) > 3);
        ran();
    }
    check_all();
    /* A node does nothing, then does again. */
    for (unsigned enabled = 0; enabled < 2; enabled++) {
        OK(CALL(cuGraphNodeSetEnabled, e, steps[3].node, enabled));
        CHECK(launched(e, s) > 3);
        for (int i = 0; i < nsteps; i++)
            if (enabled || i != 3) t[steps[i].dst].value += t[steps[i].src].value;
        check_all();
    }
    /* And all of the graph as it was. */
    CUgraphExecUpdateResultInfo info;
    OK(CALL(cuGraphExecUpdate_v2, e, g, &info));
    for (int i = 0; i < nsteps; i++) steps[i].src = steps[i].dst - 1;
    CHECK(launched(e, s) > 3);
    ran();
    check_all();
}

static int called;
static void call(void *by) { called += (int)(uintptr_t)by; }

/* Graphs within graphs, copies, fills and calls of the host. */
static void nested(void) {
    CUgraph child = new_graph(), g;
    CUgraphNode last = NULL, node;
    for (int i = 1; i < 6; i++) last = put(child, i, i - 1, &last, last ? 1 : 0);
    int within = nsteps;
    OK(CALL(cuGraphCreate, &g, 0));
    OK(CALL(cuGraphAddChildGraphNode, &node, g, NULL, U64(0), child));
    for (int i = 6; i < TENSORS - 2; i++) node = put(g, i, i - 1, &node, 1);
    CUDA_HOST_NODE_PARAMS h = {call, (void *)3};
    CUgraphNode host;
    OK(CALL(cuGraphAddHostNode, &host, g, &node, U64(1), &h));
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = DEVICE(&t[TENSORS - 3]), .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = DEVICE(&t[TENSORS - 2]), .WidthInBytes = BYTES, .Height = 1, .Depth = 1};
    OK(CALL(cuGraphAddMemcpyNode, &node, g, &host, U64(1), &c, NULL));
    CUDA_MEMSET_NODE_PARAMS f = {.dst = DEVICE(&t[TENSORS - 1]), .value = 5, .elementSize = 4, .width = BYTES / 4, .height = 1};
    OK(CALL(cuGraphAddMemsetNode, &node, g, &node, U64(1), &f, NULL));
    CUgraphExec e = instantiated(g);
    int made = nsteps;
    for (int it = 0; it < 3; it++) {
        if (it == 2) { /* a node within the child is in no part of its own: the graph is whole from then on */
            h.userData = (void *)4;
            OK(CALL(cuGraphExecHostNodeSetParams, e, host, &h));
            CUgraph own;
            CUgraphNode first;
            size_t n = 1;
            CUgraphNode all[64];
            size_t top = 64;
            OK(CALL(cuGraphGetNodes, g, all, &top));
            OK(CALL(cuGraphChildGraphNodeGetGraph, all[0], &own));
            OK(CALL(cuGraphGetNodes, own, &first, &n));
            steps[0].src = 3;
            CUdeviceptr at[3] = {DEVICE(&t[1]), DEVICE(&t[1]), DEVICE(&t[3])};
            uint64_t words;
            void *list[4];
            CUDA_KERNEL_NODE_PARAMS p = params_of(at, &words, list);
            OK(CALL(cuGraphExecKernelNodeSetParams_v2, e, first, &p));
        }
        uint64_t as = launched(e, s);
        CHECK(it == 2 ? as == 1 : as > 3);
        nsteps = made;
        ran();
        t[TENSORS - 2].value = t[TENSORS - 3].value;
        t[TENSORS - 1].value = 5;
        check_all();
    }
    CHECK_EQ(called, 3 + 3 + 4);
    CHECK_EQ(within, 5);
}

/* Threads launch on one stream while a graph does: nothing of theirs comes between its parts. */
static tensor between;
static void *adds(void *context) {
    OK(CALL(cuCtxSetCurrent, context));
    for (int i = 0; i < 200; i++) add(i, s, &between, 1);
    return NULL;
}

/* dst += src where src is what other threads add to: whatever it is, all nodes of a launch read the same. */
static void threads(void) {
    if (!make(&between, BYTES, s, 0)) CHECK(!"memory");
    SYNC(s);
    CUgraph g = new_graph();
    CUgraphNode last = NULL;
    for (int i = 0; i < TENSORS; i++) {
        CUdeviceptr at[3] = {DEVICE(&t[i]), DEVICE(&t[i]), DEVICE(&between)};
        uint64_t words;
        void *list[4];
        CUDA_KERNEL_NODE_PARAMS p = params_of(at, &words, list);
        OK(CALL(cuGraphAddKernelNode_v2, &last, g, &last, U64(last ? 1 : 0), &p));
    }
    CUgraphExec e = instantiated(g);
    pthread_t thread;
    CUcontext context;
    OK(CALL(cuCtxGetCurrent, &context));
    CHECK(!pthread_create(&thread, NULL, adds, context));
    for (int it = 0; it < 6; it++) CHECK(launched(e, s) > 3);
    pthread_join(thread, NULL);
    SYNC(s);
    static uint32_t first[BYTES / 4];
    OK(CALL(cuMemcpyDtoH_v2, first, DEVICE(&t[0]), U64(BYTES)));
    for (int i = 0; i < TENSORS; i++) { /* tensor i was i at the start */
        t[i].value = first[0] + (uint32_t)i;
        check_value(&t[i]);
    }
    check_value(&between);
}

/* Those of which the hook cannot tell enough stay whole. */
static void whole(void) {
    CUgraph g = branches();
    CUgraphExec e;
    CUlaunchAttributeValue yes = {.deviceUpdatable = 1}, no = {0};
    OK(CALL(cuGraphKernelNodeSetAttribute, steps[0].node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &yes));
    e = instantiated(g);
    CHECK_EQ(launched(e, s), 1);
    ran();
    check_all();
    OK(CALL(cuGraphKernelNodeSetAttribute, steps[0].node, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &no));
    CUgraphNode event;
    OK(CALL(cuGraphAddEmptyNode, &event, g, NULL, U64(0)));
    ((void (*)(CUgraphNode, int))driver("stub_tell_type"))(event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    CHECK_EQ(launched(instantiated(g), s), 1);
    ran();
    check_all();
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    load();
    resolve();
    CHECK_EQ(P.init(0), 0);
    s = new_stream();
    for (uint32_t i = 0; i < TENSORS; i++) CHECK(make(&t[i], BYTES, s, i));
    SYNC(s);
    const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"parts", parts}, {"many", many}, {"small", small}, {"captured", captured}, {"streams", streams}, {"set", set}, {"nested", nested}, {"threads", threads}, {"whole", whole}};
    bool known = false;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (!strcmp(argv[1], modes[i].name)) modes[i].run(), known = true;
    CHECK(known);
    CHECK_EQ(count("illegal"), 0);
    CHECK(count("physical_peak_bytes") <= (uint64_t)stat_now("budget_bytes"));
    printf("STATS %s\n", stats());
    P.close();
    return 0;
}
