/*
 * The map from a real entry point to its wrapper, and cuGetProcAddress, which hands wrappers out and has one itself.
 *
 * What a resolver returns is matched by pointer, not by name: an alias, a newer
 * version or a per-thread variant resolves to whatever the driver meant, and
 * only a pointer known to have a wrapper's very signature is replaced by it.
 *
 * Nothing here holds a lock across a loader call: two threads may build the map
 * at the same time, find the same values, and one copy is thrown away.
 */
#define _GNU_SOURCE
#include "map.h"
#include "real.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Of any signature, so under another name than those that are defined here. */
#define PSK_SYM(name, base, since, ptsz) extern char wrapper_##name[] asm("psk_w_" #name);
#include "symbols.def"
#undef PSK_SYM

static void *const wrappers[PSK_ROWS] = {
#define PSK_SYM(name, base, since, ptsz) wrapper_##name,
#include "symbols.def"
#undef PSK_SYM
};

static const char *const known[] = {
#define PSK_KNOWN(name) #name,
#include "known.def"
#undef PSK_KNOWN
};
#define KNOWN (sizeof known / sizeof known[0])

#define MAP_SIZE 1024 /* power of two, over twice the rows and known names together with their aliases */
enum { ROW_KNOWN = -2, ROW_NONE = -1 };
typedef struct map {
    void *key[MAP_SIZE];
    int row[MAP_SIZE];
} map;
static map *_Atomic the_map;

static unsigned hash(const void *p) { return (unsigned)(((uintptr_t)p >> 4) * 0x9e3779b1u) >> 16; }

static void put(map *m, void *p, int row) {
    if (!p) return;
    for (unsigned i = hash(p), n = 0; n < MAP_SIZE / 2; i++, n++) {
        i &= MAP_SIZE - 1;
        if (m->key[i] == p) return; /* an alias: same function, same signature */
        if (!m->key[i]) {
            m->key[i] = p;
            m->row[i] = row;
            return;
        }
    }
}

static int get(const map *m, const void *p) {
    for (unsigned i = hash(p), n = 0; n < MAP_SIZE; i++, n++) {
        i &= MAP_SIZE - 1;
        if (m->key[i] == p) return m->row[i];
        if (!m->key[i]) return ROW_NONE;
    }
    return ROW_NONE;
}

/* NULL until the process itself has loaded the driver. */
static const map *get_map(void) {
    map *m = atomic_load_explicit(&the_map, memory_order_acquire);
    if (PSK_LIKELY(m != NULL)) return m;
    const psk_driver *d = psk_loaded_driver();
    if (!d || !(m = calloc(1, sizeof *m))) return NULL;
    for (int r = 0; r < PSK_ROWS; r++) {
        put(m, d->entry[r].byname, r);
        put(m, d->entry[r].byproc, r);
    }
    for (size_t i = 0; i < KNOWN; i++) put(m, psk_real_dlsym(d->lib, known[i]), ROW_KNOWN);
    dlerror(); /* what the driver lacks is not the caller's failure */
    map *none = NULL;
    if (!atomic_compare_exchange_strong(&the_map, &none, m)) {
        free(m);
        m = none;
    }
    return m;
}

/* ---- the trail of the unhooked ---- */

static char names[16384]; /* newline-separated, appended to: a reader sees a valid string at any time */
static size_t names_len;
static pthread_mutex_t names_mu = PTHREAD_MUTEX_INITIALIZER;

static bool family(const char *name) {
    static const char *const prefixes[] = {"cuLaunch", "cuMemcpy", "cuMemset", "cuMemPrefetch", "cuMemDiscard", "cuMemBatchDecompress", "cuFabricCpy",
                                           "cuGraphLaunch", "cuGraphInstantiate", "cuGraphExec", "cuMemAlloc", "cuMemFree",
                                           "cuStreamBatchMemOp", "cuStreamWaitValue", "cuStreamWriteValue", "cuTexObjectCreate",
                                           "cuMulticastBind", "cuLogicalEndpointBind", "cuMemGetHandleFor", "cuMemRetainAllocationHandle",
                                           "cuCtxCreate", "cuGLCtxCreate"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return true;
    return false;
}

static bool named(const char *name) {
    size_t len = strlen(name);
    for (const char *p = names; (p = strstr(p, name)); p += len)
        if ((p == names || p[-1] == '\n') && (p[len] == '\n' || p[len] == 0)) return true;
    return false;
}

/* Counts a name once. */
static void note_unhooked(const char *name) {
    if (!family(name) || atomic_load(&psk_child)) return;
    bool wrapped_base = false;
    for (int r = 0; r < PSK_ROWS && !wrapped_base; r++) wrapped_base = !strcmp(psk_rows[r].base, name);
    for (size_t i = 0; i < KNOWN && !wrapped_base; i++)
        if (!strcmp(known[i], name)) return;
    /* Try only: a thread that forked meanwhile may have left it locked for its child. */
    if (pthread_mutex_trylock(&names_mu)) {
        PSK_COUNT(psk_S.unhooked);
        return;
    }
    size_t len = strlen(name);
    if (!named(name)) {
        PSK_COUNT(psk_S.unhooked);
        if (names_len + len + 2 <= sizeof names) {
            size_t at = names_len ? names_len + 1 : 0;
            memcpy(names + at, name, len + 1);
            atomic_thread_fence(memory_order_release);
            if (at) names[at - 1] = '\n';
            names_len = at + len;
        }
    }
    pthread_mutex_unlock(&names_mu);
}

const char *psk_unhooked_names(void) { return names; }

void *psk_substitute(void *real, const char *name, int route) {
    const map *m = get_map();
    if (!m) return real;
    int row = get(m, real);
    if (row >= 0) {
        if (route == PSK_ROUTE_DLSYM) PSK_COUNT(psk_S.route_dlsym);
        if (route == PSK_ROUTE_GETPROC) PSK_COUNT(psk_S.route_getproc);
        if (route == PSK_ROUTE_RUNTIME) PSK_COUNT(psk_S.route_runtime);
        return wrappers[row];
    }
    if (row == ROW_NONE) {
        /* One of ours already: cudart asked our cuGetProcAddress. */
        for (int r = 0; r < PSK_ROWS; r++) {
            if (real == wrappers[r]) {
                if (route == PSK_ROUTE_RUNTIME) PSK_COUNT(psk_S.route_runtime);
                return real;
            }
        }
        note_unhooked(name);
    }
    return real;
}

/* ---- cuGetProcAddress ---- */

CUresult psk_w_cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags) {
    CUresult r = PSK_REAL(cuGetProcAddress)(symbol, pfn, version, flags);
    if (r == CUDA_SUCCESS && symbol && pfn && *pfn) *pfn = psk_substitute(*pfn, symbol, PSK_ROUTE_GETPROC);
    return r;
}

/* An unsupported name is CUDA_SUCCESS with a NULL pointer when status is asked for. */
CUresult psk_w_cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
    CUresult r = PSK_REAL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
    if (r == CUDA_SUCCESS && symbol && pfn && *pfn) *pfn = psk_substitute(*pfn, symbol, PSK_ROUTE_GETPROC);
    return r;
}
