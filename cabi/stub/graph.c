/* Graphs. Of the nodes whose dependencies have run the one that was added last runs next. */
#define _GNU_SOURCE
#include "base.h"
#include "contexts.h"
#include "ranges.h"
#include "streams.h"
#include "work.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

CUresult cuGraphCreate(CUgraph *g, unsigned flags) {
    READY();
    (void)flags;
    *g = stub_graph_new();
    return *g ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph g) {
    READY();
    stub_graph_destroy((graph *)g);
    return CUDA_SUCCESS;
}

/* Takes the work over. */
static CUresult add(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, work *w) {
    node *n = stub_graph_add((graph *)g, w);
    stub_free_work(w);
    bool ok = n && stub_graph_after(n, (node *const *)after, count);
    *out = (CUgraphNode)n; /* which may be what it comes after */
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult kernel_work(work *w, const CUDA_KERNEL_NODE_PARAMS *p, bool v2) {
    CUfunction f = p->func ? p->func : v2 ? (CUfunction)p->kern : NULL;
    return stub_launch_work(w, f, (const unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ}, (const unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes, 0, p->kernelParams, p->extra);
}

static CUresult add_kernel(CUgraphNode *out, CUgraph g, const CUgraphNode *d, size_t n, const CUDA_KERNEL_NODE_PARAMS *p, bool v2) {
    READY();
    work w;
    CUresult rc = kernel_work(&w, p, v2);
    return rc == CUDA_SUCCESS ? add(out, g, d, n, &w) : rc;
}
CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph g, const CUgraphNode *d, size_t n, const CUDA_KERNEL_NODE_PARAMS *p) { return add_kernel(out, g, d, n, p, false); }
CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph g, const CUgraphNode *d, size_t n, const CUDA_KERNEL_NODE_PARAMS *p) { return add_kernel(out, g, d, n, p, true); }

CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph g, const CUgraphNode *d, size_t n, const CUDA_MEMCPY3D *p, CUcontext c) {
    READY();
    (void)c;
    work w = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *p};
    return add(out, g, d, n, &w);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph g, const CUgraphNode *d, size_t n, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext c) {
    READY();
    (void)c;
    work w = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    memcpy(&w.fill, p, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx)); /* the first version has no context */
    return add(out, g, d, n, &w);
}

static work memops_work(const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) { return (work){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .memops = {p->paramArray, p->count}}; }

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *out, CUgraph g, const CUgraphNode *d, size_t n, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    READY();
    work w = memops_work(p); /* whose array stays the caller's */
    node *made = stub_graph_add((graph *)g, &w);
    bool ok = made && stub_graph_after(made, (node *const *)d, n);
    *out = (CUgraphNode)made;
    return ok ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph g, const CUgraphNode *d, size_t n, CUgraph child) {
    READY();
    work w = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = (CUgraph)stub_graph_copy((graph *)child)};
    return add(out, g, d, n, &w);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph g, const CUgraphNode *d, size_t n) {
    READY();
    work w = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add(out, g, d, n, &w);
}

CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph g, const CUgraphNode *d, size_t n, const CUDA_HOST_NODE_PARAMS *p) {
    READY();
    work w = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {p->fn, p->userData}};
    return add(out, g, d, n, &w);
}

CUresult cuGraphDestroyNode(CUgraphNode h) {
    READY();
    stub_graph_remove((node *)h);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *out, CUgraph g) {
    READY();
    *out = (CUgraph)stub_graph_copy((graph *)g);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph clone) {
    READY();
    for (node *n = ((graph *)clone)->head; n; n = n->next)
        if (n->original == (node *)original) return *out = (CUgraphNode)n, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

/* Edges have no data here. */
CUresult cuGraphGetEdges_v2(CUgraph g, CUgraphNode *from, CUgraphNode *to, void *data, size_t *n) {
    READY();
    (void)data;
    size_t at = 0;
    for (node *x = ((graph *)g)->head; x; x = x->next)
        for (size_t i = 0; i < x->nafter; i++, at++)
            if (from && at < *n) from[at] = (CUgraphNode)x->after[i], to[at] = (CUgraphNode)x;
    *n = from && at > *n ? *n : at;
    return CUDA_SUCCESS;
}
CUresult cuGraphGetEdges(CUgraph g, CUgraphNode *from, CUgraphNode *to, size_t *n) { return cuGraphGetEdges_v2(g, from, to, NULL, n); }

CUresult cuGraphGetNodes(CUgraph h, CUgraphNode *nodes, size_t *n) {
    READY();
    graph *g = (graph *)h;
    if (!nodes) {
        *n = g->n;
        return CUDA_SUCCESS;
    }
    size_t i = 0;
    for (node *k = g->head; k && i < *n; k = k->next) nodes[i++] = (CUgraphNode)k;
    *n = i;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode h, int *type) {
    READY();
    *type = ((node *)h)->type;
    return CUDA_SUCCESS;
}

void stub_tell_type(CUgraphNode h, int type) { ((node *)h)->type = type; }

/* Only of what no other function tells. */
CUresult cuGraphNodeGetParams(CUgraphNode h, CUgraphNodeParams *p) {
    READY();
    node *n = (node *)h;
    if (n->type != CU_GRAPH_NODE_TYPE_MEMCPY_BATCH || n->w.type != CU_GRAPH_NODE_TYPE_MEMCPY) return CUDA_ERROR_NOT_SUPPORTED;
    n->ends[0] = n->w.copy.dstDevice, n->ends[1] = n->w.copy.srcDevice, n->bytes = n->w.copy.WidthInBytes;
    *p = (CUgraphNodeParams){.type = n->type, .memcpyBatch = {.count = 1, .dsts = &n->ends[0], .srcs = &n->ends[1], .sizes = &n->bytes}};
    return CUDA_SUCCESS;
}

static CUresult updatable(CUgraphNode h, int attribute, int **at) {
    READY();
    *at = &((node *)h)->updatable;
    return ((node *)h)->w.type == CU_GRAPH_NODE_TYPE_KERNEL && attribute == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode h, int attribute, CUlaunchAttributeValue *v) {
    int *at;
    CUresult rc = updatable(h, attribute, &at);
    if (rc == CUDA_SUCCESS) v->deviceUpdatable = *at;
    return rc;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode h, int attribute, const CUlaunchAttributeValue *v) {
    int *at;
    CUresult rc = updatable(h, attribute, &at);
    if (rc == CUDA_SUCCESS) *at = v->deviceUpdatable;
    return rc;
}

static CUresult kernel_params(CUgraphNode h, CUDA_KERNEL_NODE_PARAMS *p, bool v2) {
    READY();
    node *n = (node *)h;
    if (n->w.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    const launch_work *l = &n->w.launch;
    bool kernel = l->f->magic == KERNEL_MAGIC;
    p->func = kernel && v2 ? NULL : (CUfunction)l->f;
    p->gridDimX = l->grid[0], p->gridDimY = l->grid[1], p->gridDimZ = l->grid[2];
    p->blockDimX = l->block[0], p->blockDimY = l->block[1], p->blockDimZ = l->block[2];
    p->sharedMemBytes = l->shared;
    p->kernelParams = l->param_ptrs;
    p->extra = NULL;
    if (v2) {
        p->kern = kernel ? (CUkernel)l->f : NULL;
        p->ctx = NULL;
    }
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode h, CUDA_KERNEL_NODE_PARAMS *p) { return kernel_params(h, p, false); }
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode h, CUDA_KERNEL_NODE_PARAMS *p) { return kernel_params(h, p, true); }

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode h, CUDA_MEMCPY3D *p) {
    READY();
    *p = ((node *)h)->w.copy;
    return ((node *)h)->w.type == CU_GRAPH_NODE_TYPE_MEMCPY ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode h, CUDA_MEMSET_NODE_PARAMS *p) {
    READY();
    memcpy(p, &((node *)h)->w.fill, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx));
    return ((node *)h)->w.type == CU_GRAPH_NODE_TYPE_MEMSET ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode h, CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    READY();
    const work *w = &((node *)h)->w;
    if (w->type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) return CUDA_ERROR_INVALID_VALUE;
    *p = (CUDA_BATCH_MEM_OP_NODE_PARAMS){.count = w->memops.n, .paramArray = w->memops.ops};
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode h, CUgraph *g) {
    READY();
    *g = ((node *)h)->w.child;
    return ((node *)h)->w.type == CU_GRAPH_NODE_TYPE_GRAPH ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- executable graphs: a clone, whose nodes know their originals. Queued launches hold a reference. ---- */

typedef struct exec {
    pthread_mutex_t mu;
    pthread_mutex_t running; /* a graph does not run beside itself */
    graph *g;
    unsigned refs;
} exec;

static void unref(exec *e) {
    pthread_mutex_lock(&e->mu);
    bool last = --e->refs == 0;
    pthread_mutex_unlock(&e->mu);
    if (!last) return;
    stub_graph_destroy(e->g);
    free(e);
}

/* Of a graph's nodes the driver looks at fills, also nested ones (bench/probe/graph_absent.cu). */
static bool fills_known(const graph *g) {
    bool known = true;
    for (const node *n = g->head; n && known; n = n->next) {
        if (n->w.type == CU_GRAPH_NODE_TYPE_MEMSET) known = stub_known(n->w.fill.dst);
        if (n->w.type == CU_GRAPH_NODE_TYPE_GRAPH) known = fills_known((graph *)n->w.child);
    }
    return known;
}

static CUresult instantiate(CUgraphExec *out, CUgraph g) {
    CURRENT();
    if (!fills_known((graph *)g)) return CUDA_ERROR_INVALID_VALUE;
    exec *e = calloc(1, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&e->mu, NULL);
    pthread_mutex_init(&e->running, NULL);
    e->g = stub_graph_copy((graph *)g);
    e->refs = 1;
    *out = (CUgraphExec)e;
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *bad, char *log, size_t n) { return (void)bad, (void)log, (void)n, instantiate(out, g); }
CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *bad, char *log, size_t n) { return (void)bad, (void)log, (void)n, instantiate(out, g); }
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags) { return (void)flags, instantiate(out, g); }
CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p) { return p->result_out = 0, instantiate(out, g); }
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p) { return p->result_out = 0, instantiate(out, g); }

static CUresult run_exec(stream *s, op *o) {
    (void)s;
    exec *e = o->p;
    pthread_mutex_lock(&e->running);
    CUresult rc = stub_run_graph((CUgraph)o->a);
    pthread_mutex_unlock(&e->running);
    unref(e);
    return rc;
}

static CUresult graph_launch(CUgraphExec h, CUstream hs, int ptsz) {
    CURRENT();
    exec *e = (exec *)h;
    stream *s = stub_stream(hs, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture) { /* becomes a child graph */
        work w = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = (CUgraph)stub_graph_copy(e->g)};
        return stub_graph_append(s->capture, &w);
    }
    COUNT(N_GRAPH_LAUNCHES, 1);
    op *o = stub_op(run_exec);
    pthread_mutex_lock(&e->mu);
    e->refs++;
    o->a = (uint64_t)(uintptr_t)e->g;
    pthread_mutex_unlock(&e->mu);
    o->p = e;
    return stub_enqueue(s, o);
}
CUresult cuGraphLaunch(CUgraphExec e, CUstream s) { return graph_launch(e, s, 0); }
CUresult cuGraphLaunch_ptsz(CUgraphExec e, CUstream s) { return graph_launch(e, s, 1); }
CUresult cuGraphUpload(CUgraphExec e, CUstream s) { return (void)e, (void)s, stub_ready(); }

CUresult cuGraphExecDestroy(CUgraphExec e) {
    READY();
    unref((exec *)e);
    return CUDA_SUCCESS;
}

static CUresult update(CUgraphExec h, CUgraph g) {
    READY();
    exec *e = (exec *)h;
    graph *now = e->g;
    const node *a = now->head, *b = ((graph *)g)->head;
    for (; a && b && a->w.type == b->w.type; a = a->next, b = b->next) {
    }
    if (a || b) return 910; /* CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE: another topology */
    cuCtxSynchronize();     /* queued launches keep what they had; here they are simply waited for */
    e->g = stub_graph_copy((graph *)g);
    /* Nodes stay addressed by the graph that was instantiated. */
    for (node *x = e->g->head, *y = now->head; x; x = x->next, y = y->next) x->original = y->original;
    stub_graph_destroy(now);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphNode *bad, int *result) {
    CUresult rc = update(e, g);
    if (bad) *bad = NULL;
    if (result) *result = rc == CUDA_SUCCESS ? 0 : 1;
    return rc;
}
CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo *info) {
    CUresult rc = update(e, g);
    *info = (CUgraphExecUpdateResultInfo){.result = rc == CUDA_SUCCESS ? 0 : 1};
    return rc;
}

static node *exec_node(graph *g, const node *original) {
    for (node *n = g->head; n; n = n->next) {
        if (n->original == original) return n;
        node *in = n->w.type == CU_GRAPH_NODE_TYPE_GRAPH ? exec_node((graph *)n->w.child, original) : NULL;
        if (in) return in;
    }
    return NULL;
}

static CUresult set_params(CUgraphExec h, CUgraphNode original, work *w) {
    READY();
    cuCtxSynchronize();
    node *n = exec_node(((exec *)h)->g, (node *)original);
    if (!n || n->w.type != w->type) return CUDA_ERROR_INVALID_VALUE;
    if (w->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        stub_graph_destroy((graph *)n->w.child);
        w->child = (CUgraph)stub_graph_copy((graph *)w->child);
    }
    stub_free_work(&n->w);
    return stub_copy_work(&n->w, w) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set_kernel(CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p, bool v2) {
    work w;
    CUresult rc = kernel_work(&w, p, v2);
    if (rc != CUDA_SUCCESS) return rc;
    rc = set_params(e, n, &w);
    stub_free_work(&w);
    return rc;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p) { return set_kernel(e, n, p, false); }
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *p) { return set_kernel(e, n, p, true); }

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMCPY3D *p, CUcontext c) {
    (void)c;
    work w = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .copy = *p};
    return set_params(e, n, &w);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext c) {
    (void)c;
    work w = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    memcpy(&w.fill, p, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx));
    return set_params(e, n, &w);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    work w = memops_work(p);
    return set_params(e, n, &w);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraph child) {
    work w = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = child};
    return set_params(e, n, &w);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_HOST_NODE_PARAMS *p) {
    work w = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {p->fn, p->userData}};
    return set_params(e, n, &w);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec h, CUgraphNode original, unsigned enabled) {
    READY();
    cuCtxSynchronize();
    node *n = exec_node(((exec *)h)->g, (node *)original);
    if (!n) return CUDA_ERROR_INVALID_VALUE;
    n->disabled = !enabled;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraphNodeParams *p) {
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return set_kernel(e, n, &p->kernel, true);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return cuGraphExecMemcpyNodeSetParams(e, n, &p->memcpy.copyParams, NULL);
    case CU_GRAPH_NODE_TYPE_MEMSET: return cuGraphExecMemsetNodeSetParams(e, n, &p->memset, NULL);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return cuGraphExecBatchMemOpNodeSetParams(e, n, &p->memOp);
    case CU_GRAPH_NODE_TYPE_GRAPH: return cuGraphExecChildGraphNodeSetParams(e, n, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: {
        const CUDA_MEMCPY_BATCH_NODE_PARAMS *b = &p->memcpyBatch;
        CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = b->srcs[0], .dstDevice = b->dsts[0], .WidthInBytes = b->sizes[0], .Height = 1, .Depth = 1};
        return cuGraphExecMemcpyNodeSetParams(e, n, &c, NULL);
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: case CU_GRAPH_NODE_TYPE_HOST: return CUDA_SUCCESS; /* whatever it would do, it does not here */
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}
