/*
 * What the files of libpenstock_hook.so share.
 *
 * The library has no constructor and does nothing on its own: every wrapper
 * forwards untouched until an engine attached and set a mode. The files:
 *
 *   resolve.c  dlsym and cudaGetDriverEntryPoint: who asks gets a wrapper
 *   callers.c  whom the exported names mean, by who calls them
 *   real.c     real entry points; map.c  the map from them to wrappers, cuGetProcAddress, the trail of the unhooked
 *   elf.c      the exported names, for programs linked against libcuda
 *   shared.c   the shared state; attach.c  its arrays, attach, fork; address.c  what lies at an address
 *   record.c   one operation: its slots and its record in the ring
 *   gate.c, strict.c  a mode's waits before it and progress after it; progress.c  writes and reports of it
 *   trail.c    what the launch before it on its stream named; timing.c  how long some take
 *   func.c     parameter layouts of kernels; streams.c  stream indices; captures.c; contexts.c  those beside the engine's
 *   launch.c, copy.c, graph.c, stream_calls.c, context_calls.c  the wrappers; nccl.c  those of NCCL's calls, within.c  what NCCL does in them; observe.c  of managed memory;
 *              query.c  of what is known of an address; stay.c  of addresses that no launch shows
 *
 * Locks: the table locks of func.c, streams.c, contexts.c and graph.c, under which no other
 * is taken and no driver call made; one lock a stream (gated and strict mode),
 * held from the reservation of a seq to the progress write so that progress of a
 * stream never runs ahead of its launches; strict mode's grant lock, taken
 * before a stream's (strict.c); and that under which contexts come and go, taken
 * before any other (contexts.c).
 */
#ifndef PENSTOCK_HOOK_INTERNAL_H
#define PENSTOCK_HOOK_INTERNAL_H
#ifndef __x86_64__
#error "libpenstock_hook supports x86-64 Linux only: the dlsym tail jump is written for it"
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "penstock_hook.h"

#define PSK_LIKELY(x) __builtin_expect(!!(x), 1)
#define PSK_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PSK_EXPORT __attribute__((visibility("default")))
/* Preloaded, so the static thread block has room for a few words. */
#define PSK_TLS static __thread __attribute__((tls_model("initial-exec")))

/* ---- the table ---- */
enum {
#define PSK_SYM(name, base, since, ptsz) PSK_ROW_##name,
#include "symbols.def"
#undef PSK_SYM
    PSK_ROWS
};

typedef struct psk_row {
    const char *name;  /* exported by libcuda */
    const char *base;  /* asked of cuGetProcAddress */
    int since;         /* CUDA version that introduced this signature */
    int ptsz;          /* stream 0 is the thread's own */
} psk_row;
extern const psk_row psk_rows[PSK_ROWS];
int psk_row_by_name(const char *name); /* -1: none */

/* ---- real.c ---- */
extern void *(*psk_real_dlsym)(void *, const char *);
bool psk_have_dlsym(void);
/* Looks name up in the object that addr lies in and what that depends on. */
void *psk_symbol_near(void *addr, const char *name);
/* The definition behind this library in the global scope. */
void *psk_symbol_behind(const char *name);

typedef struct psk_driver {
    void *lib;
    struct {
        void *byname, *byproc; /* by its name, and as cuGetProcAddress answers; NULL when the driver lacks it */
    } entry[PSK_ROWS];
} psk_driver;
/* NULL until the process itself has loaded the driver: the hook never does. */
const psk_driver *psk_loaded_driver(void);
/* Any driver symbol, unhooked; NULL when the driver lacks it or is not loaded. */
void *psk_driver_symbol(const char *name);

extern void *_Atomic psk_real[PSK_ROWS];
void *psk_real_slow(int row);
/* The real entry point of a row. Never NULL: one that the driver lacks answers CUDA_ERROR_NOT_FOUND. */
static inline void *psk_real_ptr(int row) {
    void *p = atomic_load_explicit(&psk_real[row], memory_order_acquire);
    return PSK_LIKELY(p != NULL) ? p : psk_real_slow(row);
}
#define PSK_REAL(name) ((__typeof__(&psk_w_##name))psk_real_ptr(PSK_ROW_##name))

/* ---- map.c ---- */
enum { PSK_ROUTE_DLSYM, PSK_ROUTE_GETPROC, PSK_ROUTE_RUNTIME };
/* The wrapper when real is an entry point of the table, else real itself. Counts either. */
void *psk_substitute(void *real, const char *name, int route);

/* ---- elf.c ---- */
bool psk_elf_export(int row, const void *p); /* false for no row */

/* ---- callers.c ---- */
#define PSK_CALLERS 64 /* of one name; calls from further places are looked up each time */
typedef struct psk_callers {
    atomic_uint taken; /* may be more */
    struct {
        const void *_Atomic caller; /* return address; stored last */
        void *real;
    } of[PSK_CALLERS];
} psk_callers;
/* What a call that returns to caller means, NULL when it is not known yet. */
void *psk_caller_real(psk_callers *c, const void *caller);
void psk_caller_found(psk_callers *c, const void *caller, void *real);
/* Has the library that an address lies in stay from now on. False when it is none, or cannot be kept. */
bool psk_keep(const void *at);

/* ---- nccl.c ---- */
bool psk_nccl_name(const char *name);
bool psk_nccl_export(const void *p);
void *psk_nccl_wrapper(const char *name, void *real);

/* ---- address.c ---- */
/* CUmemorytype of what the driver knows at an address; 0: nothing, or pageable memory. It asks the driver. */
uint32_t psk_memory_type(uint64_t addr);

/* ---- shared.c ---- */
extern psk_shared psk_S;
extern atomic_int psk_child; /* 1 in a forked child of an attached process */

/* The contract's fields are plain integers that both sides access atomically. */
#define PSK_LOAD(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define PSK_COUNT(field) __atomic_fetch_add(&(field), 1, __ATOMIC_RELAXED)

/* True when this call is a probe of the self-test: counted, and not to be forwarded. */
bool psk_probe(void);

/* ---- trail.c ---- */
#define PSK_TRAIL_MAX 16 /* a launch that names more leaves no trail */
typedef struct psk_trail {
    bool left;         /* else nothing below counts */
    uint32_t function; /* of the last launch on the stream */
    uint32_t nslots, nplain;
    uint32_t slots[PSK_TRAIL_MAX];
    uint64_t plain[PSK_TRAIL_MAX]; /* parameter words that lie in PSK_SLOT_PLAIN */
} psk_trail;

/* ---- streams.c ---- */
#define PSK_STREAM_SHARED (PSK_MAX_STREAMS - 1) /* index of all streams beyond the table */
typedef struct psk_stream {
    atomic_uint lock;       /* futex: 0 free, 1 held, 2 held and waited for */
    uint32_t since_progress; /* records since the last progress write */
    uint64_t last;           /* seq of the last record; 0: none that is reported */
    bool unreported;         /* no progress write has covered it */
    bool alone;              /* nobody but a thread in its context can have anything reported: each operation is */
    uint64_t context;        /* its context, when that is not the engine's and known */
    /* gated mode */
    uint32_t issued;        /* records, wrapping */
    uint32_t ngates;        /* gates not yet seen open, oldest first */
    struct {
        uint32_t value;  /* what the gate waits for */
        uint32_t issued; /* when it was put */
    } gates[8];
    /* strict mode */
    uint32_t queued;        /* commands put on the stream, wrapping */
    uint32_t finished;      /* of them, known to be done */
    uint32_t seen;          /* the progress word before the oldest mark */
    uint32_t nmarks;        /* progress writes not yet seen, oldest first */
    struct {
        uint32_t value;  /* what it writes */
        uint32_t queued; /* commands up to it */
    } marks[8];
    psk_trail trail;
} __attribute__((aligned(64))) psk_stream;
extern psk_stream psk_streams[PSK_MAX_STREAMS];

uint32_t psk_stream_index(CUstream stream, int ptsz);
/* In the table, the default stream of a context beside the engine's: no address is as high. */
#define PSK_STREAM_DEFAULT_OF (1ull << 63)
uint32_t psk_stream_known(uint64_t handle); /* the index of one that has been seen, else PSK_STREAM_SHARED */
uint64_t psk_stream_next(unsigned *row, uint64_t context); /* the streams of a context that have been seen, one by one; 0: no more */
void psk_stream_forget(uint64_t handle, bool idle); /* it is about to be destroyed; idle: everything queued on it is done */
uint32_t psk_stream_nowhere(void); /* the index of what is on no stream; its handle is PSK_STREAM_GONE */
void psk_stream_lock(psk_stream *s);
bool psk_stream_trylock(psk_stream *s);
void psk_stream_unlock(psk_stream *s);

/* ---- captures.c ---- */
extern atomic_int psk_captures; /* captures in progress; may be too high, never too low */
/* True also where the driver does not say: of the legacy stream during another's capture. */
bool psk_stream_capturing(CUstream stream, int ptsz);
/* CUDA_SUCCESS and the driver's answer. */
CUresult psk_capture_status(CUstream stream, int ptsz, int *status);
/* The driver's cuStreamSynchronize, which other streams' captures survive. */
CUresult psk_stream_synchronize(CUstream stream, int ptsz);
CUresult psk_relaxed(CUresult (*wait)(void)); /* a call that waits, likewise */

/* ---- stream_calls.c ---- */
/* Gives the streams of a context that has been destroyed up. ended: its work has, too. */
void psk_streams_gone(uint64_t context, bool ended);

/* ---- contexts.c ---- */
/* Contexts that the process has, the engine's included once it is known. */
extern atomic_uint psk_contexts;
/* The thread's context when it is another than the engine's; 0 also while none is known to be. */
uint64_t psk_other_context_slow(void);
static inline uint64_t psk_other_context(void) { return PSK_LIKELY(atomic_load_explicit(&psk_contexts, memory_order_acquire) <= 1) ? 0 : psk_other_context_slow(); }
/* A stream's context when that is another than the engine's, as psk_other_context. */
#define PSK_CONTEXT_UNKNOWN UINT64_MAX /* another, but the driver does not say which: the stream is of a green one */
uint64_t psk_stream_other_context(CUstream stream);
void psk_serve(void); /* the thread's context is the engine's */
void psk_context_heard_of(uint64_t context);
void psk_context_forget(uint64_t context);
bool psk_contexts_too_many(void); /* to know them all */
uint64_t psk_other_context_at(unsigned i); /* of psk_contexts; 0: the engine's */

/* ---- context_calls.c ---- */
uint32_t psk_synchronize_others(void);

/* ---- func.c ---- */
/* Where 8-byte aligned words lie in one parameter. In a list, words 0 are as many as a launch uses. */
typedef struct psk_param {
    uint16_t index; /* in kernelParams */
    uint16_t first; /* bytes from the value to the first aligned word */
    uint32_t words;
} psk_param;

#define PSK_LIST_SCANS 24

/* Lists of addresses of which a launch uses a part: see lists.c. */
typedef struct psk_list {
    enum { PSK_LIST_NONE, PSK_LIST_ROWS, PSK_LIST_BLOCKS } kind;
    uint32_t capacity;        /* addresses in a list */
    uint16_t blocks;          /* at most, of a grid */
    uint16_t elements_at;     /* where the first parameter has the elements of each tensor */
    uint16_t index_at;        /* and the tensor of each block, after which comes its chunk */
    uint8_t index_bytes;      /* of each */
    uint32_t nscan;
    psk_param scan[PSK_LIST_SCANS];
} psk_list;

typedef struct psk_layout {
    uint32_t id;       /* row of psk_shared.funcs */
    uint32_t nparams;
    uint32_t opaque;
    uint32_t nscan;
    uint32_t cached;   /* 0: made for one launch, freed after it */
    psk_list list;
    atomic_uint generation; /* that of func.c when last checked */
    psk_param scan[];
} psk_layout;

psk_layout *psk_func_layout(CUfunction f);
void psk_func_release(psk_layout *l); /* after use */
/* Around a call after which handles may mean other functions. */
void psk_func_unload_begins(void);
void psk_func_unload_ended(void);

/* ---- lists.c ---- */
/* Finds out, by its function's name, whether a layout has lists of which a launch uses a part. */
void psk_list_recognise(psk_layout *l, const char *name);
/* How many entries of each list are used by a launch with such a grid; 0: there is none, or it is not what it should be. */
uint32_t psk_list_used(const psk_layout *l, void **params, unsigned columns, unsigned rows);
/* What is looked at in the parameters of a launch that uses so many entries. */
static inline const psk_param *psk_scan(const psk_layout *l, uint32_t used, uint32_t *n) {
    *n = PSK_UNLIKELY(used) ? l->list.nscan : l->nscan;
    return PSK_UNLIKELY(used) ? l->list.scan : l->scan;
}

/* ---- record.c ---- */
#define PSK_OP_MAX_SLOTS 8192 /* beyond it a record is marked opaque */
typedef struct psk_op {
    uint16_t kind, flags;
    uint32_t id, grid;
    uint32_t used; /* psk_list_used of what is launched */
    CUstream stream;
    int ptsz;
    uint32_t mode;
    uint32_t stream_index;
    psk_stream *locked;
    uint64_t seq; /* 0: dropped */
    uint64_t when; /* the program made the call; 0 when nobody asks */
    bool unsure;      /* the driver does not say whether it is captured */
    struct psk_timed *timed; /* its events, NULL when it is not timed */
    bool no_progress; /* gated mode: the real call is made after psk_op_done: a progress write would come too early */
    /* strict mode */
    bool waits;    /* the real call waits for the stream, inside the driver */
    bool asks;     /* holds the grant lock */
    bool serial;   /* the stream is made idle after it */
    bool arriving; /* the stream waits for ticket */
    bool early;    /* so does this thread: the operation may read before its stream's turn */
    uint32_t ticket;
    uint32_t settled; /* slots seen RESIDENT or ARRIVING, from the first on */
    uint32_t nplain;  /* parameter words in PSK_SLOT_PLAIN; counted while trails are left, kept up to PSK_TRAIL_MAX */
    uint64_t plain[PSK_TRAIL_MAX];
    uint32_t n;
    uint32_t *slots; /* inline_slots, or the thread's scratch when there are more */
    struct psk_scratch *scratch;
    uint32_t inline_slots[PSK_ENTRY_SLOTS];
} psk_op;

extern __thread int psk_in_hook __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* True when this call is to be recorded. Inside the driver, or the engine, it is not. */
static inline bool psk_active(void) {
    return PSK_LOAD(psk_S.mode) != PSK_MODE_OFF && !psk_in_hook;
}

/* The three steps around the real call. Between begin and done this thread's driver calls are not recorded. */
void psk_op_begin(psk_op *op, int kind, uint32_t id, CUstream stream, int ptsz);
CUresult psk_op_issue(psk_op *op); /* reserves the seq, publishes the record, waits; the real call is made only on success */
void psk_op_done(psk_op *op);      /* writes progress; always called */
#define PSK_OP_CALL(op, call)                          \
    ({                                                 \
        CUresult result_ = psk_op_issue(op);           \
        if (PSK_LIKELY(result_ == CUDA_SUCCESS)) result_ = (call); \
        psk_op_done(op);                               \
        result_;                                       \
    })

/* For the modes: a seq, with slot_last_seq stored, false when the ring is full; and the record itself. */
bool psk_record_reserve(psk_op *op);
void psk_record_publish(const psk_op *op);
void psk_record_dropped(void);
uint64_t psk_now_ns(void); /* CLOCK_MONOTONIC */

/* ---- progress.c ---- */
bool psk_have_memops(void);
/* False, said once on stderr, when the driver refuses: psk_have_memops is false from then on. */
bool psk_memop_wait(CUstream stream, int ptsz, uint32_t *word, uint32_t value);
bool psk_memop_write(CUstream stream, int ptsz, uint32_t *word, uint32_t value);
/* Has a stream that is about to be destroyed report its last operation. idle: all of it is done. */
void psk_stream_report(CUstream stream, uint32_t index, bool idle);
/* Has every stream report its last operation, but those that a thread is at work on. For the engine. */
void psk_report_all(void);
void psk_report_quiet(uint64_t seq); /* now and then, of the streams that nothing is launched on; seq: of the latest operation */

/* ---- gate.c ---- */
void psk_gate_lock(psk_op *op);
void psk_gate_decide(psk_op *op);
void psk_gate_wait(psk_op *op);
void psk_gate_done(psk_op *op);

/* ---- strict.c ---- */
CUresult psk_strict_issue(psk_op *op);
void psk_strict_done(psk_op *op);
/* Before the parameters are read: counts a launch of a function, and makes it ask for a grant when that is due. */
void psk_strict_function(psk_op *op, const psk_layout *l, void **params, void **extra);
void psk_strict_inspect(psk_op *op); /* makes it ask */
/* An operation inside the real call of another, which is issued and whose stream's lock this thread holds: it is waited for
 * without asking, and is over when the other is. */
CUresult psk_strict_within(psk_op *op, psk_op *outer);
/* What a memory operation of a stream or a graph reads or writes, 0 for none. */
uint64_t psk_memop_address(const CUstreamBatchMemOpParams *op);
/* Has what an operation of no stream names on the device until psk_strict_done. */
CUresult psk_strict_hold(psk_op *op);
/* And has it stay there. */
CUresult psk_strict_stay(psk_op *op);
/* For an operation with PSK_FLAG_INSPECT: notes a parameter word that is an address of published memory, or of other that the driver knows, which it asks. */
void psk_inspect_word(void *op, uint64_t word);

/* ---- stay.c ---- */
/* In strict mode, has what addresses lie in stay on the device, also where NCCL calls the driver (psk_within). Not
 * CUDA_SUCCESS when the engine has failed. */
CUresult psk_stay(const uint64_t *addrs, size_t n);
CUresult psk_stay_range(uint64_t addr, uint64_t bytes);

/* ---- within.c ---- */
/* The issued operations inside whose real call this thread is, one of NCCL's, in which NCCL calls the driver. */
typedef struct psk_outer {
    psk_op *ops;
    uint32_t n;
} psk_outer;
extern __thread const psk_outer *psk_within __attribute__((tls_model("initial-exec"), visibility("hidden")));
psk_op *psk_within_locked(void); /* the first of them that holds the lock of its stream, NULL when all are captured */
/* A launch there, which names what its parameters do. */
CUresult psk_within_launch(psk_op *op);

/* ---- trail.c ---- */
/* Notes which plain memory the parameters of a launch name. */
void psk_trail_read(psk_op *op, const psk_layout *l, void **params, void **extra);
/* Has a launch that has been read name what the one before it on its stream names, if it follows that. */
bool psk_trail_follow(psk_op *op, uint32_t function);
/* Leaves what an operation names for the next one; under the lock of its stream. */
void psk_trail_leave(const psk_op *op, psk_trail *t);

/* ---- timing.c ---- */
/* Around the driver's call, after what it waits for: it may be timed. */
void psk_time_begin(psk_op *op);
void psk_time_end(psk_op *op); /* of one that is */

/* ---- words.c ---- */
/* The most that is searched for addresses when it is copied from the host; __constant__ memory has as much. */
#define PSK_WORDS_BYTES (64u << 10)
/* Whether a copy of so much from an address is one from the host that may be a table of addresses. It asks the driver. */
bool psk_from_host(uint64_t src, uint64_t bytes);
/* Adds what the words that such a copy reads name, and says whether there is any. readable: they
 * can be read, as the driver will anyhow; else what cannot is the driver's to say. Marks the
 * operation opaque where nothing can tell what can be read. */
bool psk_op_words(psk_op *op, uint64_t src, uint64_t bytes, bool readable);

/* ---- record.c ---- */
void psk_op_add(psk_op *op, uint32_t slot);

/* What is published where an address lies: a slot, PSK_SLOT_PLAIN, or 0 for nothing of ours. */
static inline uint32_t psk_published(uint64_t addr) {
    uint64_t block = addr >> PSK_BLOCK_SHIFT;
    return block < PSK_TABLE_BLOCKS ? __atomic_load_n(&psk_S.block_slot[block], __ATOMIC_ACQUIRE) : 0;
}

/* Fewer address bits than this name no memory that a kernel reads: sizes and counts. */
#define PSK_LOWEST_ADDRESS (1ull << 32)

static inline bool psk_may_be_address(uint64_t word) { return word >= PSK_LOWEST_ADDRESS && word >> PSK_BLOCK_SHIFT < PSK_TABLE_BLOCKS; }

/* The live allocation that an address lies in, 0 when none of ours. */
static inline uint32_t psk_slot_of(uint64_t addr) {
    uint32_t slot = psk_published(addr);
    if (PSK_LIKELY(slot == 0) || slot >= PSK_MAX_SLOTS) return 0;
    return __atomic_load_n(&psk_S.slot_state[slot], __ATOMIC_ACQUIRE) == PSK_SLOT_FREE ? 0 : slot;
}

static inline uint32_t psk_op_address(psk_op *op, uint64_t addr) {
    uint32_t slot = psk_slot_of(addr);
    if (slot) psk_op_add(op, slot);
    return slot;
}

/* Calls visit for every aligned word of a launch's parameters, or where they hold lists of which so much is used, for what
 * is used. False when they cannot be read. */
bool psk_visit_params(const psk_layout *l, uint32_t used, void **params, void **extra, void (*visit)(void *, uint64_t), void *arg);
/* Adds what the parameters of a launch name; marks the record opaque when they cannot be read. */
void psk_op_params(psk_op *op, const psk_layout *l, void **params, void **extra);

static inline uint32_t psk_grid_hash(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz) {
    uint64_t h = ((uint64_t)gx << 32 | gy) * 0x9e3779b97f4a7c15u;
    h = (h ^ (h >> 29) ^ ((uint64_t)gz << 32 | bx)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 32) ^ ((uint64_t)by << 32 | bz)) * 0x94d049bb133111ebu;
    return (uint32_t)(h ^ (h >> 31));
}

#endif
