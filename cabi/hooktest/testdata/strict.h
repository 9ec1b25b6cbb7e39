/* What the tests of strict mode share: calls on a thread of their own, arrivals, grants, held streams. */
#ifndef HOOKTEST_STRICT_H
#define HOOKTEST_STRICT_H
#include "engine.h"

/* A call on a thread of its own, which may have to wait. */
typedef struct job {
    CUresult (*call)(struct job *);
    CUstream s;
    CUdeviceptr p;
    void *host;
    size_t bytes;
    pthread_t thread;
    CUresult result;
    atomic_int done;
} job;

static void *job_main(void *arg) {
    job *j = arg;
    enter();
    j->result = j->call(j);
    atomic_store(&j->done, 1);
    return NULL;
}

static inline void begin_job(job *j) {
    atomic_store(&j->done, 0);
    CHECK(!pthread_create(&j->thread, NULL, job_main, j));
}

static inline CUresult end_job(job *j) {
    EVENTUALLY(atomic_load(&j->done));
    pthread_join(j->thread, NULL);
    return j->result;
}

/* It does not go on by itself. */
static inline void waits(job *j) {
    usleep(3000);
    CHECK(!atomic_load(&j->done));
}

/* The next record, when it is there. */
static inline record *await(void) {
    static record r;
    EVENTUALLY(take(&r));
    return &r;
}

static uint64_t count(const char *name) { return ((uint64_t(*)(const char *))driver("stub_count"))(name); }

static CUresult add_one(job *j) { return touch_add(j->s, j->p, 1, 1); }

/* As if a function had been inspected: the next launches of it do not ask. */
static inline void clear_function(const char *name) {
    for (uint32_t i = 0; i < S->nfuncs; i++) {
        if (strcmp(func_name(i), name)) continue;
        S->funcs[i].inspect = PSK_INSPECT_CLEARED;
        S->funcs[i].launches = 64;
    }
}

static inline void arrive(uint32_t ticket) { __atomic_store_n(S->arrived, ticket, __ATOMIC_RELEASE); }
static inline void set_arriving(uint32_t slot, uint32_t ticket) {
    __atomic_store_n(&S->slot_ticket[slot], ticket, __ATOMIC_SEQ_CST);
    set_state(slot, PSK_SLOT_ARRIVING);
}
static inline void grant(uint64_t seq) { __atomic_store_n(&S->granted, seq, __ATOMIC_RELEASE); }
static inline void refuse(CUresult code) { __atomic_store_n(&S->refuse, (uint32_t)code, __ATOMIC_RELEASE); }

/* A stream held until release: what comes after it is queued and not run. */
static inline void hold(CUstream s, uint32_t *word) {
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
    OK(CALL(cuStreamWaitValue32_v2, s, U64(word), 1, 0));
}
static inline void release(uint32_t *word) { __atomic_store_n(word, 1, __ATOMIC_RELEASE); }
#endif
