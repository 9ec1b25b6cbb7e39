/* One operation: a launch, a copy, a fill, a graph launch, a call of NCCL. */
#ifndef PENSTOCK_HOOK_OP_H
#define PENSTOCK_HOOK_OP_H
#include "streams.h"

#define PSK_OP_MAX_SLOTS 8192 /* beyond it a record is marked opaque */
typedef struct psk_op {
    uint16_t kind, flags;
    uint32_t id, grid;
    uint32_t used; /* psk_list_used of what is launched */
    uint32_t recorded; /* psk_record_launch of it */
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
    bool follows;  /* part of a graph: another of its parts was launched right before */
    bool more;     /* and one comes right after: until then the locks are held */
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

static inline uint32_t psk_grid_hash(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz) {
    uint64_t h = ((uint64_t)gx << 32 | gy) * 0x9e3779b97f4a7c15u;
    h = (h ^ (h >> 29) ^ ((uint64_t)gz << 32 | bx)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 32) ^ ((uint64_t)by << 32 | bz)) * 0x94d049bb133111ebu;
    return (uint32_t)(h ^ (h >> 31));
}
#endif
