/*
 * What the nodes of a graph name: kernels by their parameters, copies and fills by their ends. A node whose parameters
 * cannot be read, or change on the device, is opaque.
 */
#define _GNU_SOURCE
#include "nodes.h"
#include "address.h"
#include "func.h"
#include "layout.h"
#include "lists.h"
#include "names.h"
#include "real.h"
#include "shared.h"
#include "stay.h"
#include "words.h"

#include <stdlib.h>

atomic_bool psk_some_keep;

void psk_names_free(psk_node_names *nodes, size_t n) {
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

void psk_collect(void *arg, uint64_t addr) {
    psk_addresses *c = arg;
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

psk_node_names psk_unreadable(CUgraphNode node, CUgraphNode top) { return (psk_node_names){.node = node, .top = top, .function = PSK_NO_FUNCTION, .opaque = true}; }

static psk_node_names finish(psk_addresses *c, CUgraphNode node, CUgraphNode top, uint32_t function, bool readable) {
    return (psk_node_names){.node = node, .top = top, .function = function, .naddrs = c->n, .addrs = c->addrs, .opaque = !readable || c->failed};
}

/* has_kern: the structure is the second version, with a CUkernel. */
psk_node_names psk_kernel_names(CUgraphNode node, CUgraphNode top, const CUDA_KERNEL_NODE_PARAMS *p, bool has_kern) {
    psk_addresses c = {0};
    CUfunction f = p->func ? p->func : has_kern ? (CUfunction)p->kern : NULL;
    psk_layout *l = f ? psk_func_layout(f) : NULL;
    bool readable = l && psk_visit_params(l, psk_list_used(l, p->kernelParams, p->gridDimX, p->gridDimY), p->kernelParams, p->extra, psk_collect, &c);
    uint32_t function = l ? l->id : PSK_NO_FUNCTION;
    psk_func_release(l);
    return finish(&c, node, top, function, readable && !device_updatable(node));
}

psk_node_names psk_memcpy_names(CUgraphNode node, CUgraphNode top, const CUDA_MEMCPY3D *p) {
    psk_addresses c = {0};
    uint64_t dst = p->dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p->dstHost : p->dstMemoryType == CU_MEMORYTYPE_ARRAY ? 0 : p->dstDevice;
    uint64_t src = p->srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)p->srcHost : p->srcMemoryType == CU_MEMORYTYPE_ARRAY ? 0 : p->srcDevice;
    if (dst) psk_collect(&c, dst + (p->dstZ * p->dstHeight + p->dstY) * p->dstPitch + p->dstXInBytes);
    if (src) psk_collect(&c, src += (p->srcZ * p->srcHeight + p->srcY) * p->srcPitch + p->srcXInBytes);
    psk_node_names set = finish(&c, node, top, PSK_NO_FUNCTION, true);
    if (p->Height <= 1 && p->Depth <= 1 && psk_from_host(src, p->WidthInBytes)) {
        set.host = src;
        set.host_bytes = (uint32_t)p->WidthInBytes;
        set.keeps = dst && !psk_published(dst) && psk_memory_type(dst) == CU_MEMORYTYPE_DEVICE;
        if (set.keeps) atomic_store(&psk_some_keep, true);
    }
    return set;
}

psk_node_names psk_memset_names(CUgraphNode node, CUgraphNode top, const CUDA_MEMSET_NODE_PARAMS *p) {
    psk_addresses c = {0};
    psk_collect(&c, p->dst);
    psk_node_names set = finish(&c, node, top, PSK_NO_FUNCTION, true);
    set.fill = true;
    return set;
}

psk_node_names psk_memops_names(CUgraphNode node, CUgraphNode top, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    psk_addresses c = {0};
    for (unsigned i = 0; i < p->count; i++) psk_collect(&c, psk_memop_address(&p->paramArray[i]));
    return finish(&c, node, top, PSK_NO_FUNCTION, true);
}

/* ---- walking a graph ---- */

void psk_push(psk_names *s, psk_node_names set) {
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        psk_node_names *more = realloc(s->list, cap * sizeof *more);
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
void psk_push_batch(psk_names *out, CUgraphNode node, CUgraphNode top, const CUDA_MEMCPY_BATCH_NODE_PARAMS *p) {
    for (size_t i = 0; i < p->count; i++) {
        CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = p->srcs[i], .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = p->dsts[i], .WidthInBytes = p->sizes[i], .Height = 1, .Depth = 1};
        psk_push(out, psk_memcpy_names(node, top, &c));
    }
}

/* Nodes that reach none of our memory. Of those that are not known yet nothing can be said. */
bool psk_harmless(int type) {
    switch (type) {
    case CU_GRAPH_NODE_TYPE_HOST: case CU_GRAPH_NODE_TYPE_EMPTY: case CU_GRAPH_NODE_TYPE_WAIT_EVENT: case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: case CU_GRAPH_NODE_TYPE_MEM_ALLOC: case CU_GRAPH_NODE_TYPE_MEM_FREE: return true;
    default: return false;
    }
}

CUgraphNode *psk_nodes(CUgraph graph, size_t *n) {
    const queries *q = get_queries();
    *n = 0;
    if (!q->nodes || q->nodes(graph, NULL, n) != CUDA_SUCCESS || !*n) return NULL;
    CUgraphNode *nodes = calloc(*n, sizeof *nodes);
    if (nodes && q->nodes(graph, nodes, n) == CUDA_SUCCESS) return nodes;
    free(nodes);
    return NULL;
}

int psk_node_type(CUgraphNode node) {
    const queries *q = get_queries();
    int type;
    return q->type && q->type(node, &type) == CUDA_SUCCESS ? type : -1;
}

CUgraph psk_child_of(CUgraphNode node) {
    const queries *q = get_queries();
    CUgraph child;
    return q->child && q->child(node, &child) == CUDA_SUCCESS ? child : NULL;
}

static void walk(psk_names *out, CUgraph graph, CUgraphNode top, int depth);

static void walk_node(psk_names *out, CUgraphNode node, CUgraphNode top, int depth) {
    const queries *q = get_queries();
    int type = psk_node_type(node);
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS p = {0};
        bool v2 = q->kernel_v2 && q->kernel_v2(node, &p) == CUDA_SUCCESS;
        bool ok = v2 || (q->kernel_v1 && q->kernel_v1(node, &p) == CUDA_SUCCESS);
        psk_push(out, ok ? psk_kernel_names(node, top, &p, v2) : psk_unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
        CUDA_MEMCPY3D p = {0};
        psk_push(out, q->copy && q->copy(node, &p) == CUDA_SUCCESS ? psk_memcpy_names(node, top, &p) : psk_unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS p = {0};
        psk_push(out, q->fill && q->fill(node, &p) == CUDA_SUCCESS ? psk_memset_names(node, top, &p) : psk_unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        CUDA_BATCH_MEM_OP_NODE_PARAMS p = {0};
        psk_push(out, q->memops && q->memops(node, &p) == CUDA_SUCCESS ? psk_memops_names(node, top, &p) : psk_unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: {
        CUgraph child = depth < 16 ? psk_child_of(node) : NULL;
        if (child)
            walk(out, child, top, depth + 1);
        else
            psk_push(out, psk_unreadable(node, top));
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: {
        CUgraphNodeParams p = {0};
        if (q->any && q->any(node, &p) == CUDA_SUCCESS && p.type == type)
            psk_push_batch(out, node, top, &p.memcpyBatch);
        else
            psk_push(out, psk_unreadable(node, top));
        break;
    }
    default: /* the bodies of a conditional node, too, cannot be asked for */
        if (!psk_harmless(type)) psk_push(out, psk_unreadable(node, top));
        break;
    }
}

/* top NULL: the nodes are the top. */
static void walk(psk_names *out, CUgraph graph, CUgraphNode top, int depth) {
    const queries *q = get_queries();
    size_t n = 0;
    CUgraphNode *nodes = NULL;
    if (!q->nodes || q->nodes(graph, NULL, &n) != CUDA_SUCCESS || (n && !(nodes = psk_nodes(graph, &n)))) {
        psk_push(out, psk_unreadable(top, top));
        return;
    }
    for (size_t i = 0; i < n; i++) walk_node(out, nodes[i], top ? top : nodes[i], depth);
    free(nodes);
}

void psk_names_of_graph(psk_names *out, CUgraph graph, CUgraphNode top) { walk(out, graph, top, top ? 1 : 0); }
