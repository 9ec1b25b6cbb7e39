/*
 * A graph that names more than the device may hold cannot have all of it there at a time. Its nodes are put in an order
 * that their dependencies allow, the one in which they were added where that is one, and the order is cut wherever what
 * the nodes since the last cut name would take more than a part may. Each part is a copy of the graph without the nodes of
 * the others: a way from one of its nodes to another leads over nodes in between, which are in the same part, so the copy
 * has all dependencies within the part; those between parts hold as the stream runs one after the other. The graph itself is
 * instantiated as well: it is what the program's handle stands for, and what is launched where parts will not do.
 *
 * A graph stays whole when the hook cannot tell what it names or does: with nodes of other types than kernels, copies,
 * fills, calls of the host and graphs of these, nodes that change on the device, and graphs for the device to launch.
 */
#define _GNU_SOURCE
#include "parts.h"
#include "address.h"
#include "captures.h"
#include "cuda_abi.h"
#include "nodes.h"
#include "real.h"
#include "ring.h"
#include "shared.h"

#include <stdlib.h>

/* A part may name this share of what the device may hold: while one runs the next ones come. */
#define PARTS_AT_ONCE 8
/* More are not made: each costs a launch, and memory of the driver's. */
#define MOST_PARTS 256u
/* A part's operation names few enough to be told one by one (PSK_OP_MAX_SLOTS). */
#define MOST_SLOTS 4096u

typedef struct edge_data {
    unsigned char ports[8]; /* CUgraphEdgeData: of no interest, but a graph may have no edges without */
} edge_data;

typedef struct queries {
    CUresult (*edges)(CUgraph, CUgraphNode *, CUgraphNode *, edge_data *, size_t *);
    CUresult (*plain_edges)(CUgraph, CUgraphNode *, CUgraphNode *, size_t *); /* of drivers before CUDA 12.3 */
    CUresult (*clone)(CUgraph *, CUgraph);
    CUresult (*in_clone)(CUgraphNode *, CUgraphNode, CUgraph);
    CUresult (*remove)(CUgraphNode);
    CUresult (*destroy)(CUgraph);
    CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long);
    CUresult (*exec_destroy)(CUgraphExec);
    CUresult (*event)(CUevent *, unsigned);
    CUresult (*event_destroy)(CUevent);
    CUresult (*record[2])(CUevent, CUstream); /* by ptsz */
    CUresult (*wait[2])(CUstream, CUevent, unsigned);
} queries;

static const queries *get_queries(void) {
    static queries q;
    static atomic_int found;
    if (!atomic_load(&found)) { /* idempotent */
        q.edges = (CUresult(*)(CUgraph, CUgraphNode *, CUgraphNode *, edge_data *, size_t *))psk_driver_symbol("cuGraphGetEdges_v2");
        q.plain_edges = (CUresult(*)(CUgraph, CUgraphNode *, CUgraphNode *, size_t *))psk_driver_symbol("cuGraphGetEdges");
        q.clone = (CUresult(*)(CUgraph *, CUgraph))psk_driver_symbol("cuGraphClone");
        q.in_clone = (CUresult(*)(CUgraphNode *, CUgraphNode, CUgraph))psk_driver_symbol("cuGraphNodeFindInClone");
        q.remove = (CUresult(*)(CUgraphNode))psk_driver_symbol("cuGraphDestroyNode");
        q.destroy = (CUresult(*)(CUgraph))psk_driver_symbol("cuGraphDestroy");
        q.instantiate = (CUresult(*)(CUgraphExec *, CUgraph, unsigned long long))psk_driver_symbol("cuGraphInstantiateWithFlags");
        q.exec_destroy = (CUresult(*)(CUgraphExec))psk_driver_symbol("cuGraphExecDestroy");
        q.event = (CUresult(*)(CUevent *, unsigned))psk_driver_symbol("cuEventCreate");
        q.event_destroy = (CUresult(*)(CUevent))psk_driver_symbol("cuEventDestroy_v2");
        q.record[0] = (CUresult(*)(CUevent, CUstream))psk_driver_symbol("cuEventRecord");
        q.record[1] = (CUresult(*)(CUevent, CUstream))psk_driver_symbol("cuEventRecord_ptsz");
        q.wait[0] = (CUresult(*)(CUstream, CUevent, unsigned))psk_driver_symbol("cuStreamWaitEvent");
        q.wait[1] = (CUresult(*)(CUstream, CUevent, unsigned))psk_driver_symbol("cuStreamWaitEvent_ptsz");
        atomic_store(&found, 1);
    }
    return &q;
}

static bool can_cut(const queries *q) {
    return (q->edges || q->plain_edges) && q->clone && q->in_clone && q->remove && q->destroy && q->instantiate && q->exec_destroy && q->event && q->event_destroy && q->record[0] &&
           q->record[1] && q->wait[0] && q->wait[1];
}

/* ---- a graph to cut: its nodes are told by their indices ---- */

typedef struct place {
    CUgraphNode node;
    uint32_t index;
} place;

/* An allocation that the graph names. */
typedef struct named {
    uint32_t slot;
    uint32_t part; /* the last one that names it, + 1 */
    uint64_t at;   /* an address in it */
    uint64_t bytes;
} named;

/* For each node some of other things: of node i they are list[from[i]..from[i + 1]). */
typedef struct lists {
    uint32_t *from, *list;
} lists;

typedef struct plan {
    size_t n, nnamed;
    CUgraphNode *nodes;
    place *places; /* in the order of the handles */
    named *named;  /* in the order of their slots */
    lists names;   /* indices into named */
    lists before;  /* nodes that must have run */
    uint32_t *order, *part;
    uint32_t nparts;
} plan;

static void plan_free(plan *p) {
    void *all[] = {p->nodes, p->places, p->named, p->names.from, p->names.list, p->before.from, p->before.list, p->order, p->part};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static int by_handle(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const place *)a)->node, y = (uintptr_t)((const place *)b)->node;
    return x < y ? -1 : x > y;
}

static int by_slot(const void *a, const void *b) {
    uint32_t x = ((const named *)a)->slot, y = ((const named *)b)->slot;
    return x < y ? -1 : x > y;
}

static bool find_nodes(plan *p, CUgraph graph) {
    if (!(p->nodes = psk_nodes(graph, &p->n)) || p->n > UINT32_MAX / 2 || !(p->places = calloc(p->n, sizeof *p->places))) return false;
    for (size_t i = 0; i < p->n; i++) p->places[i] = (place){p->nodes[i], (uint32_t)i};
    qsort(p->places, p->n, sizeof *p->places, by_handle);
    return true;
}

static uint32_t index_of(const plan *p, CUgraphNode node) {
    const place *at = bsearch(&(place){.node = node}, p->places, p->n, sizeof *p->places, by_handle);
    return at ? at->index : UINT32_MAX;
}

/* Makes lists of n pairs (node, thing). */
static bool make_lists(lists *l, size_t nodes, const uint32_t (*pairs)[2], size_t n) {
    if (!(l->from = calloc(nodes + 2, sizeof *l->from)) || !(l->list = calloc(n + 1, sizeof *l->list))) return false;
    for (size_t i = 0; i < n; i++) l->from[pairs[i][0] + 2]++;
    for (size_t i = 2; i < nodes + 2; i++) l->from[i] += l->from[i - 1];
    for (size_t i = 0; i < n; i++) l->list[l->from[pairs[i][0] + 1]++] = pairs[i][1];
    return true;
}

static uint32_t published_at(uint64_t block) { return psk_published(block << PSK_BLOCK_SHIFT); }

static uint64_t bytes_around(const named *x) {
    uint64_t first = x->at >> PSK_BLOCK_SHIFT, end = first + 1;
    while (first && published_at(first - 1) == x->slot) first--;
    while (published_at(end) == x->slot) end++;
    return (end - first) << PSK_BLOCK_SHIFT;
}

/* Which allocations are named, and how large they are together; 0 also when there is no memory to tell. */
static uint64_t find_named(plan *p, const psk_names *names) {
    size_t most = 0;
    for (size_t i = 0; i < names->n; i++) most += names->list[i].naddrs;
    if (!(p->named = calloc(most + 1, sizeof *p->named))) return 0;
    size_t n = 0;
    for (size_t i = 0; i < names->n; i++)
        for (uint32_t k = 0; k < names->list[i].naddrs; k++) {
            uint32_t slot = psk_slot_of(names->list[i].addrs[k]);
            if (slot) p->named[n++] = (named){.slot = slot, .at = names->list[i].addrs[k]};
        }
    qsort(p->named, n, sizeof *p->named, by_slot);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (p->nnamed && p->named[p->nnamed - 1].slot == p->named[i].slot) continue;
        named *x = &p->named[p->nnamed++];
        *x = p->named[i];
        bytes += x->bytes = bytes_around(x);
    }
    return bytes;
}

uint64_t psk_bytes_named(const psk_names *names) {
    plan p = {0};
    uint64_t bytes = find_named(&p, names);
    plan_free(&p);
    return bytes;
}

static bool find_names(plan *p, const psk_names *names) {
    size_t most = 0, n = 0;
    for (size_t i = 0; i < names->n; i++) most += names->list[i].naddrs;
    uint32_t(*pairs)[2] = calloc(most + 1, sizeof *pairs);
    bool found = pairs;
    for (size_t i = 0; found && i < names->n; i++) {
        uint32_t node = index_of(p, names->list[i].top);
        found = node != UINT32_MAX;
        for (uint32_t k = 0; found && k < names->list[i].naddrs; k++) {
            uint32_t slot = psk_slot_of(names->list[i].addrs[k]);
            const named *x = slot ? bsearch(&(named){.slot = slot}, p->named, p->nnamed, sizeof *p->named, by_slot) : NULL;
            if (x) pairs[n][0] = node, pairs[n++][1] = (uint32_t)(x - p->named);
        }
    }
    found = found && make_lists(&p->names, p->n, pairs, n);
    free(pairs);
    return found;
}

static bool find_dependencies(plan *p, CUgraph graph) {
    const queries *q = get_queries();
    size_t n = 0;
    if ((q->edges ? q->edges(graph, NULL, NULL, NULL, &n) : q->plain_edges(graph, NULL, NULL, &n)) != CUDA_SUCCESS) return false;
    CUgraphNode *from = calloc(n + 1, sizeof *from), *to = calloc(n + 1, sizeof *to);
    edge_data *data = calloc(n + 1, sizeof *data);
    uint32_t(*pairs)[2] = calloc(n + 1, sizeof *pairs);
    bool found = from && to && data && pairs && (!n || (q->edges ? q->edges(graph, from, to, data, &n) : q->plain_edges(graph, from, to, &n)) == CUDA_SUCCESS);
    for (size_t i = 0; found && i < n; i++) {
        pairs[i][0] = index_of(p, to[i]), pairs[i][1] = index_of(p, from[i]);
        found = pairs[i][0] != UINT32_MAX && pairs[i][1] != UINT32_MAX;
    }
    found = found && make_lists(&p->before, p->n, (const uint32_t(*)[2])pairs, n);
    free(from), free(to), free(data), free(pairs);
    return found;
}

/* The nodes as they were added, each after those that it depends on. */
static bool put_in_order(plan *p) {
    uint32_t *open = calloc(p->n, sizeof *open); /* nodes whose dependencies are being put first */
    uint32_t *next = calloc(p->n, sizeof *next); /* of each, the next dependency to look at */
    bool *done = calloc(p->n, sizeof *done);
    bool ok = (p->order = calloc(p->n, sizeof *p->order)) && open && next && done;
    for (size_t i = 0; ok && i < p->n; i++) next[i] = p->before.from[i];
    size_t n = 0;
    for (uint32_t i = 0; ok && i < p->n; i++) {
        size_t depth = 0;
        if (!done[i]) open[depth++] = i;
        while (depth) {
            uint32_t x = open[depth - 1];
            while (next[x] < p->before.from[x + 1] && done[p->before.list[next[x]]]) next[x]++;
            if (next[x] == p->before.from[x + 1]) {
                done[x] = true;
                p->order[n++] = x;
                depth--;
            } else {
                open[depth++] = p->before.list[next[x]++];
            }
        }
    }
    free(open), free(next), free(done);
    return ok;
}

/* Cuts the order wherever a part would name more than so much. */
static void cut_order(plan *p, uint64_t most) {
    uint64_t bytes = 0;
    uint32_t slots = 0, part = 0;
    bool any = false;
    for (size_t i = 0; i < p->nnamed; i++) p->named[i].part = 0;
    for (size_t i = 0; i < p->n; i++) {
        uint32_t x = p->order[i];
        for (int again = 0; again < 2; again++) {
            uint64_t more = 0;
            uint32_t others = 0;
            for (uint32_t k = p->names.from[x]; k < p->names.from[x + 1]; k++) {
                named *m = &p->named[p->names.list[k]];
                if (m->part == part + 1) continue;
                m->part = part + 1; /* a node that begins the next part says so again */
                more += m->bytes;
                others++;
            }
            bool fits = bytes + more <= most && slots + others <= MOST_SLOTS;
            bytes += more, slots += others;
            if (fits || !any) break;
            part++;
            bytes = slots = 0;
            any = false;
        }
        p->part[x] = part;
        any = true;
    }
    p->nparts = part + 1;
}

/* ---- its parts ---- */

/* Whether all that a graph consists of does the same in a part of it. */
static bool divisible(CUgraph graph, int depth) {
    size_t n;
    CUgraphNode *nodes = psk_nodes(graph, &n);
    bool ok = depth < 16 && (nodes || !n);
    for (size_t i = 0; ok && i < n; i++) {
        CUgraph child;
        switch (psk_node_type(nodes[i])) {
        case CU_GRAPH_NODE_TYPE_KERNEL: case CU_GRAPH_NODE_TYPE_MEMCPY: case CU_GRAPH_NODE_TYPE_MEMSET: case CU_GRAPH_NODE_TYPE_HOST: case CU_GRAPH_NODE_TYPE_EMPTY:
        case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH: break;
        case CU_GRAPH_NODE_TYPE_GRAPH: ok = (child = psk_child_of(nodes[i])) && divisible(child, depth + 1); break;
        default: ok = false;
        }
    }
    free(nodes);
    return ok;
}

static bool instantiate(psk_parts *made, const plan *p, CUgraph graph, uint32_t part, unsigned long long flags) {
    const queries *q = get_queries();
    psk_part *x = &made->part[part];
    if (q->clone(&x->graph, graph) != CUDA_SUCCESS) {
        x->graph = NULL;
        return false;
    }
    for (size_t i = 0; i < p->n; i++) {
        psk_part_node *at = &made->node[i];
        CUgraphNode own;
        if (q->in_clone(&own, at->node, x->graph) != CUDA_SUCCESS) return false;
        if (at->part == part)
            at->own = own;
        else if (q->remove(own) != CUDA_SUCCESS)
            return false;
    }
    if (q->instantiate(&x->exec, x->graph, flags) == CUDA_SUCCESS) return true;
    x->exec = NULL;
    return false;
}

static psk_parts *instantiate_all(const plan *p, CUgraph graph, unsigned long long flags) {
    const queries *q = get_queries();
    psk_parts *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->n = p->nparts, made->nnodes = p->n;
    bool ok = (made->part = calloc(made->n, sizeof *made->part)) && (made->node = calloc(made->nnodes, sizeof *made->node));
    for (size_t i = 0; ok && i < p->n; i++) made->node[i] = (psk_part_node){.node = p->places[i].node, .part = p->part[p->places[i].index]};
    ok = ok && q->event(&made->launched, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
    for (uint32_t i = 0; ok && i < p->nparts; i++) ok = instantiate(made, p, graph, i, flags);
    if (ok) return made;
    psk_parts_free(made);
    return NULL;
}

bool psk_divisible(const psk_names *names) {
    for (size_t i = 0; i < names->n; i++)
        if (names->list[i].opaque || names->list[i].host_bytes) return false; /* what the host puts there is looked at by a launch of all */
    return true;
}

psk_parts *psk_cut(CUgraph graph, const psk_names *names, uint64_t most, unsigned long long flags) {
    if (!most || names->failed || !psk_divisible(names) || !can_cut(get_queries())) return NULL;
    plan p = {0};
    psk_parts *made = NULL;
    if (find_named(&p, names) && divisible(graph, 0) && find_nodes(&p, graph) && find_names(&p, names) && find_dependencies(&p, graph) && put_in_order(&p) &&
        (p.part = calloc(p.n, sizeof *p.part))) {
        for (uint64_t each = most / PARTS_AT_ONCE; each <= most; each *= 2) {
            cut_order(&p, each);
            if (p.nparts <= MOST_PARTS) break;
        }
        if (p.nparts > 1 && p.nparts <= MOST_PARTS) made = instantiate_all(&p, graph, flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    }
    plan_free(&p);
    return made;
}

void psk_parts_free(psk_parts *p) {
    if (!p) return;
    const queries *q = get_queries();
    for (size_t i = 0; p->part && i < p->n; i++) {
        if (p->part[i].exec) q->exec_destroy(p->part[i].exec); /* the driver keeps it while it runs */
        if (p->part[i].graph) q->destroy(p->part[i].graph);
    }
    if (p->launched) q->event_destroy(p->launched);
    free(p->part), free(p->node), free(p);
}

static int by_node(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const psk_part_node *)a)->node, y = (uintptr_t)((const psk_part_node *)b)->node;
    return x < y ? -1 : x > y;
}

const psk_part_node *psk_part_of(const psk_parts *p, CUgraphNode node) { return bsearch(&(psk_part_node){.node = node}, p->node, p->nnodes, sizeof *p->node, by_node); }

CUresult psk_parts_begin(psk_parts *p, CUstream s, int ptsz) { return p->once ? get_queries()->wait[ptsz](s, p->launched, 0) : CUDA_SUCCESS; }

CUresult psk_parts_end(psk_parts *p, CUstream s, int ptsz) {
    p->once = get_queries()->record[ptsz](p->launched, s) == CUDA_SUCCESS;
    return p->once ? CUDA_SUCCESS : psk_stream_synchronize(s, ptsz); /* a stream of another context than the event's */
}

void psk_parts_wait(const psk_parts *p) {
    while (p->once && psk_event_query(p->launched) == CUDA_ERROR_NOT_READY) psk_nap(50000);
}
