/*
 * NCCL. A collective's kernel finds its buffers in memory of NCCL's own, where
 * parameters do not show them, but the call names them. In strict mode each call
 * is one operation on its stream; in the other modes the wrappers forward, and
 * the kernel that NCCL launches is recorded like any other.
 *
 * Within a group nothing is launched before the outermost ncclGroupEnd. So there
 * the buffers are only remembered, and at its end there is one operation for each
 * stream of the group, all of them waited for before the real call. Their stream
 * locks are held together, the lower index taken first.
 *
 * The address of a buffer is enough: a slot is a whole tensor.
 *
 * What NCCL asks of the driver inside the real call is looked at, too: within.c.
 *
 * A non-blocking communicator may launch later, from a thread of NCCL's, when the
 * engine has been told that the call's memory is free to leave. Who starts the job sets
 * NCCL_COMM_BLOCKING=1; where that was undone the job ends with an error.
 */
#define _GNU_SOURCE
#include "nccl.h"
#include "callers.h"
#include "captures.h"
#include "issue.h"
#include "names.h"
#include "op.h"
#include "real.h"
#include "stay.h"
#include "streams.h"
#include "within.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ncclResult_t */
enum { NCCL_SUCCESS = 0, NCCL_UNHANDLED_CUDA_ERROR = 1, NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_USAGE = 5, NCCL_IN_PROGRESS = 7 };

/* ---- the real entry points ---- */

enum {
#define PSK_NCCL(name) ROW_##name,
#include "nccl.def"
#undef PSK_NCCL
    ROWS
};
static const char *const names[ROWS] = {
#define PSK_NCCL(name) #name,
#include "nccl.def"
#undef PSK_NCCL
};

/* More than one NCCL may be loaded, and a communicator of one means nothing to another. */
static psk_callers known[ROWS];

static int row_of(const char *name) {
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(names[i], name)) return i;
    return -1;
}

bool psk_nccl_name(const char *name) { return !strncmp(name, "nccl", 4) && row_of(name) >= 0; }

static void *find_real(int row, void *caller) {
    if (!psk_have_dlsym()) return NULL;
    void *p = psk_symbol_near(caller, names[row]);
    if (!p || psk_nccl_export(p)) p = psk_symbol_behind(names[row]);
    if (p) return p;
    void *lib = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    if (!lib) return NULL;
    p = psk_real_dlsym(lib, names[row]);
    dlclose(lib);
    return p;
}

static void *real_of(int row, void *caller) {
    void *p = psk_caller_real(&known[row], caller);
    if (PSK_LIKELY(p != NULL)) return p;
    p = find_real(row, caller);
    if (p) psk_caller_found(&known[row], caller, p);
    return p;
}

/* ---- inside a real call: see within.c ---- */

#define INSIDE(outer_ops, count, call)                                    \
    ({                                                                    \
        psk_within = &(const psk_outer){.ops = (outer_ops), .n = (count)}; \
        int r_ = (call);                                                  \
        psk_within = NULL;                                                \
        r_;                                                               \
    })

/* ---- groups ---- */

typedef struct member {
    CUstream stream;
    uint32_t index;
    uint64_t buffers[2];
} member;

#define MAX_MEMBERS (PSK_OP_MAX_SLOTS / 2) /* so that no operation of a group is opaque: it would ask with stream locks held */

PSK_TLS int depth;
PSK_TLS member *members;
PSK_TLS uint32_t nmembers;

static void forget_members(void) {
    free(members);
    members = NULL;
    nmembers = 0;
}

static int remember(CUstream s, const void *a, const void *b) {
    if (nmembers == MAX_MEMBERS) {
        fprintf(stderr, "penstock: more than %d NCCL calls in one group: split the group\n", MAX_MEMBERS);
        return NCCL_INVALID_USAGE;
    }
    if (!members && !(members = malloc(MAX_MEMBERS * sizeof *members))) return NCCL_SYSTEM_ERROR;
    members[nmembers++] = (member){s, psk_stream_index(s, 0), {(uint64_t)(uintptr_t)a, (uint64_t)(uintptr_t)b}};
    return NCCL_SUCCESS;
}

static int by_index(const void *a, const void *b) {
    const member *x = a, *y = b;
    return x->index < y->index ? -1 : x->index > y->index;
}

static bool strict(void) { return PSK_LOAD(psk_S.mode) == PSK_MODE_STRICT && !psk_in_hook; }

/* The result of a call that must have launched by now. */
static int launched(int r) {
    if (r != NCCL_IN_PROGRESS) return r;
    uint32_t well = 0;
    if (__atomic_compare_exchange_n(&psk_S.refuse, &well, CUDA_ERROR_NOT_SUPPORTED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        fprintf(stderr, "penstock: this NCCL communicator does not block, so its kernels may run when their memory has left: the job is ended; set NCCL_COMM_BLOCKING=1\n");
    return NCCL_UNHANDLED_CUDA_ERROR;
}

/* Everything remembered is made resident, then the group is ended. */
static int end_group(int (*real)(void)) {
    qsort(members, nmembers, sizeof *members, by_index);
    psk_op *ops = malloc(nmembers * sizeof *ops);
    if (!ops) return NCCL_SYSTEM_ERROR;
    uint32_t nops = 0;
    int result = NCCL_SUCCESS;
    for (uint32_t i = 0; i < nmembers && result == NCCL_SUCCESS;) {
        psk_op *op = &ops[nops++];
        uint32_t index = members[i].index;
        psk_op_begin(op, PSK_REC_COLLECTIVE, PSK_NCCL_GROUP, members[i].stream, 0);
        for (; i < nmembers && members[i].index == index; i++) {
            psk_op_address(op, members[i].buffers[0]);
            psk_op_address(op, members[i].buffers[1]);
        }
        if (op->flags & PSK_FLAG_OPAQUE) /* out of memory */
            result = NCCL_SYSTEM_ERROR;
        else if (psk_op_issue(op) != CUDA_SUCCESS)
            result = NCCL_UNHANDLED_CUDA_ERROR;
    }
    if (result == NCCL_SUCCESS) {
        result = INSIDE(ops, nops, real());
        /* Of the streams that share an index only one is the operation's. */
        for (uint32_t i = nmembers; i-- > 0 && members[i].index == PSK_STREAM_SHARED;)
            if (!(ops[nops - 1].flags & PSK_FLAG_CAPTURED)) psk_stream_synchronize(members[i].stream, 0);
    }
    while (nops) psk_op_done(&ops[--nops]);
    free(ops);
    return launched(result);
}

/* ---- wrappers ---- */

/* Each has three faces: by_ does the work, the export finds the real one by its
 * caller, and handed_ is what dlsym gives for the first real one that it found. */
#define FACES(name, params, args)                                                    \
    static int (*first_##name)(UNPACK params);                                       \
    static int handed_##name(UNPACK params) { return by_##name(first_##name AND args); } \
    PSK_EXPORT int name(UNPACK params) {                                             \
        int (*real)(UNPACK params) = real_of(ROW_##name, __builtin_return_address(0)); \
        return real ? by_##name(real AND args) : NCCL_SYSTEM_ERROR;                  \
    }
#define UNPACK(...) __VA_ARGS__
#define AND(...) __VA_OPT__(, ) __VA_ARGS__

#define COLLECTIVE(name, number, first, second, params, args)                        \
    static int by_##name(int (*real)(UNPACK params), UNPACK params) {                \
        if (!strict()) return real args;                                             \
        if (depth) {                                                                 \
            int r = remember(s, first, second);                                      \
            return r == NCCL_SUCCESS ? real args : r;                                \
        }                                                                            \
        psk_op op;                                                                   \
        psk_op_begin(&op, PSK_REC_COLLECTIVE, number, s, 0);                         \
        psk_op_address(&op, (uint64_t)(uintptr_t)(first));                           \
        psk_op_address(&op, (uint64_t)(uintptr_t)(second));                          \
        int r = psk_op_issue(&op) == CUDA_SUCCESS ? INSIDE(&op, 1, real args) : NCCL_UNHANDLED_CUDA_ERROR; \
        psk_op_done(&op);                                                            \
        return launched(r);                                                          \
    }                                                                                \
    FACES(name, params, args)

COLLECTIVE(ncclAllReduce, PSK_NCCL_ALL_REDUCE, to, from, (const void *from, void *to, size_t n, int type, int op_, void *comm, CUstream s), (from, to, n, type, op_, comm, s))
COLLECTIVE(ncclReduce, PSK_NCCL_REDUCE, to, from, (const void *from, void *to, size_t n, int type, int op_, int root, void *comm, CUstream s), (from, to, n, type, op_, root, comm, s))
COLLECTIVE(ncclBroadcast, PSK_NCCL_BROADCAST, to, from, (const void *from, void *to, size_t n, int type, int root, void *comm, CUstream s), (from, to, n, type, root, comm, s))
COLLECTIVE(ncclBcast, PSK_NCCL_BCAST, at, NULL, (void *at, size_t n, int type, int root, void *comm, CUstream s), (at, n, type, root, comm, s))
COLLECTIVE(ncclAllGather, PSK_NCCL_ALL_GATHER, to, from, (const void *from, void *to, size_t n, int type, void *comm, CUstream s), (from, to, n, type, comm, s))
COLLECTIVE(ncclReduceScatter, PSK_NCCL_REDUCE_SCATTER, to, from, (const void *from, void *to, size_t n, int type, int op_, void *comm, CUstream s), (from, to, n, type, op_, comm, s))
COLLECTIVE(ncclSend, PSK_NCCL_SEND, from, NULL, (const void *from, size_t n, int type, int peer, void *comm, CUstream s), (from, n, type, peer, comm, s))
COLLECTIVE(ncclRecv, PSK_NCCL_RECV, to, NULL, (void *to, size_t n, int type, int peer, void *comm, CUstream s), (to, n, type, peer, comm, s))

COLLECTIVE(ncclAlltoAll, PSK_NCCL_ALL_TO_ALL, to, from, (const void *from, void *to, size_t n, int type, void *comm, CUstream s), (from, to, n, type, comm, s))
COLLECTIVE(ncclGather, PSK_NCCL_GATHER, to, from, (const void *from, void *to, size_t n, int type, int root, void *comm, CUstream s), (from, to, n, type, root, comm, s))
COLLECTIVE(ncclScatter, PSK_NCCL_SCATTER, to, from, (const void *from, void *to, size_t n, int type, int root, void *comm, CUstream s), (from, to, n, type, root, comm, s))
COLLECTIVE(ncclPutSignal, PSK_NCCL_PUT, from, NULL, (const void *from, size_t n, int type, int peer, void *window, size_t offset, int signal, int ctx, unsigned flags, void *comm, CUstream s), (from, n, type, peer, window, offset, signal, ctx, flags, comm, s))

/* With a configuration of their own. */
COLLECTIVE(ncclAllReduceConfig, PSK_NCCL_ALL_REDUCE, to, from, (const void *from, void *to, size_t n, int type, int op_, void *comm, CUstream s, const void *config), (from, to, n, type, op_, comm, s, config))
COLLECTIVE(ncclReduceConfig, PSK_NCCL_REDUCE, to, from, (const void *from, void *to, size_t n, int type, int op_, int root, void *comm, CUstream s, const void *config), (from, to, n, type, op_, root, comm, s, config))
COLLECTIVE(ncclBroadcastConfig, PSK_NCCL_BROADCAST, to, from, (const void *from, void *to, size_t n, int type, int root, void *comm, CUstream s, const void *config), (from, to, n, type, root, comm, s, config))
COLLECTIVE(ncclAllGatherConfig, PSK_NCCL_ALL_GATHER, to, from, (const void *from, void *to, size_t n, int type, void *comm, CUstream s, const void *config), (from, to, n, type, comm, s, config))
COLLECTIVE(ncclReduceScatterConfig, PSK_NCCL_REDUCE_SCATTER, to, from, (const void *from, void *to, size_t n, int type, int op_, void *comm, CUstream s, const void *config), (from, to, n, type, op_, comm, s, config))
COLLECTIVE(ncclAlltoAllConfig, PSK_NCCL_ALL_TO_ALL, to, from, (const void *from, void *to, size_t n, int type, void *comm, CUstream s, const void *config), (from, to, n, type, comm, s, config))
COLLECTIVE(ncclGatherConfig, PSK_NCCL_GATHER, to, from, (const void *from, void *to, size_t n, int type, int root, void *comm, CUstream s, const void *config), (from, to, n, type, root, comm, s, config))
COLLECTIVE(ncclScatterConfig, PSK_NCCL_SCATTER, to, from, (const void *from, void *to, size_t n, int type, int root, void *comm, CUstream s, const void *config), (from, to, n, type, root, comm, s, config))

/* Memory that kernels and other ranks reach from then on without a call that names it. */
#define STAYS(name, at, bytes, params, args)                                         \
    static int by_##name(int (*real)(UNPACK params), UNPACK params) {                \
        return psk_stay_range((uint64_t)(uintptr_t)(at), bytes) == CUDA_SUCCESS ? real args : NCCL_UNHANDLED_CUDA_ERROR; \
    }                                                                                \
    FACES(name, params, args)

STAYS(ncclCommRegister, buffer, n, (void *comm, void *buffer, size_t n, void **handle), (comm, buffer, n, handle))
STAYS(ncclCommWindowRegister, buffer, n, (void *comm, void *buffer, size_t n, void **window, int flags), (comm, buffer, n, window, flags))
STAYS(ncclRedOpCreatePreMulSum, scalar, on_host ? 0 : 1, (int *op, void *scalar, int type, int on_host, void *comm), (op, scalar, type, on_host, comm))

/* Groups nest; those that NCCL opens within a call of its own are not ours. */
static bool counts_groups(void) { return !psk_in_hook && !atomic_load(&psk_child); }

static int by_ncclGroupStart(int (*real)(void)) {
    int r = real();
    if (r == NCCL_SUCCESS && counts_groups()) depth++;
    return r;
}
FACES(ncclGroupStart, (void), ())

static int by_ncclGroupEnd(int (*real)(void)) {
    if (!counts_groups() || depth == 0) return real(); /* without a start NCCL says so */
    if (--depth > 0) return real();
    int r = nmembers && strict() ? end_group(real) : real();
    forget_members();
    return r;
}
FACES(ncclGroupEnd, (void), ())

/* Ends a group without running it. */
static int by_ncclGroupSimulateEnd(int (*real)(void *), void *info) {
    if (counts_groups() && depth > 0 && --depth == 0) forget_members();
    return real(info);
}
FACES(ncclGroupSimulateEnd, (void *info), (info))

/* ---- what the resolvers ask ---- */

static const struct {
    void *exported, *handed, *first;
} faces[ROWS] = {
#define PSK_NCCL(name) {name, handed_##name, &first_##name},
#include "nccl.def"
#undef PSK_NCCL
};

bool psk_nccl_export(const void *p) {
    for (int i = 0; i < ROWS; i++)
        if (p == faces[i].exported) return true;
    return false;
}

void *psk_nccl_wrapper(const char *name, void *real) {
    int row = row_of(name);
    if (row < 0) return real;
    void *none = NULL, **first = faces[row].first;
    if (__atomic_compare_exchange_n(first, &none, real, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        psk_keep(real); /* or one that is loaded again, elsewhere, would be a second */
        return faces[row].handed;
    }
    if (none == real) return faces[row].handed;
    return real; /* a second NCCL: its kernels are recorded by their parameters */
}
