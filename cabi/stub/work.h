/* Work: what a stream runs and a graph node holds. A graph is work, too. */
#ifndef PENSTOCK_STUB_WORK_H
#define PENSTOCK_STUB_WORK_H
#include "base.h"
#include "kernels.h"
#include "memops.h"

typedef struct launch_work {
    function *f;
    unsigned grid[3], block[3], shared;
    int cooperative;
    unsigned char *params; /* owned */
    void **param_ptrs;     /* owned; into params, for the node queries */
} launch_work;

typedef struct work {
    int type; /* CU_GRAPH_NODE_TYPE_* */
    union {
        launch_work launch;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS fill;
        struct {
            void (*fn)(void *);
            void *arg;
        } host;
        CUgraph child;
        struct {
            CUstreamBatchMemOpParams *ops; /* owned */
            unsigned n;
        } memops;
    };
} work;

CUresult stub_launch_work(work *w, CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared, int cooperative, void **params, void **extra);
void stub_free_work(work *w);
bool stub_copy_work(work *to, const work *from);
CUresult stub_run_work(const work *w);

typedef struct node {
    work w;
    struct node *next;
    struct graph *graph;
    const struct node *original; /* in an executable graph, or a clone: the node it was made from */
    struct node **after;         /* owned; what it depends on */
    size_t nafter;
    bool ran, disabled;
    int type; /* as it is told; that of w, unless stub_tell_type */
    int updatable;
    CUdeviceptr ends[2]; /* of a copy that is told as a batch of one */
    size_t bytes;
} node;

typedef struct graph {
    node *head, **tail;
    size_t n;
} graph;

CUgraph stub_graph_new(void);
node *stub_graph_add(graph *g, const work *w); /* copies w */
bool stub_graph_after(node *n, node *const *after, size_t count); /* it depends on these, too */
void stub_graph_remove(node *n);
CUresult stub_graph_append(CUgraph g, const work *w);
graph *stub_graph_copy(const graph *from);
void stub_graph_destroy(graph *g);
CUresult stub_run_graph(CUgraph g);
#endif
