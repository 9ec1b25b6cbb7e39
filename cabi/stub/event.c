/* Events. */
#define _GNU_SOURCE
#include "contexts.h"
#include "streams.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

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
    o->anyhow = true; /* who waits for the event is not left waiting */
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
    UNSAFE();
    mark *m = last_mark((event *)h);
    bool done = !m || __atomic_load_n(&m->done, __ATOMIC_ACQUIRE);
    mark_unref(m);
    return stub_ended() ? stub_ended() : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent h) {
    CURRENT();
    UNSAFE();
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
