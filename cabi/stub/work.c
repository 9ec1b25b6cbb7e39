/* Work: what a stream runs and a graph node holds. A graph is work, too. */
#define _GNU_SOURCE
#include "work.h"
#include "ranges.h"
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

CUresult stub_launch_work(work *w, CUfunction h, const unsigned grid[3], const unsigned block[3], unsigned shared, int cooperative, void **params, void **extra) {
    function *f = (function *)h;
    if (!f || (f->magic != FUNCTION_MAGIC && f->magic != KERNEL_MAGIC)) return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < 3; i++)
        if (!grid[i] || !block[i]) return CUDA_ERROR_INVALID_VALUE;
    const kernel_def *d = f->def;
    *w = (work){.type = CU_GRAPH_NODE_TYPE_KERNEL};
    launch_work *l = &w->launch;
    *l = (launch_work){.f = f, .shared = shared, .cooperative = cooperative};
    memcpy(l->grid, grid, sizeof l->grid);
    memcpy(l->block, block, sizeof l->block);
    l->params = calloc(1, d->bytes + 1);
    l->param_ptrs = calloc(d->nparams + 1, sizeof *l->param_ptrs);
    for (unsigned i = 0; i < d->nparams; i++) l->param_ptrs[i] = l->params + d->offsets[i];
    CUresult rc = CUDA_SUCCESS;
    if (params) {
        for (unsigned i = 0; i < d->nparams; i++) memcpy(l->param_ptrs[i], params[i], d->sizes[i]);
    } else if (extra) {
        const void *buffer = NULL;
        size_t bytes = 0;
        for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
            if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
            if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(size_t *)extra[1];
        }
        if (bytes < d->bytes || !buffer)
            rc = CUDA_ERROR_INVALID_VALUE;
        else
            memcpy(l->params, buffer, d->bytes);
    } else if (d->nparams) {
        rc = CUDA_ERROR_INVALID_VALUE;
    }
    if (rc != CUDA_SUCCESS) stub_free_work(w);
    return rc;
}

void stub_free_work(work *w) {
    if (w->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) free(w->memops.ops), w->type = CU_GRAPH_NODE_TYPE_EMPTY;
    if (w->type != CU_GRAPH_NODE_TYPE_KERNEL) return;
    free(w->launch.params);
    free(w->launch.param_ptrs);
    w->type = CU_GRAPH_NODE_TYPE_EMPTY;
}

bool stub_copy_work(work *to, const work *from) {
    if (from->type != CU_GRAPH_NODE_TYPE_KERNEL) {
        *to = *from;
        if (from->type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) return true;
        size_t bytes = from->memops.n * sizeof *from->memops.ops;
        if (!(to->memops.ops = malloc(bytes))) return false;
        memcpy(to->memops.ops, from->memops.ops, bytes);
        return true;
    }
    const launch_work *l = &from->launch;
    return stub_launch_work(to, (CUfunction)l->f, l->grid, l->block, l->shared, l->cooperative, l->param_ptrs, NULL) == CUDA_SUCCESS;
}

CUresult stub_run_work(const work *w) {
    switch (w->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        const launch_work *l = &w->launch;
        const kernel_def *d = l->f->def;
        stub_launch run = {.cooperative = l->cooperative, .nparams = d->nparams, .params = l->params, .offsets = d->offsets, .user = d->user};
        memcpy(run.grid, l->grid, sizeof run.grid);
        memcpy(run.block, l->block, sizeof run.block);
        COUNT(N_LAUNCHES, 1);
        stub_touched_illegal = false;
        d->fn(&run);
        return stub_touched_illegal ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: COUNT(N_COPIES, 1); return stub_copy_3d(&w->copy);
    case CU_GRAPH_NODE_TYPE_MEMSET: COUNT(N_COPIES, 1); return stub_fill(&w->fill);
    case CU_GRAPH_NODE_TYPE_HOST: w->host.fn(w->host.arg); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH: return stub_run_graph(w->child);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        for (unsigned i = 0; i < w->memops.n; i++) {
            memop m = stub_memop_of(&w->memops.ops[i]);
            stub_run_memop(&m);
        }
        return CUDA_SUCCESS;
    default: return CUDA_SUCCESS;
    }
}

/* ---- graphs ---- */

CUgraph stub_graph_new(void) {
    graph *g = calloc(1, sizeof *g);
    if (g) g->tail = &g->head;
    return (CUgraph)g;
}

node *stub_graph_add(graph *g, const work *w) {
    node *n = calloc(1, sizeof *n);
    if (!n || !stub_copy_work(&n->w, w)) {
        free(n);
        return NULL;
    }
    n->graph = g;
    n->type = w->type;
    *g->tail = n;
    g->tail = &n->next;
    g->n++;
    return n;
}

bool stub_graph_after(node *n, node *const *after, size_t count) {
    node **all = realloc(n->after, (n->nafter + count + 1) * sizeof *all);
    if (!all) return false;
    for (size_t i = 0; i < count; i++) all[n->nafter + i] = after[i];
    n->after = all;
    n->nafter += count;
    return true;
}

/* Captured: after what the graph has. */
CUresult stub_graph_append(CUgraph h, const work *w) {
    graph *g = (graph *)h;
    node *last = NULL;
    for (node *n = g->head; n; n = n->next) last = n;
    node *n = stub_graph_add(g, w);
    return n && (!last || stub_graph_after(n, &last, 1)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void free_node(node *n) {
    if (n->w.type == CU_GRAPH_NODE_TYPE_GRAPH) stub_graph_destroy((graph *)n->w.child);
    stub_free_work(&n->w);
    free(n->after);
    free(n);
}

void stub_graph_remove(node *n) {
    graph *g = n->graph;
    node **at = &g->head;
    for (; *at != n; at = &(*at)->next) {
    }
    *at = n->next;
    if (g->tail == &n->next) g->tail = at;
    g->n--;
    for (node *x = g->head; x; x = x->next) {
        size_t kept = 0;
        for (size_t i = 0; i < x->nafter; i++)
            if (x->after[i] != n) x->after[kept++] = x->after[i];
        x->nafter = kept;
    }
    free_node(n);
}

void stub_graph_destroy(graph *g) {
    for (node *n = g->head; n;) {
        node *next = n->next;
        free_node(n);
        n = next;
    }
    free(g);
}

graph *stub_graph_copy(const graph *from) {
    graph *g = (graph *)stub_graph_new();
    for (const node *n = from->head; n; n = n->next) {
        work w = n->w;
        if (w.type == CU_GRAPH_NODE_TYPE_GRAPH) w.child = (CUgraph)stub_graph_copy((graph *)w.child);
        node *made = stub_graph_add(g, &w);
        made->original = n;
        made->type = n->type;
        made->updatable = n->updatable;
        made->disabled = n->disabled;
        for (size_t i = 0; i < n->nafter; i++)
            for (node *x = g->head; x; x = x->next)
                if (x->original == n->after[i]) stub_graph_after(made, &x, 1);
    }
    return g;
}

static bool ready(const node *n) {
    for (size_t i = 0; i < n->nafter; i++)
        if (!n->after[i]->ran) return false;
    return true;
}

/* The last node that may run does, so that a dependency that is lacking shows. */
CUresult stub_run_graph(CUgraph h) {
    graph *g = (graph *)h;
    CUresult rc = CUDA_SUCCESS;
    for (node *n = g->head; n; n = n->next) n->ran = false;
    for (size_t left = g->n; left && rc == CUDA_SUCCESS; left--) {
        node *next = NULL;
        for (node *n = g->head; n; n = n->next)
            if (!n->ran && ready(n)) next = n;
        if (!next->disabled) rc = stub_run_work(&next->w);
        next->ran = true;
    }
    return rc;
}
