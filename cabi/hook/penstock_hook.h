/*
 * The contract between libpenstock_hook.so (plain C, preloaded, harmless
 * alone) and the engine library libpenstock.so (Go, loaded late).
 *
 * The hook sees every launch, copy, fill and graph launch of the process. For
 * each it finds the allocations named by the parameters, and, once an engine is
 * attached, pushes a record to a ring that the engine drains. Nothing here
 * blocks the launching thread. In PSK_MODE_GATED, a launch that names an
 * allocation which is not resident is preceded on its stream by a wait on that
 * stream's gate word; the engine writes the word when the launch may run.
 *
 * Ordering (Dekker): the hook stores slot_last_seq[slot] = seq, then loads
 * slot_state[slot]. The engine stores slot_state[slot] = leaving, then loads
 * slot_last_seq[slot]. Both sides use sequentially consistent operations, so at
 * least one of them sees the other.
 */
#ifndef PENSTOCK_HOOK_H
#define PENSTOCK_HOOK_H
#include <stdint.h>

#define PSK_HOOK_ABI 1u

#define PSK_BLOCK_SHIFT 21                        /* address table granularity: 2 MiB */
#define PSK_TABLE_BLOCKS (1u << (47 - PSK_BLOCK_SHIFT)) /* user addresses have 47 bits */
#define PSK_MAX_SLOTS (1u << 20)                  /* slot 0 means "not ours" */
#define PSK_MAX_STREAMS 256                       /* beyond it, streams share the last index, are never gated, and are counted */
#define PSK_RING_ENTRIES (1u << 16)               /* power of two */
#define PSK_ENTRY_SLOTS 24

/* mode */
enum {
    PSK_MODE_OFF = 0,     /* forward calls untouched */
    PSK_MODE_OBSERVE = 1, /* push records */
    PSK_MODE_GATED = 2,   /* push records, gate launches on residency, write progress */
};

/* slot_state */
enum {
    PSK_SLOT_FREE = 0,     /* no live allocation: ignored */
    PSK_SLOT_RESIDENT = 1, /* on the device */
    PSK_SLOT_ABSENT = 2,   /* not (wholly) on the device, or leaving it */
};

/* record kinds */
enum {
    PSK_REC_LAUNCH = 1, /* id = function id */
    PSK_REC_COPY = 2,   /* id = PSK_COPY_*; slots: destination first when flag PSK_FLAG_HAS_DST */
    PSK_REC_GRAPH = 3,  /* a graph launch; slots are those of its nodes */
    PSK_REC_MORE = 4,   /* continuation of the entry before it: more slots */
};
enum { PSK_COPY_H2D = 1, PSK_COPY_D2H = 2, PSK_COPY_D2D = 3, PSK_COPY_FILL = 4, PSK_COPY_UNKNOWN = 0 };

/* record flags */
enum {
    PSK_FLAG_GATED = 1,      /* a gate wait precedes it on its stream */
    PSK_FLAG_PROGRESS = 2,   /* a progress write of this seq follows it on its stream */
    PSK_FLAG_CAPTURED = 4,   /* recorded into a graph, does not run now */
    PSK_FLAG_OPAQUE = 8,     /* the parameter layout is unknown: the access set may be incomplete */
    PSK_FLAG_HAS_DST = 16,
    PSK_FLAG_COOPERATIVE = 32,
};

/* One ring entry: 128 bytes. A record is one entry and, when it names more than
 * PSK_ENTRY_SLOTS allocations, the continuation entries right after it. */
typedef struct psk_entry {
    uint64_t turn;    /* published position + 1: valid when equal to the reader's position + 1 (release store, last) */
    uint16_t kind;
    uint16_t flags;
    uint32_t id;
    uint16_t nslots;  /* in this entry */
    uint16_t stream;  /* stream index */
    uint32_t more;    /* continuation entries that follow */
    uint32_t grid;    /* low 32 bits of a hash of grid and block dimensions */
    uint32_t _pad;
    uint32_t slots[PSK_ENTRY_SLOTS]; /* distinct within the record */
} psk_entry;

/* A kernel function, first seen. Rows are append-only; nfuncs is stored last (release). */
typedef struct psk_func {
    const char *name; /* mangled; lives forever; "" when unknown */
    uint64_t handle;  /* CUfunction or CUkernel */
    uint32_t nparams;
    uint32_t opaque;  /* 1: parameter layout unknown */
} psk_func;
#define PSK_MAX_FUNCS 65536

/* Shared state, allocated by the hook (anonymous memory, not inherited across fork). */
typedef struct psk_shared {
    uint32_t abi_version; /* PSK_HOOK_ABI */
    uint32_t size;        /* sizeof(psk_shared) */
    uint32_t mode;        /* atomic; written by the engine */
    uint32_t progress_every; /* in gated mode, a progress write follows at least every so many records on a stream; written by the engine */

    uint32_t *block_slot; /* [PSK_TABLE_BLOCKS], sparse; atomic; written by the engine */
    uint8_t *slot_state;  /* [PSK_MAX_SLOTS]; atomic; written by the engine */
    uint64_t *slot_last_seq; /* [PSK_MAX_SLOTS]; atomic; written by the hook */

    psk_entry *ring;      /* [PSK_RING_ENTRIES] */
    uint64_t head;        /* atomic; next position to reserve. The seq of a record is its position + 1, so never 0 */
    uint64_t tail;        /* atomic; written by the engine: everything before it has been read */
    uint64_t dropped;     /* atomic; records lost because the ring was full (such launches are never gated) */
    uint32_t reader_sleeping; /* atomic; the engine sets it before a futex wait on doorbell */
    uint32_t doorbell;    /* atomic; futex word, bumped by the hook when reader_sleeping */

    psk_func *funcs;      /* [PSK_MAX_FUNCS] */
    uint32_t nfuncs;      /* atomic */
    uint32_t nstreams;    /* atomic */
    uint64_t *streams;    /* [PSK_MAX_STREAMS] stream handles by index; index 0 is the legacy default stream */

    /* Words in pinned host memory that the engine provides; one 64-byte line a
     * stream: word index = stream * 16. Values are the low 32 bits of seq; the
     * waits compare cyclically (CU_STREAM_WAIT_VALUE_GEQ). */
    uint32_t *gate;
    uint32_t *progress;

    /* counters for doctor and the exit verdict; atomic */
    uint64_t launches, copies, graph_launches, gated, opaque_launches;
    uint64_t route_elf, route_dlsym, route_getproc, route_runtime; /* resolutions handed out by each route */
    uint64_t unhooked;    /* launch/alloc/graph symbols handed out without a wrapper */
} psk_shared;

/* Exported by the hook. The engine finds it with dlsym(RTLD_DEFAULT, "penstock_hook_attach").
 * Returns the shared state, or NULL when abi_version differs from PSK_HOOK_ABI or in a forked child. Idempotent. */
psk_shared *penstock_hook_attach(uint32_t abi_version);

/* Exported by the hook: the real (unhooked) driver symbol, for the engine's own calls. */
void *penstock_hook_real(const char *symbol);

/* Exported by the hook: newline-separated names counted in `unhooked`, for doctor. */
const char *penstock_hook_unhooked_names(void);

#endif
