/*
 * The exported functions. They are C so that a forked child, in which Go is
 * dead, takes a path that never enters Go: allocation fails, the rest does
 * nothing. Everything else is the engine's.
 */
#include "penstock.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../pool/front/front.h"
#include "_cgo_export.h"
#include "alloc_log.h"
#include "exports.h"
#include "python_site.h"

#define PUBLIC __attribute__((visibility("default")))

static volatile int in_child;

static volatile int listener = -1;

void exports_listener(int fd) { listener = fd; }

static void after_fork_in_child(void)
{
    in_child = 1;
    if (listener >= 0)
        close(listener); /* or who asks the parent when it has gone would wait for the child */
}

/* From the moment of loading: that is when the threads of Go start, which no child has. */
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

/* Whether the engine may be entered. */
static int alive(void) { return !in_child; }

/* What every allocation and free looks at, in one line of the cache. */
static struct {
    struct front *pool, *tensors; /* serve what they can before Go is entered; NULL until the engine has started */
    struct alloc_log log;         /* of calls, for a recording */
} near __attribute__((aligned(64)));
_Static_assert(sizeof near == 64, "a line");

void exports_use_fronts(void *pool, void *tensors)
{
    __atomic_store_n(&near.pool, (struct front *)pool, __ATOMIC_RELEASE);
    __atomic_store_n(&near.tensors, (struct front *)tensors, __ATOMIC_RELEASE);
}

static struct front *front_for(int64_t bytes)
{
    struct front *t = __atomic_load_n(&near.tensors, __ATOMIC_ACQUIRE);
    return t && bytes >= t->least ? t : __atomic_load_n(&near.pool, __ATOMIC_ACQUIRE);
}

static struct front *front_of(void *p)
{
    struct front *t = __atomic_load_n(&near.tensors, __ATOMIC_ACQUIRE);
    return t && (uintptr_t)p >= t->base && (uintptr_t)p < t->end ? t : __atomic_load_n(&near.pool, __ATOMIC_ACQUIRE);
}

struct alloc_log *exports_alloc_log(void) { return &near.log; }

void exports_use_alloc_log(void *units) { __atomic_store_n(&near.log.units, (struct alloc_unit *)units, __ATOMIC_RELEASE); }

static inline void note_call(void *p, ssize_t bytes, void *stream)
{
    struct alloc_unit *units = __atomic_load_n(&near.log.units, __ATOMIC_ACQUIRE);
    if (__builtin_expect(units != NULL, 0))
        alloc_log_note(&near.log, units, (uintptr_t)p, (uint64_t)bytes, (uintptr_t)stream);
}

/* PENSTOCK_STACKS, read once: at the first allocation, as the engine does. */
static int stacks_wanted(void)
{
    static volatile int known; /* 1 no, 2 yes; racing threads find the same */
    if (!known) {
        const char *v = getenv("PENSTOCK_STACKS");
        known = v && *v && !strchr("0nNfF", *v) && strcmp(v, "off") ? 2 : 1;
    }
    return known == 2;
}

PUBLIC int penstock_abi_version(void) { return PENSTOCK_ABI_VERSION; }

PUBLIC int penstock_init(int device) { return alive() ? engineInit(device) : -ECHILD; }

static void *allocate(ssize_t size, int device, void *stream)
{
    struct front *f = front_for(size);
    uint32_t epoch = 0;
    uint64_t p = f ? front_take(f, size, device, (uintptr_t)stream, &epoch) : 0;
    if (p)
        return (void *)(uintptr_t)p;
    if (stacks_wanted())
        penstock_python_note_site();
    p = engineMalloc(size, device, (uintptr_t)stream);
    if (f && p)
        front_add(f, p, size, (uintptr_t)stream, epoch);
    return (void *)(uintptr_t)p;
}

PUBLIC void *penstock_malloc(ssize_t size, int device, void *stream)
{
    if (size <= 0 || !alive())
        return NULL;
    void *p = allocate(size, device, stream);
    if (p)
        note_call(p, size, stream);
    return p;
}

PUBLIC void penstock_free(void *ptr, ssize_t size, int device, void *stream)
{
    (void)size, (void)device, (void)stream;
    if (!ptr || !alive())
        return;
    note_call(ptr, 0, NULL);
    struct front *f = front_of(ptr);
    switch (f ? front_hold(f, (uintptr_t)ptr) : FRONT_PASS) {
    case FRONT_PASS:
        engineFree((uintptr_t)ptr);
        break;
    case FRONT_NOT_LIVE:
        engineNotLive((uintptr_t)ptr);
        break;
    case FRONT_HELD:
        break;
    }
}

PUBLIC void penstock_record_stream(void *ptr, void *stream)
{
    if (!ptr || !alive())
        return;
    struct front *f = front_of(ptr);
    if (!f || front_forget(f, (uintptr_t)ptr))
        engineRecordStream((uintptr_t)ptr, (uintptr_t)stream);
}

PUBLIC void penstock_empty_cache(void)
{
    if (alive())
        engineEmptyCache();
}

PUBLIC void penstock_reset(void)
{
    if (alive())
        engineReset();
}

PUBLIC int penstock_set_memory_fraction(double fraction, int device)
{
    return alive() ? engineSetFraction(fraction, device) : -ECHILD;
}

PUBLIC void penstock_reset_peak_stats(void)
{
    if (alive())
        engineResetPeaks();
}

PUBLIC int penstock_record(int on) { return alive() ? engineRecord(on) : -ECHILD; }

PUBLIC long penstock_stats(char *json, size_t capacity)
{
    return alive() ? engineStats(json, capacity) : -ECHILD;
}

PUBLIC long penstock_snapshot(char *json, size_t capacity)
{
    return alive() ? engineSnapshot(json, capacity) : -ECHILD;
}

PUBLIC size_t penstock_size_of(void *ptr) { return alive() ? engineSizeOf((uintptr_t)ptr) : 0; }

PUBLIC long penstock_last_error(char *text, size_t capacity)
{
    return alive() ? engineLastError(text, capacity) : -ECHILD;
}

PUBLIC long penstock_self_test(char *json, size_t capacity)
{
    return alive() ? engineSelfTest(json, capacity) : -ECHILD;
}

PUBLIC void penstock_close(void)
{
    if (alive())
        engineClose();
}

/* CUDA graph pools of frameworks: memory that stays with its graph. */

PUBLIC int penstock_begin_pool(int device, unsigned long long id_hi, unsigned long long id_lo)
{
    return alive() ? engineBeginPool(device, id_hi, id_lo) : -ECHILD;
}

PUBLIC int penstock_end_pool(int device, unsigned long long id_hi, unsigned long long id_lo)
{
    return alive() ? engineEndPool(device, id_hi, id_lo) : -ECHILD;
}

PUBLIC int penstock_release_pool(int device, unsigned long long id_hi, unsigned long long id_lo)
{
    return alive() ? engineReleasePool(device, id_hi, id_lo) : -ECHILD;
}

PUBLIC int penstock_retain_pool(int device, unsigned long long id_hi, unsigned long long id_lo)
{
    return alive() ? engineRetainPool(device, id_hi, id_lo) : -ECHILD;
}

PUBLIC int penstock_pool_users(int device, unsigned long long id_hi, unsigned long long id_lo)
{
    return alive() ? enginePoolUsers(device, id_hi, id_lo) : -ECHILD;
}

PUBLIC void *penstock_malloc_in_pool(ssize_t size, int device, void *stream, unsigned long long id_hi, unsigned long long id_lo)
{
    if (size <= 0 || !alive())
        return NULL;
    void *p = (void *)(uintptr_t)engineMallocInPool(size, device, (uintptr_t)stream, id_hi, id_lo);
    if (p)
        note_call(p, size, stream);
    return p;
}

PUBLIC long penstock_pool_blocks(int device, unsigned long long id_hi, unsigned long long id_lo, struct penstock_block *blocks, size_t capacity)
{
    return alive() ? enginePoolBlocks(device, id_hi, id_lo, blocks, capacity) : -ECHILD;
}

PUBLIC int penstock_restore_in_pool(void *ptr, ssize_t size, int device, unsigned long long id_hi, unsigned long long id_lo)
{
    if (!alive())
        return -ECHILD;
    int rc = engineRestoreInPool((uintptr_t)ptr, size, device, id_hi, id_lo);
    if (!rc)
        note_call(ptr, size, NULL);
    return rc;
}

/* Observing a program that knows nothing of Penstock; called by the hook. */

static void close_observer(void)
{
    if (alive())
        observeClose();
}

PUBLIC void penstock_observe_alloc(unsigned long long ptr, size_t bytes)
{
    if (!alive())
        return;
    if (observeAlloc(ptr, bytes) == 1) /* the first: later handlers of the program come before ours, the driver's after */
        atexit(close_observer);
}

PUBLIC void penstock_observe_free(unsigned long long ptr)
{
    if (alive())
        observeFree(ptr);
}
