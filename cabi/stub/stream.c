/* Streams (a worker thread each), events, memory operations, captures. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static bool is_legacy(CUstream h, int ptsz) { return (!h && !ptsz) || h == CU_STREAM_LEGACY; }

stream *stub_stream(CUstream h, int ptsz) {
    if (is_legacy(h, ptsz)) return stub_legacy();
    return h == CU_STREAM_PER_THREAD || !h ? own_stream() : ((handle *)h)->of;
}

/* Whether a stream is the legacy one while a stream that it waits for captures: its work would be part of the capture. */
static bool implicit(CUstream h, int ptsz) {
    bool found = false;
    if (!is_legacy(h, ptsz)) return false;
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

static CUresult run_record(stream *s, op *o);

static void *worker(void *arg) {
    stream *s = arg;
    pthread_mutex_lock(&s->mu);
    for (;;) {
        while (!s->head) pthread_cond_wait(&s->changed, &s->mu);
        op *o = s->head;
        s->head = o->next;
        if (!s->head) s->tail = &s->head;
        bool skip = (s->error || stub_ended()) && o->run != run_record; /* who waits for an event is not left waiting */
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

static CUresult run_work_op(stream *s, op *o) { return stub_run_work(s, &o->w); }

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
    if (implicit(h, ptsz)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (s->capture) {
        s->capture_invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stub_wait_idle(s);
}
CUresult cuStreamSynchronize(CUstream s) { return synchronize(s, 0); }
CUresult cuStreamSynchronize_ptsz(CUstream s) { return synchronize(s, 1); }

static CUresult query(CUstream h, int ptsz) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
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

/* ---- memory operations ---- */

static bool satisfied(uint64_t now, uint64_t value, unsigned flags, bool wide) {
    switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: return wide ? (int64_t)(now - value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return now == value;
    case CU_STREAM_WAIT_VALUE_AND: return (now & value) != 0;
    default: return (wide ? ~(now | value) : (uint32_t) ~(uint32_t)(now | value)) != 0;
    }
}

static uint64_t load(uint64_t p, bool wide) {
    return wide ? __atomic_load_n((uint64_t *)(uintptr_t)p, __ATOMIC_ACQUIRE) : __atomic_load_n((uint32_t *)(uintptr_t)p, __ATOMIC_ACQUIRE);
}

/* a: address, b: value, c: flags, d: 64 bits wide */
static CUresult run_wait(stream *s, op *o) {
    (void)s;
    for (unsigned spins = 0; !satisfied(load(o->a, o->d), o->b, (unsigned)o->c, o->d) && !stub_ended(); spins++) {
        struct timespec pause = {.tv_nsec = spins < 50 ? 1000 : 50000};
        nanosleep(&pause, NULL);
    }
    return CUDA_SUCCESS;
}

static CUresult run_write(stream *s, op *o) {
    (void)s;
    if (o->d)
        __atomic_store_n((uint64_t *)(uintptr_t)o->a, o->b, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)(uintptr_t)o->a, (uint32_t)o->b, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

/* a: address, b: value, d: 64 bits wide. Sums alone. */
static CUresult run_reduce(stream *s, op *o) {
    (void)s;
    if (o->d)
        __atomic_fetch_add((uint64_t *)(uintptr_t)o->a, o->b, __ATOMIC_ACQ_REL);
    else
        __atomic_fetch_add((uint32_t *)(uintptr_t)o->a, (uint32_t)o->b, __ATOMIC_ACQ_REL);
    return CUDA_SUCCESS;
}

static CUresult memop(CUresult (*run)(stream *, op *), CUstream h, CUdeviceptr p, uint64_t value, unsigned flags, bool wide, int ptsz) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (!p || p % (wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
    if (s->context != stub_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (implicit(h, ptsz)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (stub_should_fail(run == run_wait ? "cuStreamWaitValue32" : "cuStreamWriteValue32")) return CUDA_ERROR_NOT_SUPPORTED;
    COUNT(run == run_wait ? N_WAITS : N_WRITES, 1);
    op *o = stub_op(run);
    o->a = p, o->b = value, o->c = flags, o->d = wide;
    return stub_enqueue(s, o);
}

#define MEMOP(name, run, type, wide)                                                                                            \
    CUresult name(CUstream s, CUdeviceptr p, type v, unsigned flags) { return memop(run, s, p, v, flags, wide, 0); }            \
    CUresult name##_ptsz(CUstream s, CUdeviceptr p, type v, unsigned flags) { return memop(run, s, p, v, flags, wide, 1); }
MEMOP(cuStreamWaitValue32, run_wait, uint32_t, false)
MEMOP(cuStreamWaitValue32_v2, run_wait, uint32_t, false)
MEMOP(cuStreamWriteValue32, run_write, uint32_t, false)
MEMOP(cuStreamWriteValue32_v2, run_write, uint32_t, false)
MEMOP(cuStreamWaitValue64, run_wait, uint64_t, true)
MEMOP(cuStreamWaitValue64_v2, run_wait, uint64_t, true)
MEMOP(cuStreamWriteValue64, run_write, uint64_t, true)
MEMOP(cuStreamWriteValue64_v2, run_write, uint64_t, true)

/* What carries one of a batch out, with its arguments. */
static CUresult (*memop_of(const CUstreamBatchMemOpParams *p, op *o))(stream *, op *) {
    bool wide = p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    *o = (op){.a = p->value.address, .b = wide ? p->value.value64 : p->value.value, .c = p->value.flags, .d = wide};
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: return run_wait;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: return run_write;
    case CU_STREAM_MEM_OP_ATOMIC_REDUCTION:
        *o = (op){.a = p->reduction.address, .b = p->reduction.value, .d = p->reduction.type == CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64};
        return run_reduce;
    default: return NULL;
    }
}

void stub_run_memop(const CUstreamBatchMemOpParams *p) {
    op o;
    CUresult (*run)(stream *, op *) = memop_of(p, &o);
    if (run) run(NULL, &o);
}

static CUresult batch(CUstream h, unsigned n, const CUstreamBatchMemOpParams *ops, unsigned flags, int ptsz) {
    if (!ops || !n || n > 256 || flags) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++) {
        op o;
        CUresult (*run)(stream *, op *) = memop_of(&ops[i], &o);
        CUresult r = run ? memop(run, h, o.a, o.b, (unsigned)o.c, o.d, ptsz) : CUDA_ERROR_INVALID_VALUE;
        if (r) return r;
    }
    return CUDA_SUCCESS;
}

#define BATCH(name)                                                                                                               \
    CUresult name(CUstream s, unsigned n, CUstreamBatchMemOpParams *ops, unsigned flags) { return batch(s, n, ops, flags, 0); }   \
    CUresult name##_ptsz(CUstream s, unsigned n, CUstreamBatchMemOpParams *ops, unsigned flags) { return batch(s, n, ops, flags, 1); }
BATCH(cuStreamBatchMemOp)
BATCH(cuStreamBatchMemOp_v2)

/* ---- events ---- */

/* What one record stands for: a wait is for the record that was the last when it was called, whatever
 * stream the event is recorded on afterwards and however soon that gets there. */
typedef struct mark {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    bool done;
    struct timespec when;
    unsigned refs; /* of the event, and of queued records and waits */
} mark;

typedef struct event {
    pthread_mutex_t mu;
    mark *last;      /* NULL: never recorded */
    CUgraph captured; /* recorded in a capture: a wait joins it */
} event;

static mark *mark_ref(mark *m) {
    if (m) {
        pthread_mutex_lock(&m->mu);
        m->refs++;
        pthread_mutex_unlock(&m->mu);
    }
    return m;
}

static void mark_unref(mark *m) {
    if (!m) return;
    pthread_mutex_lock(&m->mu);
    bool last = --m->refs == 0;
    pthread_mutex_unlock(&m->mu);
    if (last) free(m);
}

static void mark_wait(mark *m) {
    pthread_mutex_lock(&m->mu);
    while (!m->done) pthread_cond_wait(&m->changed, &m->mu);
    pthread_mutex_unlock(&m->mu);
}

/* The event's last record, for the caller to give back. */
static mark *last_mark(event *e) {
    pthread_mutex_lock(&e->mu);
    mark *m = mark_ref(e->last);
    pthread_mutex_unlock(&e->mu);
    return m;
}

CUresult cuEventCreate(CUevent *out, unsigned flags) {
    CURRENT();
    (void)flags;
    event *e = calloc(1, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&e->mu, NULL);
    *out = (CUevent)e;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent h) {
    READY();
    event *e = (event *)h;
    mark_unref(e->last);
    free(e);
    return CUDA_SUCCESS;
}

/* p: mark */
static CUresult run_record(stream *s, op *o) {
    (void)s;
    mark *m = o->p;
    pthread_mutex_lock(&m->mu);
    m->done = true;
    clock_gettime(CLOCK_MONOTONIC, &m->when);
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mu);
    mark_unref(m);
    return CUDA_SUCCESS;
}

static CUresult run_wait_event(stream *s, op *o) {
    (void)s;
    mark_wait(o->p);
    mark_unref(o->p);
    return CUDA_SUCCESS;
}

static CUresult record(CUevent h, CUstream hs, int ptsz) {
    CURRENT();
    event *e = (event *)h;
    stream *s = stub_stream(hs, ptsz);
    if (!s || !e) return CUDA_ERROR_INVALID_HANDLE;
    mark *m = s->capture ? NULL : calloc(1, sizeof *m), *old = NULL;
    if (m) {
        pthread_mutex_init(&m->mu, NULL);
        pthread_cond_init(&m->changed, NULL);
        m->refs = 2;
    }
    pthread_mutex_lock(&e->mu);
    e->captured = s->capture;
    if (m) old = e->last, e->last = m;
    pthread_mutex_unlock(&e->mu);
    mark_unref(old);
    if (!m) return CUDA_SUCCESS;
    op *o = stub_op(run_record);
    o->p = m;
    CUresult rc = stub_enqueue(s, o);
    if (rc != CUDA_SUCCESS) run_record(s, &(op){.p = m}); /* nobody waits for what will not come */
    return rc;
}
CUresult cuEventRecord(CUevent e, CUstream s) { return record(e, s, 0); }
CUresult cuEventRecord_ptsz(CUevent e, CUstream s) { return record(e, s, 1); }

static CUresult wait_event(CUstream hs, CUevent h, int ptsz) {
    CURRENT();
    event *e = (event *)h;
    stream *s = stub_stream(hs, ptsz);
    if (!s || !e) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&e->mu);
    CUgraph joins = e->captured;
    mark *m = joins ? NULL : mark_ref(e->last);
    pthread_mutex_unlock(&e->mu);
    if (joins && !s->capture) s->capture = joins;
    if (!m || __atomic_load_n(&m->done, __ATOMIC_ACQUIRE)) {
        mark_unref(m);
        return CUDA_SUCCESS;
    }
    op *o = stub_op(run_wait_event);
    o->p = m;
    CUresult rc = stub_enqueue(s, o);
    if (rc != CUDA_SUCCESS) mark_unref(m);
    return rc;
}
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) { return (void)flags, wait_event(s, e, 0); }
CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned flags) { return (void)flags, wait_event(s, e, 1); }

CUresult cuEventQuery(CUevent h) {
    CURRENT();
    mark *m = last_mark((event *)h);
    bool done = !m || __atomic_load_n(&m->done, __ATOMIC_ACQUIRE);
    mark_unref(m);
    return stub_ended() ? stub_ended() : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent h) {
    CURRENT();
    mark *m = last_mark((event *)h);
    if (m) mark_wait(m);
    mark_unref(m);
    return stub_ended();
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
    READY();
    if (cuEventQuery(from) || cuEventQuery(to)) return CUDA_ERROR_NOT_READY;
    mark *a = last_mark((event *)from), *b = last_mark((event *)to);
    CUresult rc = a && b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (rc == CUDA_SUCCESS) *ms = (float)(b->when.tv_sec - a->when.tv_sec) * 1e3f + (float)(b->when.tv_nsec - a->when.tv_nsec) * 1e-6f;
    mark_unref(a);
    mark_unref(b);
    return rc;
}

/* ---- captures ---- */

static CUresult begin_capture(CUstream h, CUgraph into, int ptsz) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (is_legacy(h, ptsz)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    s->capture_invalid = false;
    s->capture_origin = true;
    s->capture = into ? into : stub_graph_new();
    return s->capture ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuStreamBeginCapture(CUstream s) { return begin_capture(s, NULL, 0); }
CUresult cuStreamBeginCapture_ptsz(CUstream s) { return begin_capture(s, NULL, 1); }
CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { return (void)mode, begin_capture(s, NULL, 0); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, int mode) { return (void)mode, begin_capture(s, NULL, 1); }
CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph g, const CUgraphNode *d, const void *e, size_t n, int mode) { return (void)d, (void)e, (void)n, (void)mode, begin_capture(s, g, 0); }
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph g, const CUgraphNode *d, const void *e, size_t n, int mode) { return (void)d, (void)e, (void)n, (void)mode, begin_capture(s, g, 1); }
CUresult cuStreamBeginRecaptureToGraph(CUstream s, int mode, CUgraph g, void *callback, void *arg) { return (void)mode, (void)callback, (void)arg, begin_capture(s, g, 0); }
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, int mode, CUgraph g, void *callback, void *arg) { return (void)mode, (void)callback, (void)arg, begin_capture(s, g, 1); }
CUresult cuStreamBeginCaptureToCig(CUstream s, void *params) { return (void)params, begin_capture(s, NULL, 0); }
CUresult cuStreamBeginCaptureToCig_ptsz(CUstream s, void *params) { return (void)params, begin_capture(s, NULL, 1); }

static CUresult end_capture(CUstream h, CUgraph *out, int ptsz) {
    READY();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (!s->capture || !s->capture_origin) return CUDA_ERROR_ILLEGAL_STATE;
    CUgraph g = s->capture;
    bool invalid = false;
    pthread_mutex_lock(&list_mu);
    for (stream *t = streams; t; t = t->next) { /* those that joined leave too */
        if (t->capture != g) continue;
        invalid |= t->capture_invalid;
        t->capture = NULL;
        t->capture_invalid = t->capture_origin = false;
    }
    pthread_mutex_unlock(&list_mu);
    *out = invalid ? NULL : g;
    return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream s, CUgraph *g) { return end_capture(s, g, 0); }
CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *g) { return end_capture(s, g, 1); }
CUresult cuStreamEndCaptureToCig(CUstream s) { return end_capture(s, &(CUgraph){NULL}, 0); }
CUresult cuStreamEndCaptureToCig_ptsz(CUstream s) { return end_capture(s, &(CUgraph){NULL}, 1); }

static CUresult is_capturing(CUstream h, int *status, int ptsz) {
    READY();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (implicit(h, ptsz)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = !s->capture ? CU_STREAM_CAPTURE_STATUS_NONE : s->capture_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream s, int *status) { return is_capturing(s, status, 0); }
CUresult cuStreamIsCapturing_ptsz(CUstream s, int *status) { return is_capturing(s, status, 1); }
CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int mine;
    int old = mine;
    mine = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
