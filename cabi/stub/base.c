/* Initialisation, counters, fault injection, the driver's own lock. */
#define _GNU_SOURCE
#include "base.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

atomic_uint_fast64_t stub_counters[N_COUNTS];
uint64_t stub_env_bytes(const char *name, uint64_t otherwise) {
    const char *v = getenv(name);
    return v && *v ? strtoull(v, NULL, 0) : otherwise;
}

/* ---- what fails: name[:n[+]],... ---- */

static pthread_mutex_t fail_mu = PTHREAD_MUTEX_INITIALIZER;
static char *fail_spec; /* replaces STUB_FAIL */
static struct {
    char name[40];
    unsigned long calls;
} fail_seen[32];
enum { FAIL_NAMES = sizeof fail_seen / sizeof fail_seen[0] };

void stub_fail(const char *spec) {
    pthread_mutex_lock(&fail_mu);
    free(fail_spec);
    fail_spec = strdup(spec);
    memset(fail_seen, 0, sizeof fail_seen);
    pthread_mutex_unlock(&fail_mu);
}

/* Counts this call of a name that the specification has, and says whether it fails. Under fail_mu. */
static bool fails_now(const char *name, const char *rule) {
    size_t i = 0;
    while (i < FAIL_NAMES - 1 && fail_seen[i].name[0] && strcmp(fail_seen[i].name, name)) i++;
    snprintf(fail_seen[i].name, sizeof fail_seen[i].name, "%s", name);
    unsigned long call = ++fail_seen[i].calls;
    char *end;
    unsigned long n = strtoul(rule, &end, 10);
    return *end == '+' ? call >= n : call == n;
}

bool stub_should_fail(const char *name) {
    size_t len = strlen(name);
    bool fail = false;
    pthread_mutex_lock(&fail_mu);
    const char *spec = fail_spec ? fail_spec : getenv("STUB_FAIL");
    for (const char *p = spec; p && !fail; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        if (strncmp(p, name, len) || (p[len] && p[len] != ':' && p[len] != ',')) continue;
        fail = p[len] != ':' || fails_now(name, p + len + 1);
        break;
    }
    pthread_mutex_unlock(&fail_mu);
    return fail;
}

/* ---- the driver's own lock ---- */

static pthread_mutex_t api_mu;
static bool api_locks;
static pthread_once_t api_once = PTHREAD_ONCE_INIT;

static void api_init(void) {
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&api_mu, &attr);
    pthread_mutexattr_destroy(&attr);
    api_locks = stub_env_bytes("STUB_API_LOCK", 0) != 0;
}

void stub_api_lock(void) {
    pthread_once(&api_once, api_init);
    if (api_locks) pthread_mutex_lock(&api_mu);
}

void stub_api_unlock(void) {
    if (api_locks) pthread_mutex_unlock(&api_mu);
}

/* ---- initialisation ---- */

static pid_t owner; /* 0 before cuInit */

CUresult stub_ready(void) { return owner == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUresult cuInit(unsigned flags) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!owner) owner = getpid();
    return stub_ready(); /* a forked child of an initialised process cannot use it */
}
