/* Streams, a worker thread each. */
#define _GNU_SOURCE
#include "streams.h"
#include "base.h"

#include <stdlib.h>

static pthread_mutex_t list_mu = PTHREAD_MUTEX_INITIALIZER;
static stream *streams; /* all that there have ever been, the default ones included */
static uint64_t next_id = 1;

/* What a CUstream points to. */
typedef struct handle {
    stream *of; /* NULL: destroyed */
    struct handle *next;
} handle;
static handle *spare; /* of destroyed streams, the last one first: the driver, too, gives a handle out again while its old stream is at work */

/* A stream that was destroyed and has done its work, if there is one. Under list_mu. */
static stream *stream_used(void) {
    for (stream *s = streams; s; s = s->next) {
        pthread_mutex_lock(&s->mu);
        bool idle = s->destroyed && !s->queued;
        if (idle) {
            s->destroyed = s->capture_origin = s->capture_invalid = false;
            s->capture = NULL;
            s->error = CUDA_SUCCESS;
            s->id = next_id++;
        }
        pthread_mutex_unlock(&s->mu);
        if (idle) return s;
    }
    return NULL;
}

stream *stub_stream_new(CUcontext c) {
    stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->tail = &s->head;
    s->context = c;
    pthread_mutex_lock(&list_mu);
    s->id = next_id++;
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&list_mu);
    return s;
}

void stub_stream_drop(stream *s) {
    pthread_mutex_lock(&s->mu);
    s->destroyed = true; /* what is queued still runs */
    pthread_mutex_unlock(&s->mu);
}

/* The thread's own default stream in its context. */
static stream *own_stream(void) {
    static __thread struct own {
        uint64_t context;
        stream *s;
        struct own *next;
    } *first;
    struct own *o = first;
    while (o && o->context != stub_context_id()) o = o->next;
    if (o) return o->s;
    o = malloc(sizeof *o);
    if (!o) return NULL;
    *o = (struct own){stub_context_id(), stub_stream_new(stub_context()), first};
    first = o;
    return o->s;
}

bool stub_is_legacy(CUstream h, int ptsz) { return (!h && !ptsz) || h == CU_STREAM_LEGACY; }

stream *stub_legacy(void) {
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    CUcontext c = stub_legacy_context();
    pthread_mutex_lock(&mu);
    if (!c->legacy) c->legacy = stub_stream_new(c);
    pthread_mutex_unlock(&mu);
    return c->legacy;
}

stream *stub_stream(CUstream h, int ptsz) {
    if (stub_is_legacy(h, ptsz)) return stub_legacy();
    return h == CU_STREAM_PER_THREAD || !h ? own_stream() : ((handle *)h)->of;
}

bool stub_implicit(CUstream h, int ptsz) {
    bool found = false;
    if (!stub_is_legacy(h, ptsz)) return false;
    pthread_mutex_lock(&list_mu);
    for (stream *s = streams; s && !found; s = s->next) found = s->capture && !(s->flags & CU_STREAM_NON_BLOCKING) && s->context == stub_context();
    pthread_mutex_unlock(&list_mu);
    return found;
}

uint64_t stub_queued(void) {
    uint64_t n = 0;
    pthread_mutex_lock(&list_mu);
    for (stream *s = streams; s; s = s->next) {
        pthread_mutex_lock(&s->mu);
        n += s->queued;
        pthread_mutex_unlock(&s->mu);
    }
    pthread_mutex_unlock(&list_mu);
    return n;
}

/* ---- the worker ---- */

static void free_op(op *o) {
    stub_free_work(&o->w);
    if (o->own_p) free(o->p);
    free(o);
}

static void *worker(void *arg) {
    stream *s = arg;
    pthread_mutex_lock(&s->mu);
    for (;;) {
        while (!s->head) pthread_cond_wait(&s->changed, &s->mu);
        op *o = s->head;
        s->head = o->next;
        if (!s->head) s->tail = &s->head;
        bool skip = (s->error || stub_ended()) && !o->anyhow;
        pthread_mutex_unlock(&s->mu);
        CUresult rc = skip ? CUDA_SUCCESS : o->run(s, o);
        free_op(o);
        if (rc != CUDA_SUCCESS) stub_failed(rc);
        pthread_mutex_lock(&s->mu);
        if (rc != CUDA_SUCCESS && s->error == CUDA_SUCCESS) s->error = rc;
        s->queued--;
        pthread_cond_broadcast(&s->changed);
    }
    return NULL;
}

op *stub_op(CUresult (*run)(stream *, op *)) {
    op *o = calloc(1, sizeof *o);
    if (!o) abort(); /* a test double may */
    o->run = run;
    o->w.type = CU_GRAPH_NODE_TYPE_EMPTY;
    return o;
}

static CUresult enqueue(stream *s, op *o) {
    unsigned limit = (unsigned)stub_env_bytes("STUB_QUEUE_DEPTH", 1024);
    stub_api_lock();
    pthread_mutex_lock(&s->mu);
    if (!s->started) {
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, 256 << 10);
        s->started = !pthread_create(&s->thread, &attr, worker, s);
        pthread_attr_destroy(&attr);
        if (!s->started) abort();
    }
    while (s->queued >= limit) pthread_cond_wait(&s->changed, &s->mu); /* as the driver does when its queue is full */
    CUresult rc = s->error ? s->error : stub_ended();
    if (rc == CUDA_SUCCESS) {
        *s->tail = o;
        s->tail = &o->next;
        s->queued++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mu);
    stub_api_unlock();
    if (rc != CUDA_SUCCESS) free_op(o);
    return rc;
}

CUresult stub_enqueue(stream *s, op *o) {
    if (s->capture) {
        s->capture_invalid = true;
        free_op(o);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return enqueue(s, o);
}

static CUresult run_work_op(stream *s, op *o) { return (void)s, stub_run_work(&o->w); }

CUresult stub_submit(stream *s, const work *w) {
    if (s->capture) return stub_graph_append(s->capture, w);
    op *o = stub_op(run_work_op);
    if (!stub_copy_work(&o->w, w)) {
        free_op(o);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return enqueue(s, o);
}

CUresult stub_wait_idle(stream *s) {
    pthread_mutex_lock(&s->mu);
    while (s->queued) pthread_cond_wait(&s->changed, &s->mu);
    CUresult rc = s->error ? s->error : stub_ended();
    pthread_mutex_unlock(&s->mu);
    return rc;
}

/* ---- streams ---- */

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    CURRENT();
    pthread_mutex_lock(&list_mu);
    stream *s = stream_used();
    handle *h = spare;
    if (h) spare = h->next;
    pthread_mutex_unlock(&list_mu);
    if (!s) s = stub_stream_new(NULL);
    if (!h) h = malloc(sizeof *h);
    if (!s || !h) return CUDA_ERROR_OUT_OF_MEMORY;
    s->flags = flags;
    s->priority = priority;
    s->context = stub_context();
    h->of = s;
    *out = (CUstream)h;
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream *out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

CUresult cuStreamDestroy_v2(CUstream h) {
    CURRENT();
    if ((uintptr_t)h <= 2) return CUDA_ERROR_INVALID_HANDLE;
    handle *mine = (handle *)h;
    pthread_mutex_lock(&list_mu);
    stream *s = mine->of;
    if (s) {
        stub_stream_drop(s);
        mine->of = NULL;
        mine->next = spare;
        spare = mine;
    }
    pthread_mutex_unlock(&list_mu);
    return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuStreamDestroy(CUstream h) { return cuStreamDestroy_v2(h); }

static CUresult synchronize(CUstream h, int ptsz) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (stub_implicit(h, ptsz)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (s->capture) {
        s->capture_invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    UNSAFE();
    return stub_wait_idle(s);
}
CUresult cuStreamSynchronize(CUstream s) { return synchronize(s, 0); }
CUresult cuStreamSynchronize_ptsz(CUstream s) { return synchronize(s, 1); }

static CUresult query(CUstream h, int ptsz) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    UNSAFE();
    pthread_mutex_lock(&s->mu);
    CUresult rc = s->error ? s->error : stub_ended() ? stub_ended() : s->queued ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    pthread_mutex_unlock(&s->mu);
    return rc;
}
CUresult cuStreamQuery(CUstream s) { return query(s, 0); }
CUresult cuStreamQuery_ptsz(CUstream s) { return query(s, 1); }

CUresult cuStreamGetPriority(CUstream h, int *priority) {
    READY();
    stream *s = stub_stream(h, 0);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    *priority = s->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream h, unsigned *flags) {
    READY();
    stream *s = stub_stream(h, 0);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    *flags = s->flags;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream h, unsigned long long *id) {
    READY();
    stream *s = stub_stream(h, 0);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    *id = s->id;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream h, CUcontext *context) {
    READY();
    stream *s = stub_stream(h, 0);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    *context = s->context;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
    CURRENT();
    UNSAFE();
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&list_mu);
    for (stream *s = streams; s; s = s->next) {
        if (s->context != stub_context()) continue;
        pthread_mutex_unlock(&list_mu); /* a worker's host function may create a stream */
        CUresult one = stub_wait_idle(s);
        pthread_mutex_lock(&list_mu);
        if (rc == CUDA_SUCCESS) rc = one;
    }
    pthread_mutex_unlock(&list_mu);
    return rc;
}

atomic_int stub_captures;
static __thread int capture_mode; /* CUstreamCaptureMode: what the thread means to do to captures; global at first */

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

static bool prohibits(const stream *s) {
    if (!s->capture || !s->capture_origin || s->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    bool own = pthread_equal(s->capture_thread, pthread_self());
    return own || (s->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult stub_unsafe(void) {
    if (!atomic_load(&stub_captures) || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&list_mu);
    for (stream *s = streams; s; s = s->next) {
        if (!prohibits(s)) continue;
        s->capture_invalid = true;
        rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&list_mu);
    return rc;
}

bool stub_leave_capture(CUgraph g) {
    bool invalid = false;
    pthread_mutex_lock(&list_mu);
    for (stream *t = streams; t; t = t->next) { /* those that joined leave too */
        if (t->capture != g) continue;
        invalid |= t->capture_invalid;
        t->capture = NULL;
        t->capture_invalid = t->capture_origin = false;
    }
    pthread_mutex_unlock(&list_mu);
    return invalid;
}

/* ---- what ends with a context ---- */

/* What it has queued runs to its end. */
CUresult cuCtxDestroy_v2(CUcontext ctx) {
    READY();
    if (!ctx || stub_is_primary(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx->legacy) stub_wait_idle(ctx->legacy), stub_stream_drop(ctx->legacy);
    stub_context_drop(ctx);
    return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext ctx) { return cuCtxDestroy_v2(ctx); }
CUresult cuCtxDetach(CUcontext ctx) { return cuCtxDestroy_v2(ctx); }
CUresult cuGreenCtxDestroy(CUgreenCtx green) { return cuCtxDestroy_v2((CUcontext)green); }
