/* What the files of the stub share. */
#ifndef PENSTOCK_STUB_INTERNAL_H
#define PENSTOCK_STUB_INTERNAL_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../hook/cuda_abi.h"
#include "stub.h"

#ifndef STUB_VERSION
#define STUB_VERSION 13000
#endif

/* CUDA_ERROR_NOT_INITIALIZED in a forked child and before cuInit. */
CUresult stub_ready(void);
#define READY()                                  \
    do {                                         \
        CUresult ready_ = stub_ready();          \
        if (ready_ != CUDA_SUCCESS) return ready_; \
    } while (0)

/* For calls that need the thread's context: CUDA_ERROR_INVALID_CONTEXT where it has none, and the
 * error that has ended the context, which every call answers from then on. */
CUresult stub_current(void);
#define CURRENT()                                \
    do {                                         \
        CUresult current_ = stub_current();      \
        if (current_ != CUDA_SUCCESS) return current_; \
    } while (0)
/* Ends the context, where an error of work on the device is one that does. */
void stub_failed(CUresult rc);
/* What has ended the context. */
CUresult stub_ended(void);

/* ---- counters ---- */
enum { N_LAUNCHES, N_GRAPH_LAUNCHES, N_FAULTS, N_H2D, N_D2H, N_EVICTIONS, N_PREFETCHES, N_DISCARDS, N_WAITS, N_WRITES, N_COPIES, N_ILLEGAL, N_PARAM_QUERIES, N_COUNTS };
extern atomic_uint_fast64_t stub_counters[N_COUNTS];
#define COUNT(c, n) atomic_fetch_add(&stub_counters[c], (n))
/* Whether this call of a function that can be made to fail does; counts it. */
bool stub_should_fail(const char *name);
uint64_t stub_memory_count(const char *name);
void stub_reset_peaks(void);
uint64_t stub_env_bytes(const char *name, uint64_t otherwise);

/* Held by calls that queue work or change mappings, also while they wait, where STUB_API_LOCK asks for it. */
void stub_api_lock(void);
void stub_api_unlock(void);

#define CUDA_ERROR_ECC_UNCORRECTABLE 214

/* ---- textures ---- */
uint64_t stub_texture_address(uint64_t object); /* 0: there is no such object */

/* ---- kernels ---- */
typedef struct kernel_def {
    const char *name;
    stub_kernel_fn fn;
    void *user;
    unsigned nparams;
    bool opaque;
    size_t *sizes, *offsets, bytes;
} kernel_def;

/* The device code of cuda/kernels, by way of the function that registers. */
void stub_register_own_kernels(kernel_def *(*add)(const char *name, stub_kernel_fn fn, void *user, unsigned nparams, const size_t *sizes));

/* A CUfunction or a CUkernel. */
typedef struct function {
    uint32_t magic;
    const kernel_def *def;
    void *owner; /* module or library */
    struct function *next;
} function;
#define FUNCTION_MAGIC 0x46554e43u
#define KERNEL_MAGIC 0x4b45524eu

/* ---- work: what a stream runs and a graph node holds ---- */
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

typedef struct op op;
typedef struct stream stream;
struct op {
    CUresult (*run)(stream *, op *);
    work w;
    uint64_t a, b, c, d;
    void *p; /* owned when own_p */
    bool own_p;
    op *next;
};

struct stream {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    pthread_t thread;
    bool started;
    bool destroyed; /* free for another, once its work is done */
    op *head, **tail;
    unsigned queued; /* not finished, the running one included */
    CUresult error;  /* sticky */
    CUgraph capture; /* captured into, when not NULL */
    bool capture_origin, capture_invalid;
    uint64_t id;
    CUcontext context;
    unsigned flags;
    int priority;
    stream *next;
};

/* The thread's context, and a number of it that no other has had. */
CUcontext stub_context(void);
uint64_t stub_context_id(void);
/* The legacy default stream of the thread's context. */
stream *stub_legacy(void);
stream *stub_stream_new(CUcontext c);
/* Has a stream be another's once its work is done. */
void stub_stream_drop(stream *s);
/* The stream behind a handle; 0 is the legacy one, or the thread's own under ptsz. NULL: no such stream. */
stream *stub_stream(CUstream s, int ptsz);
op *stub_op(CUresult (*run)(stream *, op *));
/* Queues an operation that cannot be captured. Takes it over, also on failure. */
CUresult stub_enqueue(stream *s, op *o);
/* Queues work, or adds it to the graph that the stream captures. */
CUresult stub_submit(stream *s, const work *w);
CUresult stub_wait_idle(stream *s);
CUresult stub_run_work(stream *s, const work *w);
void stub_free_work(work *w);
bool stub_copy_work(work *to, const work *from);
CUresult stub_launch_work(work *w, CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared, int cooperative, void **params, void **extra);

/* ---- graphs ---- */
CUresult stub_graph_append(CUgraph g, const work *w);
CUgraph stub_graph_new(void);
CUresult stub_run_graph_nodes(stream *s, CUgraph g);
void stub_run_memop(const CUstreamBatchMemOpParams *p);

/* ---- memory ---- */
extern __thread bool stub_touched_illegal; /* set by stub_touch */
/* Whether the driver knows what lies at an address: of a reserved one, when the device may reach it. */
bool stub_known(uint64_t p);
/* Counts an access to memory that the device cannot reach, and ends the process where STUB_ABORT asks for it. */
void stub_illegal(const char *who, uint64_t p, size_t n);
CUresult stub_copy_3d(const CUDA_MEMCPY3D *c);
CUresult stub_fill(const CUDA_MEMSET_NODE_PARAMS *f);
#endif
