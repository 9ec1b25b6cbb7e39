/*
 * A small engine for the tests: attaches to the preloaded hook, marks
 * allocations, reads the ring, opens gates. And shorthands for the driver's
 * calls, found once through dlsym as most programs do.
 */
#ifndef HOOKTEST_ENGINE_H
#define HOOKTEST_ENGINE_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../hook/cuda_abi.h"
#include "../../hook/penstock_hook.h"
#include "../../stub/stub.h"

/* Expressions, so that they can be strung together with commas. */
#define CHECK(cond)                                                            \
    ({                                                                         \
        if (!(cond)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond); \
            exit(1);                                                           \
        }                                                                      \
    })
#define CHECK_EQ(got, want)                                                                                        \
    ({                                                                                                             \
        long long got_ = (long long)(got), want_ = (long long)(want);                                              \
        if (got_ != want_) {                                                                                       \
            fprintf(stderr, "%s:%d: %s is %lld, want %s = %lld\n", __FILE__, __LINE__, #got, got_, #want, want_);  \
            exit(1);                                                                                               \
        }                                                                                                          \
    })
#define OK(call) CHECK_EQ(call, CUDA_SUCCESS)

/* ---- the driver ---- */

static void *libcuda;
static CUcontext context; /* of start */

/* Gives the thread the context. driver does so, too: only who calls functions that were found before needs it. */
static inline void enter(void) {
    static __thread bool entered;
    if (entered || !context) return;
    entered = true;
    ((CUresult(*)(CUcontext))dlsym(libcuda, "cuCtxSetCurrent"))(context);
}

/* A function of the driver as dlsym gives it; exits when it is missing. */
static inline void *driver(const char *name) {
    if (!libcuda) libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *p = libcuda ? dlsym(libcuda, name) : NULL;
    if (!p) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        exit(1);
    }
    enter();
    return p;
}

/* Calls a driver function by name: CALL(cuMemFree_v2, p). Arguments of 8 bytes or int. */
#define CALL(name, ...) (((CUresult(*)())driver(#name))(__VA_ARGS__))

#define U64(x) ((uint64_t)(x))

static inline void start(void) {
    CUdevice dev;
    OK(CALL(cuInit, 0));
    OK(CALL(cuDeviceGet, &dev, 0));
    OK(CALL(cuDevicePrimaryCtxRetain, &context, dev));
    OK(CALL(cuCtxSetCurrent, context));
}

static inline CUfunction function(const char *name) {
    static CUmodule module;
    CUfunction f;
    if (!module) OK(CALL(cuModuleLoadData, &module, "image"));
    OK(CALL(cuModuleGetFunction, &f, module, name));
    return f;
}

static inline CUdeviceptr managed(size_t bytes) {
    CUdeviceptr p;
    OK(CALL(cuMemAllocManaged, &p, U64(bytes), 1));
    memset((void *)p, 0, bytes);
    return p;
}

static inline CUstream new_stream(void) {
    CUstream s;
    OK(CALL(cuStreamCreate, &s, 1));
    return s;
}

#define SYNC(s) OK(CALL(cuStreamSynchronize, s))

typedef CUresult (*launch_fn)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

/* touch_add through cuLaunchKernel. */
static inline CUresult touch_add_by(launch_fn launch, CUstream s, CUdeviceptr p, uint64_t n, uint32_t inc) {
    static CUfunction f;
    if (!f) f = function("touch_add");
    void *params[] = {&p, &n, &inc};
    return launch(f, 1, 1, 1, 32, 1, 1, 0, s, params, NULL);
}
static inline CUresult touch_add(CUstream s, CUdeviceptr p, uint64_t n, uint32_t inc) { return touch_add_by((launch_fn)driver("cuLaunchKernel"), s, p, n, inc); }

/* ---- the engine ---- */

static psk_shared *S;
static uint32_t *words; /* gate, then progress, then arrived */

/* As if so many operations had been recorded and read. Nothing may be under way. */
static inline void advance(uint64_t operations) {
    CHECK_EQ(S->head, S->tail);
    S->head = S->tail = S->tail_seen = operations;
    for (int i = 0; i < PSK_MAX_STREAMS; i++) __atomic_store_n(&S->gate[i * 16], (uint32_t)operations, __ATOMIC_RELEASE); /* an engine keeps them near */
}


/* HOOKTEST_FIRST says how many operations there were before. */
static inline void attach(uint32_t mode) {
    psk_shared *(*f)(uint32_t) = (psk_shared * (*)(uint32_t)) dlsym(RTLD_DEFAULT, "penstock_hook_attach");
    CHECK(f);
    CHECK((S = f(PSK_HOOK_ABI)));
    CHECK_EQ(S->abi_version, PSK_HOOK_ABI);
    CHECK_EQ(S->size, sizeof *S);
    if (!words) {
        const size_t bytes = (2 * PSK_MAX_STREAMS + 1) * 64;
        OK(CALL(cuMemHostAlloc, &words, U64(bytes), 0));
        memset(words, 0, bytes); /* the driver leaves in it what was there */
        S->gate = words;
        S->progress = words + PSK_MAX_STREAMS * 16;
        S->arrived = words + 2 * PSK_MAX_STREAMS * 16;
    }
    const char *first = getenv("HOOKTEST_FIRST");
    if (first && !S->head) advance(strtoull(first, NULL, 10));
    __atomic_store_n(&S->progress_every, 4, __ATOMIC_SEQ_CST);
    __atomic_store_n(&S->mode, mode, __ATOMIC_SEQ_CST);
}

static inline void set_mode(uint32_t mode) { __atomic_store_n(&S->mode, mode, __ATOMIC_SEQ_CST); }
static inline void set_state(uint32_t slot, uint8_t state) { __atomic_store_n(&S->slot_state[slot], state, __ATOMIC_SEQ_CST); }

static inline void own(uint32_t slot, CUdeviceptr p, size_t bytes, uint8_t state) {
    if (slot < PSK_MAX_SLOTS) set_state(slot, state); /* or PSK_SLOT_PLAIN */
    for (uint64_t b = p >> PSK_BLOCK_SHIFT; b <= (p + bytes - 1) >> PSK_BLOCK_SHIFT; b++) __atomic_store_n(&S->block_slot[b], slot, __ATOMIC_SEQ_CST);
}

static inline void open_gate(unsigned stream, uint64_t seq) { __atomic_store_n(&S->gate[stream * 16], (uint32_t)seq, __ATOMIC_RELEASE); }
static inline uint32_t progress(unsigned stream) { return __atomic_load_n(&S->progress[stream * 16], __ATOMIC_ACQUIRE); }

typedef struct record {
    uint64_t seq, when;
    uint16_t kind, flags, stream;
    uint32_t id, grid, n;
    uint32_t slots[8192];
} record;

/* The next record, false when there is none yet. */
static inline int take(record *r) {
    uint64_t at = S->tail;
    psk_entry *e = &S->ring[at % PSK_RING_ENTRIES];
    if (__atomic_load_n(&e->turn, __ATOMIC_ACQUIRE) != at + 1) return 0;
    CHECK(e->kind != PSK_REC_MORE);
    *r = (record){.seq = at + 1, .when = e->when, .kind = e->kind, .flags = e->flags, .stream = e->stream, .id = e->id, .grid = e->grid};
    uint32_t more = e->more;
    for (uint32_t k = 0;; k++) {
        if (k) {
            CHECK_EQ(__atomic_load_n(&e->turn, __ATOMIC_ACQUIRE), at + k + 1); /* valid because the first is */
            CHECK_EQ(e->kind, PSK_REC_MORE);
        }
        CHECK_EQ(e->more, more - k);
        for (uint32_t i = 0; i < e->nslots; i++) r->slots[r->n++] = e->slots[i];
        if (k == more) break;
        e = &S->ring[(at + k + 1) % PSK_RING_ENTRIES];
    }
    __atomic_store_n(&S->tail, at + more + 1, __ATOMIC_RELEASE);
    return 1;
}

static inline record *must_take(void) {
    static record r;
    CHECK(take(&r));
    return &r;
}

static inline void none_left(void) {
    record *r = malloc(sizeof *r);
    CHECK(!take(r));
    free(r);
}

/* The next record is of a kind and names exactly these slots, in this order. */
#define EXPECT(knd, ...)                                                            \
    ({                                                                              \
        const uint32_t slots_[] = {__VA_ARGS__};                                     \
        record *r_ = must_take();                                                   \
        CHECK_EQ(r_->kind, knd);                                                    \
        CHECK_EQ(r_->n, sizeof slots_ / sizeof slots_[0]);                            \
        for (uint32_t i_ = 0; i_ < r_->n; i_++) CHECK_EQ(r_->slots[i_], slots_[i_]); \
        r_;                                                                         \
    })

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Waits up to ten seconds for a condition that another thread brings about. */
#define EVENTUALLY(cond)                                        \
    do {                                                        \
        double until_ = now() + 10;                             \
        while (!(cond)) {                                       \
            if (now() > until_) CHECK(cond);                    \
            sched_yield();                                      \
        }                                                       \
    } while (0)

static inline const char *func_name(uint32_t id) {
    CHECK(id < S->nfuncs);
    return S->funcs[id].name;
}

#define MiB (1ul << 20)
static inline uint32_t word_at(CUdeviceptr p) { return *(volatile uint32_t *)p; }
#endif
