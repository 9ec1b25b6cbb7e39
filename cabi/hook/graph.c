/*
 * Graphs. Their kernels never pass a launch call when the graph runs, so the
 * addresses that the nodes name are read when the graph is instantiated, kept
 * by executable graph and node, and looked up at each launch (the allocations
 * behind an address may have changed since). In strict mode a graph with a
 * kernel whose function is not cleared asks for a grant, and addresses in what is copied from
 * the host count as named; where the copy puts them to where no launch shows them, what they
 * name stays on the device, and so does all that a graph names which the device itself launches.
 * A node whose parameters cannot be read, or change on the device, makes its graph opaque, as
 * does one instantiated before an engine attached.
 */
#define _GNU_SOURCE
#include "address.h"
#include "func.h"
#include "issue.h"
#include "layout.h"
#include "lists.h"
#include "names.h"
#include "op.h"
#include "real.h"
#include "shared.h"
#include "stay.h"
#include "strict.h"
#include "words.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NO_FUNCTION UINT32_MAX

/* What one node names: addresses, as slots may change. */
typedef struct node_set {
    CUgraphNode node;
    CUgraphNode top; /* of the instantiated graph, the one that the node is or is nested in */
    uint32_t function; /* id, of a kernel */
    uint32_t naddrs;
    bool opaque;
    bool fill;
    uint64_t *addrs;
    uint64_t host; /* what a copy from the host reads, where that may be a table of addresses: they are looked for at each launch */
    uint32_t host_bytes;
    bool keeps; /* and the copy goes to where no launch will show them */
} node_set;

typedef struct exec {
    CUgraphExec handle;
    uint32_t id;
    bool by_device; /* it may be launched by the device */
    size_t nnodes, cap;
    node_set *nodes;
    struct exec *next;
} exec;

#define BUCKETS 1024
static exec *buckets[BUCKETS];
static uint32_t next_id = 1;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool some_keep; /* a node of some graph does (keeps) */

static exec **bucket(CUgraphExec h) { return &buckets[(((uintptr_t)h >> 4) * 0x9e3779b1u >> 12) % BUCKETS]; }

static exec *find(CUgraphExec h) {
    exec *e = *bucket(h);
    while (e && e->handle != h) e = e->next;
    return e;
}

static void free_nodes(node_set *nodes, size_t n) {
    for (size_t i = 0; i < n; i++) free(nodes[i].addrs);
    free(nodes);
}

/* ---- what the driver says of a node ---- */

typedef struct queries {
    CUresult (*nodes)(CUgraph, CUgraphNode *, size_t *);
    CUresult (*type)(CUgraphNode, int *);
    CUresult (*kernel_v2)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
    CUresult (*kernel_v1)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
    CUresult (*copy)(CUgraphNode, CUDA_MEMCPY3D *);
    CUresult (*fill)(CUgraphNode, CUDA_MEMSET_NODE_PARAMS *);
    CUresult (*memops)(CUgraphNode, CUDA_BATCH_MEM_OP_NODE_PARAMS *);
    CUresult (*child)(CUgraphNode, CUgraph *);
    CUresult (*any)(CUgraphNode, CUgraphNodeParams *);
    CUresult (*attribute)(CUgraphNode, int, CUlaunchAttributeValue *);
} queries;

static const queries *get_queries(void) {
    static queries q;
    static atomic_int found;
    if (!atomic_load(&found)) { /* idempotent */
        q.nodes = (CUresult(*)(CUgraph, CUgraphNode *, size_t *))psk_driver_symbol("cuGraphGetNodes");
        q.type = (CUresult(*)(CUgraphNode, int *))psk_driver_symbol("cuGraphNodeGetType");
        q.kernel_v2 = (CUresult(*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))psk_driver_symbol("cuGraphKernelNodeGetParams_v2");
        q.kernel_v1 = (CUresult(*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *))psk_driver_symbol("cuGraphKernelNodeGetParams");
        q.copy = (CUresult(*)(CUgraphNode, CUDA_MEMCPY3D *))psk_driver_symbol("cuGraphMemcpyNodeGetParams");
        q.fill = (CUresult(*)(CUgraphNode, CUDA_MEMSET_NODE_PARAMS *))psk_driver_symbol("cuGraphMemsetNodeGetParams");
        q.memops = (CUresult(*)(CUgraphNode, CUDA_BATCH_MEM_OP_NODE_PARAMS *))psk_driver_symbol("cuGraphBatchMemOpNodeGetParams");
        q.child = (CUresult(*)(CUgraphNode, CUgraph *))psk_driver_symbol("cuGraphChildGraphNodeGetGraph");
        q.any = (CUresult(*)(CUgraphNode, CUgraphNodeParams *))psk_driver_symbol("cuGraphNodeGetParams");
        q.attribute = (CUresult(*)(CUgraphNode, int, CUlaunchAttributeValue *))psk_driver_symbol("cuGraphKernelNodeGetAttribute");
        atomic_store(&found, 1);
    }
    return &q;
}

/* Its parameters change without a call of the host's. */
static bool device_updatable(CUgraphNode kernel) {
    const queries *q = get_queries();
    CUlaunchAttributeValue v = {0};
    return q->attribute && q->attribute(kernel, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &v) == CUDA_SUCCESS && v.deviceUpdatable;
}

/* ---- collecting one node's addresses ---- */

typedef struct collector {
    uint64_t *addrs;
    uint32_t n, cap;
    bool failed;
} collector;

static void collect(void *arg, uint64_t addr) {
    collector *c = arg;
    if (!psk_may_be_address(addr)) return;
    if (c->n && c->addrs[c->n - 1] == addr) return; /* the launch removes the other doubles */
    if (c->n == c->cap) {
        uint32_t cap = c->cap ? c->cap * 2 : 16;
        uint64_t *more = realloc(c->addrs, cap * sizeof *more);
        if (!more) {
            c->failed = true;
            return;
        }
        c->addrs = more;
        c->cap = cap;
    }
    c->addrs[c->n++] = addr;
}

static node_set unreadable(CUgraphNode node, CUgraphNode top) { return (node_set){.node = node, .top = top, .function = NO_FUNCTION, .opaque = true}; }

static node_set finish(collector *c, CUgraphNode node, CUgraphNode top, uint32_t function, bool readable) {
    return (node_set){.node = node, .top = top, .function = function, .naddrs = c->n, .addrs = c->addrs, .opaque = !readable || c->failed};
}

/* has_kern: the structure is the second version, with a CUkernel. */
static node_set kernel_set(CUgraphNode node, CUgraphNode top, const CUDA_KERNEL_NODE_PARAMS *p, bool has_kern) {
    collector c = {0};
    CUfunction f = p->func ? p->func : has_kern ? (CUfunction)p->kern : NULL;
    psk_layout *l = f ? psk_func_layout(f) : NULL;
    bool readable = l && psk_visit_params(l, psk_list_used(l, p->kernelParams, p->gridDimX, p->gridDimY), p->kernelParams, p->extra, collect, &c);
    uint32_t function = l ? l->id : NO_FUNCTION;
    psk_func_release(l);
    return finish(&c, node, top, function, readable && !device_updatable(node));
}

static node_set memcpy_set(CUgraphNode node, CUgraphNode top, const CUDA_MEMCPY3D *p) {
    collector c = {0};
    uint64_t dst = p->dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p->dstHost : p->dstMemoryType == CU_MEMORYTYPE_ARRAY ? 0 : p->dstDevice;
    uint64_t src = p->srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p->srcHost : p->srcMemoryType == CU_MEMORYTYPE_ARRAY ? 0 : p->srcDevice;
    if (dst) collect(&c, dst + (p->dstZ * p->dstHeight + p->dstY) * p->dstPitch + p->dstXInBytes);
    if (src) collect(&c, src += (p->srcZ * p->srcHeight + p->srcY) * p->srcPitch + p->srcXInBytes);
    node_set set = finish(&c, node, top, NO_FUNCTION, true);
    if (p->Height <= 1 && p->Depth <= 1 && psk_from_host(src, p->WidthInBytes)) {
        set.host = src;
        set.host_bytes = (uint32_t)p->WidthInBytes;
        set.keeps = dst && !psk_published(dst) && psk_memory_type(dst) == CU_MEMORYTYPE_DEVICE;
        if (set.keeps) atomic_store(&some_keep, true);
    }
    return set;
}

static node_set memset_set(CUgraphNode node, CUgraphNode top, const CUDA_MEMSET_NODE_PARAMS *p) {
    collector c = {0};
    collect(&c, p->dst);
    node_set set = finish(&c, node, top, NO_FUNCTION, true);
    set.fill = true;
    return set;
}

static node_set memops_set(CUgraphNode node, CUgraphNode top, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    collector c = {0};
    for (unsigned i = 0; i < p->count; i++) collect(&c, psk_memop_address(&p->paramArray[i]));
    return finish(&c, node, top, NO_FUNCTION, true);
}

/* ---- walking a graph ---- */

typedef struct sets {
    node_set *list;
    size_t n, cap;
    bool failed;
} sets;

static void push(sets *s, node_set set) {
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        node_set *more = realloc(s->list, cap * sizeof *more);
        if (!more) {
            free(set.addrs);
            s->failed = true;
            return;
        }
        s->list = more;
        s->cap = cap;
    }
    s->list[s->n++] = set;
}

/* One for each copy. */
static void push_batch(sets *out, CUgraphNode node, CUgraphNode top, const CUDA_MEMCPY_BATCH_NODE_PARAMS *p) {
    for (size_t i = 0; i < p->count; i++) {
        CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = p->srcs[i], .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = p->dsts[i], .WidthInBytes = p->sizes[i], .Height = 1, .Depth = 1};
        push(out, memcpy_set(node, top, &c));
    }
}

/* Nodes that reach none of our memory. Of those that are not known yet nothing can be said. */
static bool harmless(int type) {
    switch (type) {
    case CU_GRAPH_NODE_TYPE_HOST: case CU_GRAPH_NODE_TYPE_EMPTY: case CU_GRAPH_NODE_TYPE_WAIT_EVENT: case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: case CU_GRAPH_NODE_TYPE_MEM_ALLOC: case CU_GRAPH_NODE_TYPE_MEM_FREE: return true;
    default: return false;
    }
}

static void walk(sets *out, CUgraph graph, CUgraphNode top, int depth);

static void walk_node(sets *out, CUgraphNode node, CUgraphNode top, int depth) {
    const queries *q = get_queries();
    int type;
    if (q->type(node, &type) != CUDA_SUCCESS) {
        push(out, unreadable(node, top));
        return;
    }
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS p = {0};
        bool v2 = q->kernel_v2 && q->kernel_v2(node, &p) == CUDA_SUCCESS;
        bool ok = v2 || (q->kernel_v1 && q->kernel_v1(node, &p) == CUDA_SUCCESS);
        push(out, ok ? kernel_set(node, top, &p, v2) : unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
        CUDA_MEMCPY3D p = {0};
        push(out, q->copy && q->copy(node, &p) == CUDA_SUCCESS ? memcpy_set(node, top, &p) : unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS p = {0};
        push(out, q->fill && q->fill(node, &p) == CUDA_SUCCESS ? memset_set(node, top, &p) : unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        CUDA_BATCH_MEM_OP_NODE_PARAMS p = {0};
        push(out, q->memops && q->memops(node, &p) == CUDA_SUCCESS ? memops_set(node, top, &p) : unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: {
        CUgraph child;
        if (depth < 16 && q->child && q->child(node, &child) == CUDA_SUCCESS)
            walk(out, child, top, depth + 1);
        else
            push(out, unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: {
        CUgraphNodeParams p = {0};
        if (q->any && q->any(node, &p) == CUDA_SUCCESS && p.type == type)
            push_batch(out, node, top, &p.memcpyBatch);
        else
            push(out, unreadable(node, top));
        break;
    }
    default: /* the bodies of a conditional node, too, cannot be asked for */
        if (!harmless(type)) push(out, unreadable(node, top));
        break;
    }
}

/* top NULL: the nodes are the top. */
static void walk(sets *out, CUgraph graph, CUgraphNode top, int depth) {
    const queries *q = get_queries();
    size_t n = 0;
    CUgraphNode *nodes = NULL;
    if (!q->nodes || !q->type || q->nodes(graph, NULL, &n) != CUDA_SUCCESS || (n && !(nodes = calloc(n, sizeof *nodes))) ||
        (n && q->nodes(graph, nodes, &n) != CUDA_SUCCESS)) {
        free(nodes);
        push(out, unreadable(top, top));
        return;
    }
    for (size_t i = 0; i < n; i++) walk_node(out, nodes[i], top ? top : nodes[i], depth);
    free(nodes);
}

/* ---- the table of executable graphs ---- */

static void put_exec(CUgraphExec h, sets *s, bool by_device) {
    if (s->failed) push(s, unreadable(NULL, NULL));
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    if (!e && (e = calloc(1, sizeof *e))) {
        e->handle = h;
        e->id = next_id++;
        e->next = *bucket(h);
        *bucket(h) = e;
    }
    node_set *old = s->list;
    size_t nold = s->n;
    if (e) {
        old = e->nodes;
        nold = e->nnodes;
        e->nodes = s->list;
        e->nnodes = s->n;
        e->cap = s->cap;
        e->by_device = by_device;
    }
    pthread_mutex_unlock(&mu);
    free_nodes(old, nold);
}

/* No launch will name what a graph names that the device launches: it stays. */
static CUresult stay(const sets *s) {
    collector all = {0};
    for (size_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < s->list[i].naddrs; k++) collect(&all, s->list[i].addrs[k]);
    CUresult r = all.failed ? CUDA_ERROR_OUT_OF_MEMORY : psk_stay(all.addrs, all.n);
    free(all.addrs);
    return r;
}

static CUresult read_graph(CUgraphExec h, CUgraph graph, bool by_device) {
    psk_in_hook = 1;
    sets s = {0};
    walk(&s, graph, NULL, 0);
    psk_in_hook = 0;
    CUresult r = by_device ? stay(&s) : CUDA_SUCCESS;
    put_exec(h, &s, by_device);
    return r;
}

static bool launched_by_device(CUgraphExec h) {
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    bool by_device = e && e->by_device;
    pthread_mutex_unlock(&mu);
    return by_device;
}

static void drop_exec(CUgraphExec h) {
    pthread_mutex_lock(&mu);
    exec **at = bucket(h), *e;
    while ((e = *at) && e->handle != h) at = &e->next;
    if (e) *at = e->next;
    pthread_mutex_unlock(&mu);
    if (!e) return;
    free_nodes(e->nodes, e->nnodes);
    free(e);
}

/* Replaces what a node, and everything nested in it, names. */
static CUresult replace_node(CUgraphExec h, CUgraphNode node, sets *s) {
    CUresult r = launched_by_device(h) ? stay(s) : CUDA_SUCCESS;
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    if (e) {
        sets now = {.list = e->nodes, .n = 0, .cap = e->cap};
        for (size_t i = 0; i < e->nnodes; i++) {
            if (e->nodes[i].node == node || e->nodes[i].top == node)
                free(e->nodes[i].addrs);
            else
                now.list[now.n++] = e->nodes[i];
        }
        for (size_t i = 0; i < s->n; i++) push(&now, s->list[i]);
        if (now.failed && now.n) now.list[0].opaque = true;
        e->nodes = now.list;
        e->nnodes = now.n;
        e->cap = now.cap;
        free(s->list);
    } else {
        free_nodes(s->list, s->n);
    }
    pthread_mutex_unlock(&mu);
    return r;
}

/* ---- wrappers ---- */

/* Before a graph is instantiated: of a fill the driver looks at what lies at its address then, so in strict mode that is
 * on the device until the call has returned. A fill that was captured while its memory was away is fine. */
static CUresult hold_fills(psk_op *op, CUgraph graph) {
    psk_op_begin(op, PSK_REC_STAY, 0, NULL, 0);
    op->flags = 0; /* whatever is being captured */
    if (op->mode != PSK_MODE_STRICT) return CUDA_SUCCESS;
    sets s = {0};
    walk(&s, graph, NULL, 0);
    for (size_t i = 0; i < s.n; i++)
        if (s.list[i].fill && s.list[i].naddrs) psk_op_address(op, s.list[i].addrs[0]);
    free_nodes(s.list, s.n);
    return op->n ? psk_strict_hold(op) : CUDA_SUCCESS;
}

static void let_fills_go(psk_op *op) {
    psk_strict_done(op);
    psk_in_hook = 0;
}

#define INSTANTIATED(call, flags)                              \
    if (!out || !graph || !psk_active()) return (call);        \
    psk_op held;                                               \
    CUresult r = hold_fills(&held, graph);                     \
    if (r == CUDA_SUCCESS) r = (call);                         \
    let_fills_go(&held);                                       \
    if (r != CUDA_SUCCESS) return r;                           \
    return read_graph(*out, graph, (flags) & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)

CUresult psk_w_cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t n) { INSTANTIATED(PSK_REAL(cuGraphInstantiate)(out, graph, bad, log, n), 0); }
CUresult psk_w_cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t n) { INSTANTIATED(PSK_REAL(cuGraphInstantiate_v2)(out, graph, bad, log, n), 0); }
CUresult psk_w_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) { INSTANTIATED(PSK_REAL(cuGraphInstantiateWithFlags)(out, graph, flags), flags); }
CUresult psk_w_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) { INSTANTIATED(PSK_REAL(cuGraphInstantiateWithParams)(out, graph, p), p->flags); }
CUresult psk_w_cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) { INSTANTIATED(PSK_REAL(cuGraphInstantiateWithParams_ptsz)(out, graph, p), p->flags); }

CUresult psk_w_cuGraphExecUpdate(CUgraphExec e, CUgraph graph, CUgraphNode *bad, int *result) {
    CUresult r = PSK_REAL(cuGraphExecUpdate)(e, graph, bad, result);
    return r == CUDA_SUCCESS && psk_active() ? read_graph(e, graph, launched_by_device(e)) : r;
}

CUresult psk_w_cuGraphExecUpdate_v2(CUgraphExec e, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    CUresult r = PSK_REAL(cuGraphExecUpdate_v2)(e, graph, info);
    return r == CUDA_SUCCESS && psk_active() ? read_graph(e, graph, launched_by_device(e)) : r;
}

static CUresult replace_with(CUgraphExec e, CUgraphNode node, node_set set) {
    sets s = {0};
    push(&s, set);
    return replace_node(e, node, &s);
}

static CUresult replace_child(CUgraphExec e, CUgraphNode node, CUgraph child) {
    psk_in_hook = 1;
    sets s = {0};
    walk(&s, child, node, 1);
    psk_in_hook = 0;
    return replace_node(e, node, &s);
}

static CUresult replace_batch(CUgraphExec e, CUgraphNode node, const CUDA_MEMCPY_BATCH_NODE_PARAMS *p) {
    sets s = {0};
    push_batch(&s, node, node, p);
    return replace_node(e, node, &s);
}

CUresult psk_w_cuGraphExecKernelNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
    CUresult r = PSK_REAL(cuGraphExecKernelNodeSetParams)(e, node, p);
    return r == CUDA_SUCCESS && psk_active() ? replace_with(e, node, kernel_set(node, node, p, false)) : r;
}

CUresult psk_w_cuGraphExecKernelNodeSetParams_v2(CUgraphExec e, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
    CUresult r = PSK_REAL(cuGraphExecKernelNodeSetParams_v2)(e, node, p);
    return r == CUDA_SUCCESS && psk_active() ? replace_with(e, node, kernel_set(node, node, p, true)) : r;
}

CUresult psk_w_cuGraphExecMemcpyNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_MEMCPY3D *p, CUcontext ctx) {
    CUresult r = PSK_REAL(cuGraphExecMemcpyNodeSetParams)(e, node, p, ctx);
    return r == CUDA_SUCCESS && psk_active() ? replace_with(e, node, memcpy_set(node, node, p)) : r;
}

CUresult psk_w_cuGraphExecMemsetNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx) {
    CUresult r = PSK_REAL(cuGraphExecMemsetNodeSetParams)(e, node, p, ctx);
    return r == CUDA_SUCCESS && psk_active() ? replace_with(e, node, memset_set(node, node, p)) : r;
}

CUresult psk_w_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    CUresult r = PSK_REAL(cuGraphExecBatchMemOpNodeSetParams)(e, node, p);
    return r == CUDA_SUCCESS && psk_active() ? replace_with(e, node, memops_set(node, node, p)) : r;
}

CUresult psk_w_cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode node, CUgraph child) {
    CUresult r = PSK_REAL(cuGraphExecChildGraphNodeSetParams)(e, node, child);
    return r == CUDA_SUCCESS && psk_active() ? replace_child(e, node, child) : r;
}

CUresult psk_w_cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode node, CUgraphNodeParams *p) {
    CUresult r = PSK_REAL(cuGraphExecNodeSetParams)(e, node, p);
    if (r != CUDA_SUCCESS || !psk_active()) return r;
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return replace_with(e, node, kernel_set(node, node, &p->kernel, true));
    case CU_GRAPH_NODE_TYPE_MEMCPY: return replace_with(e, node, memcpy_set(node, node, &p->memcpy.copyParams));
    case CU_GRAPH_NODE_TYPE_MEMSET: return replace_with(e, node, memset_set(node, node, &p->memset));
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return replace_with(e, node, memops_set(node, node, &p->memOp));
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: return replace_batch(e, node, &p->memcpyBatch);
    case CU_GRAPH_NODE_TYPE_GRAPH: return replace_child(e, node, p->graph.graph);
    default: return harmless(p->type) ? r : replace_with(e, node, unreadable(node, node));
    }
}

CUresult psk_w_cuGraphExecDestroy(CUgraphExec e) {
    /* Before: the handle may be given out again the moment it is gone. */
    if (!atomic_load(&psk_child) && psk_S.ring) drop_exec(e);
    return PSK_REAL(cuGraphExecDestroy)(e);
}

/* Whether what a node's parameters point to may name more than they do. */
static bool to_inspect(const node_set *n) {
    return n->function != NO_FUNCTION && (n->function == PSK_MAX_FUNCS - 1 || PSK_LOAD(psk_S.funcs[n->function].inspect) != PSK_INSPECT_CLEARED);
}

static bool any_to_inspect(CUgraphExec h) {
    bool any = false;
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    for (size_t i = 0; e && i < e->nnodes && !any; i++) any = to_inspect(&e->nodes[i]);
    pthread_mutex_unlock(&mu);
    return any;
}

/* Addresses that the graph copies to where no launch will show them: they are kept by an operation of their own ahead
 * of the graph's, which may name much else. */
static CUresult keep(CUgraphExec h, CUstream s, int ptsz) {
    CUresult r = CUDA_SUCCESS;
    if (PSK_LIKELY(!atomic_load(&some_keep)) || PSK_LOAD(psk_S.mode) != PSK_MODE_STRICT) return r;
    psk_op op;
    psk_op_begin(&op, PSK_REC_COPY, PSK_COPY_H2D, s, ptsz);
    op.flags |= PSK_FLAG_KEEP;
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    for (size_t i = 0; e && i < e->nnodes; i++)
        if (e->nodes[i].keeps) psk_op_words(&op, e->nodes[i].host, e->nodes[i].host_bytes, false);
    pthread_mutex_unlock(&mu);
    if (op.n && !(op.flags & PSK_FLAG_CAPTURED)) r = psk_op_issue(&op);
    psk_op_done(&op);
    return r;
}

static void begin(psk_op *op, CUgraphExec h, CUstream s, int ptsz) {
    psk_op_begin(op, PSK_REC_GRAPH, 0, s, ptsz);
    PSK_COUNT(psk_S.graph_launches);
    if (op->mode == PSK_MODE_STRICT && any_to_inspect(h)) psk_strict_inspect(op);
    collector words = {0}; /* to inspect, which asks the driver: not under the lock */
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    if (!e) op->flags |= PSK_FLAG_OPAQUE;
    for (size_t i = 0; e && i < e->nnodes; i++) {
        const node_set *n = &e->nodes[i];
        op->id = e->id;
        if (n->opaque) op->flags |= PSK_FLAG_OPAQUE;
        if (op->mode == PSK_MODE_STRICT && n->host_bytes) psk_op_words(op, n->host, n->host_bytes, false);
        for (uint32_t k = 0; k < n->naddrs; k++) {
            psk_op_address(op, n->addrs[k]);
            if (PSK_UNLIKELY(op->flags & PSK_FLAG_INSPECT)) collect(&words, n->addrs[k]);
        }
    }
    pthread_mutex_unlock(&mu);
    if (words.failed) op->flags |= PSK_FLAG_OPAQUE;
    for (uint32_t i = 0; i < words.n; i++) psk_inspect_word(op, words.addrs[i]);
    free(words.addrs);
    if (op->flags & PSK_FLAG_OPAQUE) PSK_COUNT(psk_S.opaque_launches);
}

#define GRAPH_LAUNCH(name, ptsz)                          \
    CUresult psk_w_##name(CUgraphExec e, CUstream s) {    \
        if (!psk_active()) return PSK_REAL(name)(e, s);   \
        CUresult r = keep(e, s, ptsz);                    \
        if (r != CUDA_SUCCESS) return r;                  \
        psk_op op;                                        \
        begin(&op, e, s, ptsz);                           \
        return PSK_OP_CALL(&op, PSK_REAL(name)(e, s));    \
    }
GRAPH_LAUNCH(cuGraphLaunch, 0)
GRAPH_LAUNCH(cuGraphLaunch_ptsz, 1)
