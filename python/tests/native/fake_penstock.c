/*
 * An engine for tests: implements cabi/penstock.h over malloc, with the two
 * budgets counted together. What it is told to do comes from FAKE_* variables:
 *   FAKE_LOG         a file to which every call that a test wants to see is appended
 *   FAKE_INIT_ERROR  penstock_init fails with this text
 * Budgets are plain byte counts in PENSTOCK_BUDGET and PENSTOCK_HOST_BUDGET.
 *   FAKE_WORDY       out of memory names the budgets
 *   FAKE_POOL_ERROR  penstock_begin_pool fails with this text
 *   FAKE_MASKS       signal masks are logged
 * What has 7777 bytes is in the private pool (7, 0).
 * With -DINCOMPLETE it lacks a function; with -DOTHER_ABI it is of another version.
 */
#include "penstock.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CAP 65536
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { void *p; size_t n; } live[CAP];
static long long allocated, peak, allocations, frees, ooms;
static char error_text[512];
static double fraction = 1.0;

static void logf_(const char *fmt, ...) {
    const char *path = getenv("FAKE_LOG");
    if (!path) return;
    FILE *f = fopen(path, "a");
    if (!f) return;
    va_list ap;
    va_start(ap, fmt);
    fprintf(f, "%d ", (int)getpid());
    vfprintf(f, fmt, ap);
    fputc('\n', f);
    va_end(ap);
    fclose(f);
}

static long long env_bytes(const char *name, long long otherwise) {
    const char *v = getenv(name);
    return v && *v ? atoll(v) : otherwise;
}
static long long budget(void) { return (long long)(env_bytes("PENSTOCK_BUDGET", 1LL << 30) * fraction); }
static long long host_budget(void) { return env_bytes("PENSTOCK_HOST_BUDGET", 1LL << 30); }

/* What the threads of a Go runtime would have, and what the caller has again afterwards. */
static void mask(const char *when) {
    if (!getenv("FAKE_MASKS")) return;
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    logf_("%s: interrupt %d, user %d, urgent %d, segv %d", when, sigismember(&now, SIGINT), sigismember(&now, SIGUSR1), sigismember(&now, SIGURG), sigismember(&now, SIGSEGV));
}
__attribute__((constructor)) static void loaded(void) { mask("loaded"); }

int penstock_abi_version(void) {
#ifdef OTHER_ABI
    return PENSTOCK_ABI_VERSION + 1;
#else
    return PENSTOCK_ABI_VERSION;
#endif
}

int penstock_init(int device) {
    const char *why = getenv("FAKE_INIT_ERROR");
    mask("starts");
    logf_("init %d", device);
    if (why) {
        snprintf(error_text, sizeof error_text, "%s", why);
        return -ENODEV;
    }
    return 0;
}

void *penstock_malloc(ssize_t size, int device, void *stream) {
    void *p = NULL;
    (void)stream;
    if (size <= 0) return NULL;
    pthread_mutex_lock(&lock);
    if (allocated + size <= budget() + host_budget()) p = malloc((size_t)size);
    if (p) {
        for (int i = 0; i < CAP; i++)
            if (!live[i].p) {
                live[i].p = p;
                live[i].n = (size_t)size;
                break;
            }
        allocated += size;
        allocations++;
        if (allocated > peak) peak = allocated;
    } else {
        ooms++;
        if (getenv("FAKE_WORDY"))
            snprintf(error_text, sizeof error_text, "budgets of %lld and %lld bytes are spent: raise --budget or --host-budget", budget(), host_budget());
        else
            snprintf(error_text, sizeof error_text, "both budgets are spent");
    }
    pthread_mutex_unlock(&lock);
    logf_("malloc %zd %d", size, device);
    return p;
}

/* What was allocated in a pool: one for all names, whose memory stays. */
#define POOLED 64
static struct {
    struct penstock_block block;
    int live;
} in_pool[POOLED];
static int users;

static void *pooled(void *p, size_t size) {
    for (int i = 0; p && i < POOLED; i++)
        if (!in_pool[i].block.ptr) {
            in_pool[i].block.ptr = p, in_pool[i].block.size = size, in_pool[i].live = 1;
            break;
        }
    return p;
}

void penstock_free(void *ptr, ssize_t size, int device, void *stream) {
    (void)size, (void)stream;
    for (int i = 0; i < POOLED; i++)
        if (in_pool[i].live && in_pool[i].block.ptr == ptr) {
            in_pool[i].live = 0;
            logf_("free %d", device);
            return;
        }
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CAP; i++)
        if (live[i].p == ptr) {
            allocated -= (long long)live[i].n;
            live[i].p = NULL;
            frees++;
            free(ptr);
            break;
        }
    pthread_mutex_unlock(&lock);
    logf_("free %d", device);
}

void penstock_record_stream(void *ptr, void *stream) { logf_("record_stream %d %d", ptr != NULL, stream != NULL); }
void penstock_empty_cache(void) { logf_("empty_cache"); }
void penstock_reset(void) { logf_("reset"); }
void penstock_reset_peak_stats(void) { peak = allocated; }

int penstock_set_memory_fraction(double f, int device) {
    logf_("fraction %g %d", f, device);
    if (f > 1 || f <= 0) {
        snprintf(error_text, sizeof error_text, "a memory fraction is above 0 and at most 1, not %g", f);
        return -EINVAL;
    }
    fraction = f;
    return 0;
}

long penstock_stats(char *json, size_t capacity) {
    return snprintf(json, capacity,
                    "{\"allocated_bytes\":%lld,\"allocated_peak_bytes\":%lld,\"reserved_bytes\":%lld,\"reserved_peak_bytes\":%lld,"
                    "\"resident_bytes\":%lld,\"resident_peak_bytes\":%lld,\"budget_bytes\":%lld,\"host_budget_bytes\":%lld,"
                    "\"device_total_bytes\":%lld,\"device_free_bytes\":%lld,\"allocations\":%lld,\"allocations_live\":%lld,"
                    "\"frees\":%lld,\"retries\":3,\"ooms\":%lld,\"h2d_bytes\":11,\"d2h_bytes\":12,\"faults\":-1,"
                    "\"stall_seconds\":0.25,\"launches\":7,\"prediction_hit_rate\":-1,\"engine\":\"fake\",\"policy\":\"none\"}",
                    allocated, peak, allocated + 4096, peak + 4096, allocated, peak, budget(), host_budget(), 1LL << 33,
                    budget() > allocated ? budget() - allocated : 0, allocations, allocations - frees, frees, ooms);
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
    return (x > y) - (x < y);
}

/* Each allocation is a segment. */
long penstock_snapshot(char *json, size_t capacity) {
    static struct { void *p; size_t n; } all[CAP];
    size_t count = 0, used = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CAP; i++)
        if (live[i].p) all[count].p = live[i].p, all[count++].n = live[i].n;
    qsort(all, count, sizeof *all, by_address);
    used += (size_t)snprintf(json, capacity, "{\"segments\":[");
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(used < capacity ? json + used : NULL, used < capacity ? capacity - used : 0,
                                 "%s{\"address\":%zu,\"total_size\":%zu,\"stream\":0,\"small\":%s,\"tensor\":true,\"pool\":[%d,0],\"on_device_bytes\":%zu,"
                                 "\"blocks\":[{\"address\":%zu,\"size\":%zu,\"requested_size\":%zu,\"state\":\"active_allocated\"}]}",
                                 i ? "," : "", (size_t)all[i].p, all[i].n, all[i].n <= 1 << 20 ? "true" : "false", all[i].n == 7777 ? 7 : 0, all[i].n / 2,
                                 (size_t)all[i].p, all[i].n, all[i].n);
    pthread_mutex_unlock(&lock);
    used += (size_t)snprintf(used < capacity ? json + used : NULL, used < capacity ? capacity - used : 0, "]}");
    return (long)used;
}

long penstock_last_error(char *text, size_t capacity) { return snprintf(text, capacity, "%s", error_text); }
void penstock_close(void) { logf_("close"); }

static int pool_error(void) {
    if (!getenv("FAKE_POOL_ERROR")) return 0;
    snprintf(error_text, sizeof error_text, "%s", getenv("FAKE_POOL_ERROR"));
    return -ENOMEM;
}
int penstock_retain_pool(int device, unsigned long long hi, unsigned long long lo) {
    logf_("retain_pool %d %llu %llu", device, hi, lo);
    if (!pool_error()) users++;
    return pool_error();
}
int penstock_pool_users(int device, unsigned long long hi, unsigned long long lo) { return (void)device, (void)hi, (void)lo, users; }
void *penstock_malloc_in_pool(ssize_t size, int device, void *stream, unsigned long long hi, unsigned long long lo) {
    logf_("in_pool %llu %llu", hi, lo);
    return pooled(penstock_malloc(size, device, stream), (size_t)size);
}
long penstock_pool_blocks(int device, unsigned long long hi, unsigned long long lo, struct penstock_block *blocks, size_t capacity) {
    (void)device, (void)hi, (void)lo;
    long n = 0;
    for (int i = 0; i < POOLED; i++)
        if (in_pool[i].live && (size_t)n++ < capacity) blocks[n - 1] = in_pool[i].block;
    return n;
}
int penstock_restore_in_pool(void *ptr, ssize_t size, int device, unsigned long long hi, unsigned long long lo) {
    (void)device, (void)hi, (void)lo;
    logf_("restore %zd", size);
    for (int i = 0; i < POOLED; i++)
        if (in_pool[i].block.ptr == ptr && !in_pool[i].live) return in_pool[i].live = 1, 0;
    snprintf(error_text, sizeof error_text, "something else is allocated there");
    return -EINVAL;
}
size_t penstock_size_of(void *ptr) {
    size_t n = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < CAP; i++)
        if (live[i].p == ptr) n = live[i].n;
    pthread_mutex_unlock(&lock);
    return n;
}

#ifndef INCOMPLETE
int penstock_release_pool(int device, unsigned long long hi, unsigned long long lo) {
    users--;
    logf_("release_pool %d %llu %llu", device, hi, lo);
    return 0;
}
#endif
