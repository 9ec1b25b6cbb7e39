/* Stream indices, what is known of each stream, and its lock. */
#ifndef PENSTOCK_HOOK_STREAMS_H
#define PENSTOCK_HOOK_STREAMS_H
#include "shared.h"

#define PSK_TRAIL_MAX 16 /* a launch that names more leaves no trail */
typedef struct psk_trail {
    bool left;         /* else nothing below counts */
    uint32_t function; /* of the last launch on the stream */
    uint32_t nslots, nplain;
    uint32_t slots[PSK_TRAIL_MAX];
    uint64_t plain[PSK_TRAIL_MAX]; /* parameter words that lie in PSK_SLOT_PLAIN */
} psk_trail;

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
#endif
