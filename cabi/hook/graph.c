/*
 * Graphs. Their kernels never pass a launch call when the graph runs, so the
 * addresses that the nodes name (nodes.c) are read when the graph is instantiated, kept
 * by executable graph and node, and looked up at each launch (the allocations
 * behind an address may have changed since). In strict mode a graph asks for a grant
 * as often as launches do, and each time where a search of its memory has found addresses (to_search); addresses in what is copied from
 * the host count as named; where the copy puts them to where no launch shows them, what they
 * name stays on the device, and so does all that a graph names which the device itself launches.
 * A graph with a node of which nothing can be said is opaque, as
 * is one instantiated before an engine attached. One that names more than the
 * device may hold is launched in parts (parts.c).
 */
#define _GNU_SOURCE
#include "captures.h"
#include "issue.h"
#include "names.h"
#include "nodes.h"
#include "op.h"
#include "parts.h"
#include "real.h"
#include "shared.h"
#include "stay.h"
#include "strict.h"
#include "words.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct exec {
    CUgraphExec handle;
    uint32_t id;
    unsigned long long flags; /* with which it was instantiated */
    size_t nnodes, cap;
    psk_node_names *nodes; /* by part */
    psk_parts *parts;      /* NULL: it is launched whole */
    uint32_t part_id;      /* of the first part */
    uint32_t searched;     /* launches that asked and went, since what it names was last set */
    uint64_t launches;     /* since then */
    struct exec *next;
} exec;

#define BUCKETS 1024
static exec *buckets[BUCKETS];
static uint32_t next_id = 1;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

static exec **bucket(CUgraphExec h) { return &buckets[(((uintptr_t)h >> 4) * 0x9e3779b1u >> 12) % BUCKETS]; }

static exec *find(CUgraphExec h) {
    exec *e = *bucket(h);
    while (e && e->handle != h) e = e->next;
    return e;
}

/* ---- the table of executable graphs ---- */

static int by_part(const void *a, const void *b) {
    uint32_t x = ((const psk_node_names *)a)->part, y = ((const psk_node_names *)b)->part;
    return x < y ? -1 : x > y;
}

/* Sorts what the nodes name by their parts. */
static void arrange(exec *e) {
    for (size_t i = 0; i < e->nnodes; i++) {
        const psk_part_node *at = e->parts ? psk_part_of(e->parts, e->nodes[i].top) : NULL;
        e->nodes[i].part = at ? at->part : 0;
    }
    if (e->parts) qsort(e->nodes, e->nnodes, sizeof *e->nodes, by_part);
}

/* What is launched in their place comes after them, whatever the stream: so it does not come before they are over. */
static void give_up(psk_parts *parts) {
    if (parts) psk_parts_wait(parts);
    psk_parts_free(parts);
}

/* Replaces all that is known of one; takes the names and the parts over. */
static void put_exec(CUgraphExec h, psk_names *s, unsigned long long flags, psk_parts *parts) {
    if (s->failed) psk_push(s, psk_unreadable(NULL, NULL));
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    if (!e && (e = calloc(1, sizeof *e))) {
        e->handle = h;
        e->id = next_id++;
        e->next = *bucket(h);
        *bucket(h) = e;
    }
    exec old = {.nodes = s->list, .nnodes = s->n, .parts = parts}; /* when there is no memory to know it */
    if (e) {
        old = *e;
        e->nodes = s->list, e->nnodes = s->n, e->cap = s->cap;
        e->flags = flags;
        e->parts = parts;
        e->searched = 0, e->launches = 0;
        if (parts && (!old.parts || old.parts->n < parts->n)) {
            e->part_id = next_id;
            next_id += (uint32_t)parts->n;
        }
        arrange(e);
    }
    pthread_mutex_unlock(&mu);
    psk_names_free(old.nodes, old.nnodes);
    give_up(old.parts);
}

/* From now on it is launched whole: the driver has all of it as well. */
static void make_whole(CUgraphExec h) {
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    psk_parts *parts = e ? e->parts : NULL;
    if (parts) {
        e->parts = NULL;
        arrange(e);
    }
    pthread_mutex_unlock(&mu);
    give_up(parts);
}

static psk_parts *parts_of(CUgraphExec h) {
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    psk_parts *parts = e ? e->parts : NULL;
    pthread_mutex_unlock(&mu);
    return parts;
}

/* Where a node of one is that has parts. Of one that is in none of them, nested in another, there are no parts any more. */
static bool in_part(CUgraphExec h, CUgraphNode node, CUgraphExec *part, CUgraphNode *own) {
    psk_parts *parts = parts_of(h);
    const psk_part_node *at = parts ? psk_part_of(parts, node) : NULL;
    if (!at) {
        if (parts) make_whole(h);
        return false;
    }
    *part = parts->part[at->part].exec;
    *own = at->own;
    return true;
}

/* No launch will name what a graph names that the device launches: it stays. */
static CUresult stay(const psk_names *s) {
    psk_addresses all = {0};
    for (size_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < s->list[i].naddrs; k++) psk_collect(&all, s->list[i].addrs[k]);
    CUresult r = all.failed ? CUDA_ERROR_OUT_OF_MEMORY : psk_stay(all.addrs, all.n);
    free(all.addrs);
    return r;
}

static unsigned long long flags_of(CUgraphExec h) {
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    unsigned long long flags = e ? e->flags : 0;
    pthread_mutex_unlock(&mu);
    return flags;
}

static void drop_exec(CUgraphExec h) {
    pthread_mutex_lock(&mu);
    exec **at = bucket(h), *e;
    while ((e = *at) && e->handle != h) at = &e->next;
    if (e) *at = e->next;
    pthread_mutex_unlock(&mu);
    if (!e) return;
    psk_names_free(e->nodes, e->nnodes);
    psk_parts_free(e->parts);
    free(e);
}

/* Replaces what a node, and everything nested in it, names. */
static CUresult replace_node(CUgraphExec h, CUgraphNode node, psk_names *s) {
    CUresult r = flags_of(h) & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH ? stay(s) : CUDA_SUCCESS;
    if (s->failed || !psk_divisible(s)) make_whole(h);
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    if (e) {
        psk_names now = {.list = e->nodes, .n = 0, .cap = e->cap};
        for (size_t i = 0; i < e->nnodes; i++) {
            if (e->nodes[i].node == node || e->nodes[i].top == node)
                free(e->nodes[i].addrs);
            else
                now.list[now.n++] = e->nodes[i];
        }
        for (size_t i = 0; i < s->n; i++) psk_push(&now, s->list[i]);
        if (now.failed && now.n) now.list[0].opaque = true;
        e->nodes = now.list;
        e->nnodes = now.n;
        e->cap = now.cap;
        e->searched = 0, e->launches = 0;
        arrange(e);
        free(s->list);
    } else {
        psk_names_free(s->list, s->n);
    }
    pthread_mutex_unlock(&mu);
    return r;
}

/* ---- wrappers ---- */

/* What is known of a graph while it is instantiated. */
typedef struct reading {
    psk_op held;
    psk_names names;
} reading;

static void read_graph(reading *x, CUgraph graph) {
    psk_op_begin(&x->held, PSK_REC_STAY, 0, NULL, 0);
    x->held.flags = 0; /* whatever is being captured */
    x->names = (psk_names){0};
    psk_names_of_graph(&x->names, graph, NULL);
}

/* Of a fill the driver looks at what lies at its address when its graph is instantiated, so in strict mode that is
 * on the device until the call has returned. A fill that was captured while its memory was away is fine. */
static CUresult hold_fills(reading *x) {
    if (x->held.mode != PSK_MODE_STRICT) return CUDA_SUCCESS;
    for (size_t i = 0; i < x->names.n; i++)
        if (x->names.list[i].fill && x->names.list[i].naddrs) psk_op_address(&x->held, x->names.list[i].addrs[0]);
    return x->held.n ? psk_strict_hold(&x->held) : CUDA_SUCCESS;
}

/* What the device may hold for a graph; 0: it is not to be cut. */
static uint64_t room_for(const reading *x, unsigned long long flags) {
    uint64_t room = __atomic_load_n(&psk_S.graph_bytes, __ATOMIC_RELAXED);
    return x->held.mode == PSK_MODE_STRICT && !(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) && psk_bytes_named(&x->names) > room ? room : 0;
}

static void let_go(reading *x) {
    psk_strict_done(&x->held);
    psk_in_hook = 0;
}

/* It is instantiated, or updated. */
static CUresult known(reading *x, CUgraphExec h, unsigned long long flags, psk_parts *parts) {
    CUresult r = flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH ? stay(&x->names) : CUDA_SUCCESS;
    put_exec(h, &x->names, flags, parts);
    return r;
}

#define INSTANTIATED(call, flags)                                          \
    if (!out || !graph || !psk_active()) return (call);                    \
    reading x;                                                             \
    read_graph(&x, graph);                                                 \
    CUresult r = hold_fills(&x);                                           \
    if (r == CUDA_SUCCESS) r = (call);                                     \
    psk_parts *parts = r == CUDA_SUCCESS ? psk_cut(graph, &x.names, room_for(&x, (flags)), (flags)) : NULL; \
    let_go(&x);                                                            \
    if (r == CUDA_SUCCESS) return known(&x, *out, (flags), parts);         \
    psk_names_free(x.names.list, x.names.n);                               \
    return r

CUresult psk_w_cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t n) { INSTANTIATED(PSK_REAL(cuGraphInstantiate)(out, graph, bad, log, n), 0); }
CUresult psk_w_cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t n) { INSTANTIATED(PSK_REAL(cuGraphInstantiate_v2)(out, graph, bad, log, n), 0); }
CUresult psk_w_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) { INSTANTIATED(PSK_REAL(cuGraphInstantiateWithFlags)(out, graph, flags), flags); }
CUresult psk_w_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) { INSTANTIATED(PSK_REAL(cuGraphInstantiateWithParams)(out, graph, p), p->flags); }
CUresult psk_w_cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p) { INSTANTIATED(PSK_REAL(cuGraphInstantiateWithParams_ptsz)(out, graph, p), p->flags); }

static CUresult updated(CUgraphExec e, CUgraph graph) {
    unsigned long long flags = flags_of(e);
    reading x;
    read_graph(&x, graph);
    uint64_t room = room_for(&x, flags);
    /* One that was launched whole may still run: its parts do not come before it is over. */
    CUresult (*wait)(void) = room && !parts_of(e) ? (CUresult(*)(void))psk_driver_symbol("cuCtxSynchronize") : NULL;
    if (wait && psk_relaxed(wait) != CUDA_SUCCESS) room = 0;
    psk_parts *parts = room && hold_fills(&x) == CUDA_SUCCESS ? psk_cut(graph, &x.names, room, flags) : NULL;
    let_go(&x);
    return known(&x, e, flags, parts);
}

CUresult psk_w_cuGraphExecUpdate(CUgraphExec e, CUgraph graph, CUgraphNode *bad, int *result) {
    CUresult r = PSK_REAL(cuGraphExecUpdate)(e, graph, bad, result);
    return r == CUDA_SUCCESS && psk_active() ? updated(e, graph) : r;
}

CUresult psk_w_cuGraphExecUpdate_v2(CUgraphExec e, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    CUresult r = PSK_REAL(cuGraphExecUpdate_v2)(e, graph, info);
    return r == CUDA_SUCCESS && psk_active() ? updated(e, graph) : r;
}

/* Once the driver has set something of a node: the same in its part. */
#define IN_PART(e, node, call)                                                                 \
    do {                                                                                       \
        CUgraphExec part;                                                                      \
        CUgraphNode own;                                                                       \
        if (in_part((e), (node), &part, &own) && (call) != CUDA_SUCCESS) make_whole(e);        \
    } while (0)

static CUresult replace_with(CUgraphExec e, CUgraphNode node, psk_node_names set) {
    psk_names s = {0};
    psk_push(&s, set);
    return replace_node(e, node, &s);
}

static CUresult replace_child(CUgraphExec e, CUgraphNode node, CUgraph child) {
    psk_in_hook = 1;
    psk_names s = {0};
    psk_names_of_graph(&s, child, node);
    psk_in_hook = 0;
    return replace_node(e, node, &s);
}

static CUresult replace_batch(CUgraphExec e, CUgraphNode node, const CUDA_MEMCPY_BATCH_NODE_PARAMS *p) {
    psk_names s = {0};
    psk_push_batch(&s, node, node, p);
    return replace_node(e, node, &s);
}

CUresult psk_w_cuGraphExecKernelNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
    CUresult r = PSK_REAL(cuGraphExecKernelNodeSetParams)(e, node, p);
    if (r != CUDA_SUCCESS || !psk_active()) return r;
    IN_PART(e, node, PSK_REAL(cuGraphExecKernelNodeSetParams)(part, own, p));
    return replace_with(e, node, psk_kernel_names(node, node, p, false));
}

CUresult psk_w_cuGraphExecKernelNodeSetParams_v2(CUgraphExec e, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p) {
    CUresult r = PSK_REAL(cuGraphExecKernelNodeSetParams_v2)(e, node, p);
    if (r != CUDA_SUCCESS || !psk_active()) return r;
    IN_PART(e, node, PSK_REAL(cuGraphExecKernelNodeSetParams_v2)(part, own, p));
    return replace_with(e, node, psk_kernel_names(node, node, p, true));
}

CUresult psk_w_cuGraphExecMemcpyNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_MEMCPY3D *p, CUcontext ctx) {
    CUresult r = PSK_REAL(cuGraphExecMemcpyNodeSetParams)(e, node, p, ctx);
    if (r != CUDA_SUCCESS || !psk_active()) return r;
    IN_PART(e, node, PSK_REAL(cuGraphExecMemcpyNodeSetParams)(part, own, p, ctx));
    return replace_with(e, node, psk_memcpy_names(node, node, p));
}

CUresult psk_w_cuGraphExecMemsetNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx) {
    CUresult r = PSK_REAL(cuGraphExecMemsetNodeSetParams)(e, node, p, ctx);
    if (r != CUDA_SUCCESS || !psk_active()) return r;
    IN_PART(e, node, PSK_REAL(cuGraphExecMemsetNodeSetParams)(part, own, p, ctx));
    return replace_with(e, node, psk_memset_names(node, node, p));
}

CUresult psk_w_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p) {
    CUresult r = PSK_REAL(cuGraphExecBatchMemOpNodeSetParams)(e, node, p);
    if (r != CUDA_SUCCESS || !psk_active()) return r;
    IN_PART(e, node, PSK_REAL(cuGraphExecBatchMemOpNodeSetParams)(part, own, p));
    return replace_with(e, node, psk_memops_names(node, node, p));
}

CUresult psk_w_cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode node, CUgraph child) {
    CUresult r = PSK_REAL(cuGraphExecChildGraphNodeSetParams)(e, node, child);
    if (r != CUDA_SUCCESS || !psk_active()) return r;
    IN_PART(e, node, PSK_REAL(cuGraphExecChildGraphNodeSetParams)(part, own, child));
    return replace_child(e, node, child);
}

CUresult psk_w_cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode node, CUgraphNodeParams *p) {
    CUresult r = PSK_REAL(cuGraphExecNodeSetParams)(e, node, p);
    if (r != CUDA_SUCCESS || !psk_active()) return r;
    IN_PART(e, node, PSK_REAL(cuGraphExecNodeSetParams)(part, own, p));
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return replace_with(e, node, psk_kernel_names(node, node, &p->kernel, true));
    case CU_GRAPH_NODE_TYPE_MEMCPY: return replace_with(e, node, psk_memcpy_names(node, node, &p->memcpy.copyParams));
    case CU_GRAPH_NODE_TYPE_MEMSET: return replace_with(e, node, psk_memset_names(node, node, &p->memset));
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return replace_with(e, node, psk_memops_names(node, node, &p->memOp));
    case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: return replace_batch(e, node, &p->memcpyBatch);
    case CU_GRAPH_NODE_TYPE_GRAPH: return replace_child(e, node, p->graph.graph);
    default: return psk_harmless(p->type) ? r : replace_with(e, node, psk_unreadable(node, node));
    }
}

CUresult psk_w_cuGraphExecHostNodeSetParams(CUgraphExec e, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *p) {
    CUresult r = PSK_REAL(cuGraphExecHostNodeSetParams)(e, node, p);
    if (r == CUDA_SUCCESS && psk_active()) IN_PART(e, node, PSK_REAL(cuGraphExecHostNodeSetParams)(part, own, p));
    return r;
}

CUresult psk_w_cuGraphNodeSetEnabled(CUgraphExec e, CUgraphNode node, unsigned enabled) {
    CUresult r = PSK_REAL(cuGraphNodeSetEnabled)(e, node, enabled);
    if (r == CUDA_SUCCESS && psk_active()) IN_PART(e, node, PSK_REAL(cuGraphNodeSetEnabled)(part, own, enabled));
    return r;
}

CUresult psk_w_cuGraphExecDestroy(CUgraphExec e) {
    /* Before: the handle may be given out again the moment it is gone. */
    if (!atomic_load(&psk_child) && psk_S.ring) drop_exec(e);
    return PSK_REAL(cuGraphExecDestroy)(e);
}

/* Whether a launch asks for a grant, so that what it names is searched for addresses. One whose functions are not known is searched as launches of such
 * functions are: the first two that go, and those whose number is a power of 64. Where a graph's memory has had addresses, it is every launch, for it is not
 * known which of its functions takes them. */
static bool to_search(CUgraphExec h) {
    if (PSK_LOAD(psk_S.mode) != PSK_MODE_STRICT) return false;
    bool search = false;
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    uint64_t n = e ? ++e->launches : 0;
    bool new = e && (e->searched < 2 || psk_power_of_64(n) || PSK_LOAD(psk_S.graphs_chase));
    for (size_t i = 0; e && i < e->nnodes && !search; i++) {
        uint32_t function = e->nodes[i].function;
        if (function == PSK_NO_FUNCTION) continue;
        uint32_t state = function == PSK_MAX_FUNCS - 1 ? PSK_INSPECT_ALWAYS : PSK_LOAD(psk_S.funcs[function].inspect);
        search = state == PSK_INSPECT_NEW ? new : state != PSK_INSPECT_CLEARED;
    }
    pthread_mutex_unlock(&mu);
    return search;
}

static void has_gone(CUgraphExec h) {
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    if (e) e->searched++;
    pthread_mutex_unlock(&mu);
}

/* Addresses that the graph copies to where no launch will show them: they are kept by an operation of their own ahead
 * of the graph's, which may name much else. */
static CUresult keep(CUgraphExec h, CUstream s, int ptsz) {
    CUresult r = CUDA_SUCCESS;
    if (PSK_LIKELY(!atomic_load(&psk_some_keep)) || PSK_LOAD(psk_S.mode) != PSK_MODE_STRICT) return r;
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

#define WHOLE UINT32_MAX /* no part */

/* The first node of a part, or of one after it. */
static size_t first_of(const exec *e, uint32_t part) {
    size_t low = 0, high = e->nnodes;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (e->nodes[middle].part < part)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds what the nodes of a graph, or of a part of it, name. */
static void begin(psk_op *op, CUgraphExec h, uint32_t part, CUstream s, int ptsz, bool search) {
    psk_op_begin(op, PSK_REC_GRAPH, 0, s, ptsz);
    if (part != WHOLE) { /* whatever has happened since the first part, it is launched like that one */
        op->mode = PSK_MODE_STRICT;
        op->flags = 0;
        op->follows = part > 0;
    }
    if (search && op->mode == PSK_MODE_STRICT) psk_strict_inspect(op);
    psk_addresses words = {0}; /* to inspect, which asks the driver: not under the lock */
    pthread_mutex_lock(&mu);
    exec *e = find(h);
    if (!e) op->flags |= PSK_FLAG_OPAQUE;
    else op->id = part == WHOLE ? e->id : e->part_id + part;
    for (size_t i = e && part != WHOLE ? first_of(e, part) : 0; e && i < e->nnodes && (part == WHOLE || e->nodes[i].part == part); i++) {
        const psk_node_names *n = &e->nodes[i];
        if (n->opaque) op->flags |= PSK_FLAG_OPAQUE;
        if (op->mode == PSK_MODE_STRICT && n->host_bytes) psk_op_words(op, n->host, n->host_bytes, false);
        for (uint32_t k = 0; k < n->naddrs; k++) {
            psk_op_address(op, n->addrs[k]);
            if (PSK_UNLIKELY(op->flags & PSK_FLAG_INSPECT)) psk_collect(&words, n->addrs[k]);
        }
    }
    pthread_mutex_unlock(&mu);
    if (words.failed) op->flags |= PSK_FLAG_OPAQUE;
    for (uint32_t i = 0; i < words.n; i++) psk_inspect_word(op, words.addrs[i]);
    free(words.addrs);
    if (op->flags & PSK_FLAG_OPAQUE) PSK_COUNT(psk_S.opaque_launches);
}

/* One part after the other, and nothing of another thread's in between. */
static CUresult launch_parts(CUgraphExec h, psk_parts *p, CUstream s, int ptsz, CUresult (*real)(CUgraphExec, CUstream)) {
    bool search = to_search(h);
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < p->n && r == CUDA_SUCCESS; i++) {
        psk_op op;
        begin(&op, h, i, s, ptsz, search);
        op.more = i + 1 < p->n;
        r = psk_op_issue(&op);
        if (r == CUDA_SUCCESS && i == 0) r = psk_parts_begin(p, s, ptsz);
        if (r == CUDA_SUCCESS) r = real(p->part[i].exec, s);
        if (r == CUDA_SUCCESS && !op.more) r = psk_parts_end(p, s, ptsz);
        if (r != CUDA_SUCCESS) op.more = false;
        psk_op_done(&op);
    }
    if (search && r == CUDA_SUCCESS) has_gone(h);
    return r;
}

static CUresult launch(CUgraphExec h, CUstream s, int ptsz, CUresult (*real)(CUgraphExec, CUstream)) {
    CUresult r = keep(h, s, ptsz);
    if (r != CUDA_SUCCESS) return r;
    PSK_COUNT(psk_S.graph_launches);
    psk_parts *parts = PSK_LOAD(psk_S.mode) == PSK_MODE_STRICT ? parts_of(h) : NULL;
    if (parts && !psk_stream_capturing(s, ptsz)) return launch_parts(h, parts, s, ptsz, real);
    psk_op op;
    bool search = to_search(h);
    begin(&op, h, WHOLE, s, ptsz, search);
    r = PSK_OP_CALL(&op, real(h, s));
    if (search && r == CUDA_SUCCESS) has_gone(h);
    return r;
}

CUresult psk_w_cuGraphLaunch(CUgraphExec e, CUstream s) { return psk_active() ? launch(e, s, 0, PSK_REAL(cuGraphLaunch)) : PSK_REAL(cuGraphLaunch)(e, s); }
CUresult psk_w_cuGraphLaunch_ptsz(CUgraphExec e, CUstream s) { return psk_active() ? launch(e, s, 1, PSK_REAL(cuGraphLaunch_ptsz)) : PSK_REAL(cuGraphLaunch_ptsz)(e, s); }
