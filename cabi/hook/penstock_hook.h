/*
 * The contract between libpenstock_hook.so (plain C, preloaded, harmless
 * alone) and the engine library libpenstock.so (Go, loaded late).
 *
 * The hook sees every launch, copy, fill and graph launch of the process. For
 * each it finds the allocations named by the parameters, and, once an engine is
 * attached, pushes a record to a ring that the engine drains.
 *
 * PSK_MODE_GATED (the managed engine; memory that is absent is faulted in, so
 * gating is a matter of speed): the launching thread waits only when far too much
 * is queued behind a gate or in the ring. A launch that names an allocation which is not resident is preceded on its
 * stream by a wait on that stream's gate word; the engine writes the word when
 * the launch may run. A record that finds the ring full waits for room, in
 * PSK_MODE_OBSERVE too; it is dropped when nothing is read for 100 ms.
 *
 * PSK_MODE_STRICT (the explicit engine; an access to absent memory is fatal):
 * the launching thread waits, before it enters the driver, until the engine has
 * at least submitted the copies of everything that the operation names. Nothing
 * is ever queued on the GPU that depends on something not submitted yet, because
 * a thread that waits inside the driver for such a stream holds a lock which the
 * engine's copies need. For each operation, under the lock of its stream:
 *   1. room in the ring is waited for: no record is dropped while the engine lives
 *   2. slot_last_seq of every named slot, then its slot_state (the Dekker rule below)
 *   3. the record is published, so that the engine learns what is wanted
 *   4. when a slot is ABSENT, or GUARDED and may be written to: progress of what precedes it on the stream, then a
 *      wait on the CPU until none is
 *   5. when a slot is ARRIVING: the stream waits until `arrived` has reached the
 *      newest of their tickets (cyclically)
 *   6. the driver's call, then progress: always after an operation that waited
 *      (PSK_FLAG_GATED), else every progress_every operations; of a stream that
 *      is quiet from then on, when others have gone on for long (progress.c)
 * An operation whose access set cannot be told (PSK_FLAG_OPAQUE), or whose
 * function is to be inspected (PSK_FLAG_INSPECT), also waits after 4 until
 * `granted` is its seq. Before it grants, the engine sees to it that everything
 * the operation may touch beyond its named slots is on the device, its copies
 * finished and not only submitted. One operation at a time asks, so at most one
 * record that was read and not yet granted has one of these flags without
 * PSK_FLAG_CAPTURED; the inspection fields below are its own.
 * A captured operation does not run and waits for nothing. Its graph's launch
 * names what its nodes name, and asks when a node cannot be read or the function
 * of one is not cleared.
 * At most PSK_MAX_UNFINISHED commands of a stream are queued and not known to be
 * finished, as a thread that meets a full queue inside the driver holds the same
 * lock; nor does a copy that waits for its stream enter the driver before the
 * stream is idle. Streams with the shared index run one operation at a time.
 *
 * Not seen, in any mode: what kernels launch themselves, and NCCL calls that nccl.def does not list (their kernels are, by
 * their parameters). What is reached through a texture, by the program's own stream memory operations or by a graph that the
 * device launches, is seen in strict mode (PSK_REC_STAY).
 *
 * Ordering (Dekker): the hook stores slot_last_seq[slot] = seq, then loads
 * slot_state[slot]. The engine stores slot_state[slot] = ABSENT, then loads
 * slot_last_seq[slot]. Both sides use sequentially consistent operations, so at
 * least one of them sees the other. An engine in strict mode that sees a
 * slot_last_seq newer than what it has drained takes the eviction back, and keeps
 * what published operations name until their progress is reported.
 */
#ifndef PENSTOCK_HOOK_H
#define PENSTOCK_HOOK_H
#include <stdint.h>
#include "stamp.h"

#define PSK_HOOK_ABI 20u

#define PSK_BLOCK_SHIFT 21                        /* address table granularity: 2 MiB */
#define PSK_TABLE_BLOCKS (1u << (47 - PSK_BLOCK_SHIFT)) /* user addresses have 47 bits */
#define PSK_MAX_SLOTS (1u << 20)                  /* slot 0 means "not ours" */
#define PSK_MAX_STREAMS 256                       /* beyond it, streams share the last index: gated mode does not gate them, strict mode runs one operation of them at a time */
#define PSK_STREAM_MANY (UINT64_MAX - 1)          /* no stream's handle: it stands for the streams that share the last index */
#define PSK_STREAM_GONE UINT64_MAX                /* no stream's handle: the stream was destroyed, or there never was one (PSK_REC_STAY) */
#define PSK_STREAM_PER_THREAD 2u                  /* CU_STREAM_PER_THREAD: each thread has one of its own, with an index of its own; so has the default stream of each context beside the engine's */
#define PSK_RING_ENTRIES (1u << 16)               /* power of two */
#define PSK_ENTRY_SLOTS 22
#define PSK_MAX_FUNCS 65536
#define PSK_MAX_UNFINISHED 512u                   /* strict mode; the driver's own queue holds about twice as many */
#define PSK_MAX_INSPECT 16384u
#define PSK_TIMINGS 1024u /* power of two */
#define PSK_LAUNCH_UNIT 64u          /* bytes; recorded launches begin at multiples */
#define PSK_LAUNCH_UNITS (1u << 17)  /* of the area that they are recorded in; power of two */
#define PSK_MORE_DST_SHIFT 13
#define PSK_MOST_WRITTEN 16u         /* words that say what a recorded launch writes to: a matrix product has the address of its result in seven */
#define PSK_MOST_WRITTEN_SLOTS 4u    /* that these may lie in */
#define PSK_LAUNCH_MAX_BYTES 32768u  /* of parameters: launches with more are not recorded; no kernel takes more */

/* In block_slot: the engine's plain device memory. Always resident, named in no
 * record, and its addresses are reported to inspections. */
#define PSK_SLOT_PLAIN 0xffffffffu

/* mode */
enum {
    PSK_MODE_OFF = 0,     /* forward calls untouched */
    PSK_MODE_OBSERVE = 1, /* push records */
    PSK_MODE_GATED = 2,   /* push records, gate launches on residency, write progress */
    PSK_MODE_STRICT = 3,  /* push records, never run an operation on absent memory, write progress */
};

/* slot_state */
enum {
    PSK_SLOT_FREE = 0,     /* no live allocation: ignored */
    PSK_SLOT_RESIDENT = 1, /* on the device */
    PSK_SLOT_ABSENT = 2,   /* not (wholly) on the device, or leaving it */
    PSK_SLOT_GUARDED = 4,  /* strict mode: on the device, and ABSENT to operations that may write to it (PSK_FLAG_ACCESS) */
    PSK_SLOT_ARRIVING = 3, /* strict mode: mapped, and its copy in is submitted: complete when *arrived reaches slot_ticket */
};

/* record kinds */
enum {
    PSK_REC_LAUNCH = 1, /* id = function id */
    PSK_REC_COPY = 2,   /* id = PSK_COPY_*; slots: destination first when flag PSK_FLAG_HAS_DST */
    PSK_REC_GRAPH = 3,  /* a graph launch, or that of a part of one; slots are those of its nodes */
    PSK_REC_MORE = 4,   /* continuation of the entry before it: more slots */
    PSK_REC_COLLECTIVE = 5, /* strict mode: an NCCL call, id = PSK_NCCL_*; one of a group stands for all of the group on its stream */
    PSK_REC_STAY = 6,   /* strict mode: no operation, and on no stream: its slots are not to leave any more (PSK_FLAG_KEEP; it asks, and is done when it is granted), or not before it is done (a copy that is captured) */
};
enum {
    PSK_NCCL_ALL_REDUCE = 1, PSK_NCCL_REDUCE = 2, PSK_NCCL_BROADCAST = 3, PSK_NCCL_BCAST = 4, PSK_NCCL_ALL_GATHER = 5,
    PSK_NCCL_REDUCE_SCATTER = 6, PSK_NCCL_SEND = 7, PSK_NCCL_RECV = 8, PSK_NCCL_GROUP = 9,
    PSK_NCCL_ALL_TO_ALL = 10, PSK_NCCL_GATHER = 11, PSK_NCCL_SCATTER = 12, PSK_NCCL_PUT = 13,
};
enum { PSK_COPY_H2D = 1, PSK_COPY_D2H = 2, PSK_COPY_D2D = 3, PSK_COPY_FILL = 4, PSK_COPY_UNKNOWN = 0 };

/* record flags */
enum {
    PSK_FLAG_GATED = 1,      /* gated mode: a gate wait precedes it on its stream; strict mode: it found a slot ABSENT or ARRIVING */
    PSK_FLAG_PROGRESS = 2,   /* a progress write of this seq follows it on its stream */
    PSK_FLAG_CAPTURED = 4,   /* recorded into a graph, does not run now */
    PSK_FLAG_OPAQUE = 8,     /* the parameter layout is unknown: the access set may be incomplete */
    PSK_FLAG_HAS_DST = 16,   /* its first slot is what it writes to: of a copy, or a launch with PSK_FLAG_ACCESS */
    PSK_FLAG_COOPERATIVE = 32,
    PSK_FLAG_INSPECT = 64,   /* strict mode: what its parameters name is to be scanned for addresses */
    PSK_FLAG_ACCESS = 256,   /* strict mode: it writes to its first slot if PSK_FLAG_HAS_DST, and to as many more as PSK_FLAG_MORE_DST says, and only reads the others */
    PSK_FLAG_MORE_DST = 3 << 13, /* PSK_MORE_DST_SHIFT; PSK_MOST_WRITTEN_SLOTS - 1 at most */
    PSK_FLAG_KEEP = 128,     /* strict mode: their addresses go to where no launch will show them: its slots are not to leave any more */
};

/* psk_func.inspect: when launches of a function ask for a grant (strict mode) */
enum {
    PSK_INSPECT_NEW = 0,     /* until two have asked and may go, and those whose number is a power of 64 */
    PSK_INSPECT_CLEARED = 1, /* no address was found in the memory that it names: those whose number is a power of 64 */
    PSK_INSPECT_ALWAYS = 2,
    /* Those whose number is a multiple of PSK_FOLLOWS_CHECKED, and those that do not follow:
     * a launch follows when the one before it on its stream is of the function `follows`
     * and names some of the same PSK_SLOT_PLAIN memory. It then names all slots that
     * that one names, for what is written there are addresses of these. */
    PSK_INSPECT_FOLLOWS = 3,
};
#define PSK_FOLLOWS_CHECKED 64u

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
    uint32_t recorded; /* low 32 bits of the `turn` of the launch's psk_launch; 0: it was not recorded */
    uint64_t when;    /* the program made the call, before anything was looked up; ticks or nanoseconds, as stamp says */
    uint32_t slots[PSK_ENTRY_SLOTS]; /* distinct within the record */
} psk_entry;

/* How many slots an operation with PSK_FLAG_ACCESS writes to: the first ones. */
static inline uint32_t psk_written(uint16_t flags) { return flags & PSK_FLAG_HAS_DST ? 1u + ((flags & PSK_FLAG_MORE_DST) >> PSK_MORE_DST_SHIFT) : 0; }

/* A kernel function, first seen. Rows are append-only; nfuncs is stored last (release). */
typedef struct psk_func {
    const char *name; /* mangled; lives forever; "" when unknown */
    uint64_t handle;  /* CUfunction or CUkernel */
    uint32_t nparams;
    uint32_t opaque;  /* 1: parameter layout unknown */
    uint32_t inspect; /* atomic; PSK_INSPECT_*, written by the engine */
    uint32_t follows; /* atomic; a function's id, written by the engine before PSK_INSPECT_FOLLOWS */
    uint64_t launches; /* atomic; counted in strict mode, captured ones not */
    uint32_t record;  /* atomic; written by the engine: 0, or its launches are recorded whole (psk_launch); when it is 1 + n they write to no more than where n words of the parameters point to */
    uint16_t written[PSK_MOST_WRITTEN]; /* their offsets in psk_launch's buffer, written before `record` */
    uint32_t inspected; /* atomic; launches that asked and may go; the hook's own */
} psk_func;

/* A launch as it was made, from which it can be made again. Strict mode; of functions with `record`; captured and
 * cooperative launches are not recorded, nor those with attributes that matter beside clusters, or more than PSK_LAUNCH_MAX_BYTES of parameters. Behind it lie,
 * for each parameter, the first byte of it (uint32_t), and then, at a multiple of 8, the parameters as a buffer that a
 * launch takes (CU_LAUNCH_PARAM_BUFFER_POINTER). Entries are written over in time: what was read of one is valid if
 * `turn` was right before and psk_shared.launch_head is at most PSK_LAUNCH_UNITS beyond it after. */
typedef struct psk_launch {
    uint64_t turn;     /* its first unit + 1, ascending; stored last */
    uint64_t function; /* CUfunction or CUkernel */
    uint32_t grid[3], block[3];
    uint32_t cluster[3], policy; /* blocks of a cluster and CUclusterSchedulingPolicy; 0: none */
    uint32_t shared;   /* bytes of dynamic shared memory */
    uint32_t nparams, bytes; /* of parameters */
    uint32_t _pad;
} psk_launch;

/* How long an operation took on the device, from one event to another. */
typedef struct psk_timing {
    uint64_t seq;
    uint32_t ns;
    uint32_t empty_ns; /* from one event to the next with nothing in between */
} psk_timing;

#define PSK_LINE __attribute__((aligned(64))) /* begins a line of the cache */

/* Shared state, allocated by the hook (anonymous memory, not inherited across fork).
 * What the reader writes all the time lies in lines of its own: else a launch waits for the
 * line that the reader has. */
typedef struct psk_shared {
    PSK_LINE uint32_t abi_version; /* PSK_HOOK_ABI */
    uint32_t mode;        /* atomic; written by the engine */
    uint32_t stamp;       /* atomic; PSK_STAMP_*, of every record; written by the engine */
    uint32_t reader_sleeping; /* atomic; the engine sets it before a futex wait on doorbell */
    uint64_t head;        /* atomic; next position to reserve. The seq of a record is its position + 1, so never 0 */
    uint64_t tail_seen;   /* atomic; the hook's own: the tail as it was once */
    uint64_t launches;    /* atomic */

    PSK_LINE psk_entry *ring; /* [PSK_RING_ENTRIES] */
    uint32_t *block_slot; /* [PSK_TABLE_BLOCKS], sparse; atomic; written by the engine */
    uint8_t *slot_state;  /* [PSK_MAX_SLOTS]; atomic; written by the engine */
    uint64_t *slot_last_seq; /* [PSK_MAX_SLOTS]; atomic; written by the hook */
    uint32_t progress_every; /* in gated mode, a progress write follows at least every so many records on a stream; written by the engine */
    uint32_t trails;      /* atomic; 1: what a launch names is kept for the next one on its stream (PSK_INSPECT_FOLLOWS); written by the engine */
    uint32_t doorbell;    /* atomic; futex word, bumped by the hook when reader_sleeping */
    uint32_t size;        /* sizeof(psk_shared) */
    uint32_t timing;      /* atomic; 1: operations are timed now and then (timing.c); written by the engine */
    uint32_t unloads;     /* atomic; counts calls that unload functions, before the driver is asked to */
    uint64_t dropped;     /* atomic; records lost because the ring was full and nobody read it (such launches are never gated); in strict mode only after the engine left it or set refuse */

    PSK_LINE uint64_t tail; /* atomic; written by the engine: everything before it has been read */

    PSK_LINE psk_func *funcs;      /* [PSK_MAX_FUNCS] */
    uint32_t nfuncs;      /* atomic */
    uint32_t nstreams;    /* atomic */
    uint64_t *streams;    /* [PSK_MAX_STREAMS] stream handles by index; index 0 is the legacy default stream of the engine's context, the last one's is PSK_STREAM_MANY */

    /* Words in pinned host memory that the engine provides; one 64-byte line a
     * stream: word index = stream * 16, the others stay as they are. Values are the low 32 bits of seq; the
     * waits compare cyclically (CU_STREAM_WAIT_VALUE_GEQ). */
    uint32_t *gate;
    uint32_t *progress;

    /* counters for doctor and the exit verdict; atomic */
    PSK_LINE uint64_t copies;
    uint64_t graph_launches, gated, opaque_launches;
    uint64_t route_elf, route_dlsym, route_getproc, route_runtime; /* resolutions handed out by each route */
    uint64_t unhooked;    /* launch/alloc/graph symbols handed out without a wrapper */
    const char *unhooked_names; /* theirs, one a line: appended to, and a valid string at any time */

    /* ---- strict mode ---- */
    PSK_LINE uint32_t *slot_ticket; /* [PSK_MAX_SLOTS]; atomic; written by the engine before it stores ARRIVING */
    uint32_t *arrived;     /* a word in pinned host memory that the engine provides before strict mode; its copy stream writes the ticket after each copy in */
    /* A CUresult, 0 while the engine is well. Else operations that name an ABSENT
     * slot or would ask for a grant return it and do not call the driver. Atomic. */
    uint32_t refuse;
    uint32_t inspect_n;    /* addresses below */
    uint64_t granted;      /* atomic; written by the engine: the seq of the asking operation, which may go */
    uint64_t inspect_seq;  /* atomic; the operation that asks, stored before its record is published */
    /* Of an operation with PSK_FLAG_INSPECT: every parameter word that lies in a block of a slot or
     * of PSK_SLOT_PLAIN, or in other memory that the driver knows. When there are more, it is PSK_FLAG_OPAQUE too. */
    uint64_t inspect_addr[PSK_MAX_INSPECT];
    uint64_t cpu_waits, cpu_wait_ns; /* operations that waited for ABSENT slots or a grant, and for how long */
    uint64_t grants_asked, refused, followed;

    /* Self-test. While probing is a thread's id, that thread's launches of no function and its
     * fills of probe_word are counted in probes and go no further. Written by the engine, but for probes. */
    uint64_t probes;
    uint64_t probe_word;
    uint32_t probing; /* 0: nobody */
    uint32_t graphs_chase; /* atomic; written by the engine: a search of what a graph names has found addresses, so that each launch of graphs is searched */

    /* Has every stream report its last operation, which otherwise stays unfinished for the
     * engine until more follow. From a thread with the context; it calls the driver. */
    void (*report_all)(void);

    /* Contexts. Before it sets a mode the engine calls serve from a thread with its own, else default
     * streams are taken for one whatever context is current. */
    void (*serve)(void);
    /* Waits for all other contexts that the process has: for memory that their work may use. 0 without
     * any; else a CUresult. */
    uint32_t (*synchronize_others)(void);

    uint64_t launch_head; /* atomic; units of launch_area that were given to recorded launches, in all */
    uint8_t *launch_area; /* [PSK_LAUNCH_UNITS * PSK_LAUNCH_UNIT] */

    uint64_t graph_bytes; /* atomic; written by the engine: graphs that name more are instantiated in parts as well, each an operation of its own; 0: none are */

    uint64_t timings_lost; /* atomic; the device was there before the events were */
    uint64_t ntimings; /* atomic; in all */
    psk_timing timings[PSK_TIMINGS]; /* the last ones; told when they are read, which is some operations later */
} psk_shared;

/* Exported by the hook. Whether PyTorch's kernels are given lists as the hook knows them (lists.c), which they are taken for until
 * this says otherwise; it does not hold for functions that have been launched. */
void penstock_hook_expect_lists(int known);

/* Exported by the hook. The engine finds it with dlsym(RTLD_DEFAULT, "penstock_hook_attach").
 * Returns the shared state, or NULL when abi_version differs from PSK_HOOK_ABI or in a forked child. Idempotent. */
psk_shared *penstock_hook_attach(uint32_t abi_version);

/* Exported by the hook: the real (unhooked) driver symbol, for the engine's own calls. */
void *penstock_hook_real(const char *symbol);

#endif
