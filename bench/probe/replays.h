/*
 * replays.h - what the files of the replay probe share.
 *
 * The probe asks of each launch of a real job: would it do the same when it were issued again,
 * with clones of what it names in place of the memory itself? It is the hook of cabi/hook with
 * these files in place of launch.c, preloaded into the job (bench/replays.py builds and runs it):
 *
 *   replays.c         the wrappers of launches; what a launch names; which ones are tried
 *   replays_memory.c  an allocator for PyTorch, so that all blocks are known; sums of memory
 *   replays_trial.c   the trials
 *   replays_beside.c  replays over and over on a stream of their own, beside the job
 *   replays_sums.cu   the kernel that sums
 *
 * It is slow on purpose: everything is waited for, and all memory is summed around a launch that
 * is tried. Disarmed, it only forwards.
 */
#ifndef REPLAYS_H
#define REPLAYS_H
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../../cabi/hook/address.h"
#include "../../cabi/hook/captures.h"
#include "../../cabi/hook/op.h"
#include "../../cabi/hook/real.h"
#include "../../cabi/hook/ring.h"
#include "../../cabi/hook/shared.h"

#define EXPORT __attribute__((visibility("default")))

/* Driver calls that the hook does not wrap, or not under that name. */
#define DRIVER(X)                                                                                                         \
    X(cuCtxSynchronize, CUresult, (void))                                                                                 \
    X(cuCtxGetCurrent, CUresult, (CUcontext *))                                                                           \
    X(cuCtxSetCurrent, CUresult, (CUcontext))                                                                             \
    X(cuCtxGetStreamPriorityRange, CUresult, (int *, int *))                                                              \
    X(cuFuncGetName, CUresult, (const char **, CUfunction))                                                               \
    X(cuFuncGetParamInfo, CUresult, (CUfunction, size_t, size_t *, size_t *))                                             \
    X(cuKernelGetName, CUresult, (const char **, CUfunction))                                                             \
    X(cuKernelGetParamInfo, CUresult, (CUfunction, size_t, size_t *, size_t *))                                           \
    X(cuLaunchKernelEx, CUresult, (const CUlaunchConfig *, CUfunction, void **, void **))                                 \
    X(cuMemAlloc_v2, CUresult, (CUdeviceptr *, size_t))                                                                   \
    X(cuMemFree_v2, CUresult, (CUdeviceptr))                                                                              \
    X(cuMemGetAddressRange_v2, CUresult, (CUdeviceptr *, size_t *, CUdeviceptr))                                          \
    X(cuMemGetInfo_v2, CUresult, (size_t *, size_t *))                                                                    \
    X(cuMemHostAlloc, CUresult, (void **, size_t, unsigned))                                                              \
    X(cuMemFreeHost, CUresult, (void *))                                                                                  \
    X(cuMemcpyDtoDAsync_v2, CUresult, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                       \
    X(cuMemcpyDtoHAsync_v2, CUresult, (void *, CUdeviceptr, size_t, CUstream))                                            \
    X(cuMemsetD8Async, CUresult, (CUdeviceptr, unsigned char, size_t, CUstream))                                          \
    X(cuModuleGetFunction, CUresult, (CUfunction *, CUmodule, const char *))                                              \
    X(cuModuleLoad, CUresult, (CUmodule *, const char *))                                                                 \
    X(cuStreamCreateWithPriority, CUresult, (CUstream *, unsigned, int))                                                  \
    X(cuStreamDestroy_v2, CUresult, (CUstream))                                                                           \
    X(cuStreamQuery, CUresult, (CUstream))                                                                                \
    X(cuTensorMapReplaceAddress, CUresult, (void *, CUdeviceptr))
typedef struct driver {
#define FIELD(name, type, args) type(*name) args;
    DRIVER(FIELD)
#undef FIELD
} driver;
extern driver D;
void replays_open(void); /* before D is used; a name that the driver lacks stays NULL */

/* Ends the process with a line about it in the results: after this nothing can be relied on. */
_Noreturn void replays_fail(const char *what, CUresult r);
#define OK(call)                                              \
    do {                                                      \
        CUresult r_ = (call);                                 \
        if (PSK_UNLIKELY(r_ != CUDA_SUCCESS)) replays_fail(#call, r_); \
    } while (0)

/* ---- replays_memory.c ---- */
typedef struct sum {
    uint64_t a, b;
} sum;
static inline bool sum_equal(sum x, sum y) { return x.a == y.a && x.b == y.b; }

typedef struct block {
    uint64_t base, bytes, room; /* bytes as asked for; room: what the driver was asked for */
    CUstream stream;
    bool foreign; /* not of the allocator: a library's own */
    bool named;   /* by a launch, since the probe was armed */
    bool born;    /* since the probe was armed, with these contents */
    sum contents;
    struct block *next; /* of the unused ones of a size */
} block;

extern pthread_mutex_t replays_mu; /* of all that follows, and held around a launch while armed */
extern block **replays_live;       /* by address */
extern unsigned replays_nlive;
block *replays_block_at(uint64_t addr); /* live, NULL: none */

typedef struct span {
    uint64_t base, bytes;
} span;
/* What sums need; one for each stream that sums are made on. */
typedef struct summer {
    struct piece *pieces; /* pinned */
    unsigned npieces, nspans; /* room for so many */
    CUdeviceptr out;
    sum *sums; /* pinned: valid when the stream has come so far */
} summer;
void replays_sums_load(const char *module);
void replays_sum(summer *s, CUstream stream, const span *spans, unsigned n);

/* ---- replays.c ---- */
#define MAX_BYTES 32768 /* of parameters */
#define MAX_WORDS (MAX_BYTES / 8)
#define MAX_NAMED 1024 /* distinct blocks of a launch */
#define MAX_ATTRS 16

typedef struct function {
    CUfunction handle;
    uint32_t id;
    char *name;
    bool opaque, banned, kept; /* kept: it has a recipe */
    unsigned nparams;
    size_t *offsets, *sizes, bytes;
} function;

typedef struct word { /* of the parameters, an address in a block */
    uint16_t at, block;
    uint64_t inside;
} word;

typedef struct launch {
    bool tried;
    function *f;
    CUlaunchConfig config;
    CUlaunchAttribute attrs[MAX_ATTRS]; /* those that a replay has */
    char api;                           /* k, x (Ex) or c (cooperative) */
    unsigned nattr_ids, attr_ids[MAX_ATTRS]; /* those that the launch had */
    _Alignas(64) unsigned char params[MAX_BYTES];
    unsigned nwords, nnamed, nhost;
    word words[MAX_WORDS];
    block *named[MAX_NAMED];
    block foreign[MAX_NAMED];
    bool fresh[MAX_NAMED];
    uint64_t offset[MAX_NAMED]; /* of its copy in an area */
    uint64_t total;
} launch;

/* A launch as a replay issues it: parameters with the words of some blocks moved. */
typedef struct issue {
    function *f;
    CUlaunchConfig config;
    CUlaunchAttribute attrs[MAX_ATTRS];
    void **pointers;
    _Alignas(64) unsigned char params[MAX_BYTES];
} issue;
/* to[i]: where block i is now, 0: where it was. */
issue *replays_issue(const launch *l, const uint64_t *to);
void replays_issue_free(issue *i);
CUresult replays_go(issue *i, CUstream s);
/* Waits for a stream; a replay that does not end within 10 s ends the process. */
CUresult replays_wait(CUstream s);

extern FILE *replays_out;
extern atomic_bool replays_armed;
extern function *replays_current; /* what is being tried, for replays_fail */

/* ---- replays_trial.c ---- */
extern uint64_t replays_area; /* bytes that the blocks of a launch may have together */
extern CUstream replays_stream;
void replays_trial_open(uint64_t limit);
void replays_trial_close(void);
void replays_trial_before(launch *l);
void replays_trial_after(launch *l, CUresult r);

/* ---- replays_beside.c ---- */
/* Keeps a launch whose replay was right. before: copies of its blocks, at their offsets. */
void replays_keep(const launch *l, const bool *changed, const bool *needs_old, const sum *after, CUdeviceptr before);

#endif
