/* Streams, a worker thread each. */
#ifndef PENSTOCK_STUB_STREAMS_H
#define PENSTOCK_STUB_STREAMS_H
#include <pthread.h>

#include "contexts.h"
#include "memops.h"
#include "work.h"

typedef struct op op;
typedef struct stream stream;
struct op {
    CUresult (*run)(stream *, op *);
    work w;
    memop memop;
    uint64_t a, b, c, d;
    void *p; /* owned when own_p */
    bool own_p;
    bool anyhow; /* it is run also when the stream or the context has failed */
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
    int capture_mode;
    pthread_t capture_thread; /* that began it */
    uint64_t id;
    CUcontext context;
    unsigned flags;
    int priority;
    stream *next;
};

/* The legacy default stream of the thread's context. */
stream *stub_legacy(void);
stream *stub_stream_new(CUcontext c);
/* Has a stream be another's once its work is done. */
void stub_stream_drop(stream *s);
/* The stream behind a handle; 0 is the legacy one, or the thread's own under ptsz. NULL: no such stream. */
stream *stub_stream(CUstream s, int ptsz);
bool stub_is_legacy(CUstream h, int ptsz);
/* Whether a stream is the legacy one while a stream that it waits for captures: its work would be part of the capture. */
bool stub_implicit(CUstream h, int ptsz);
/* Refuses a call that may not be made while a stream captures, which spoils the capture, unless the thread has said that it means no harm. */
CUresult stub_unsafe(void);
#define UNSAFE()                               \
    do {                                       \
        CUresult unsafe_ = stub_unsafe();      \
        if (unsafe_ != CUDA_SUCCESS) return unsafe_; \
    } while (0)
extern atomic_int stub_captures; /* that streams began and have not ended */
bool stub_leave_capture(CUgraph g); /* has all streams leave a capture; true: it was invalid */
op *stub_op(CUresult (*run)(stream *, op *));
/* Queues an operation that cannot be captured. Takes it over, also on failure. */
CUresult stub_enqueue(stream *s, op *o);
/* Queues work, or adds it to the graph that the stream captures. */
CUresult stub_submit(stream *s, const work *w);
CUresult stub_wait_idle(stream *s);
CUresult cuCtxSynchronize(void);
uint64_t stub_queued(void); /* operations, of all streams */
#endif
