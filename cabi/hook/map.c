/*
 * Real entry points and the map from a real pointer to its wrapper.
 *
 * What a resolver returns is matched by pointer, not by name: an alias, a newer
 * version or a per-thread variant resolves to whatever the driver meant, and
 * only a pointer known to have a wrapper's very signature is replaced by it.
 *
 * Nothing here holds a lock across a loader call: two threads may build the map
 * at the same time, find the same values, and one copy is thrown away.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PSK_SYM(name, base, since, ptsz) extern char psk_w_##name[], psk_elf_##name[];
#include "symbols.def"
#undef PSK_SYM

const psk_row psk_rows[PSK_ROWS] = {
#define PSK_SYM(name, base, since, ptsz) {#name, #base, since, ptsz, psk_w_##name, psk_elf_##name},
#include "symbols.def"
#undef PSK_SYM
};

static const char *const known[] = {
#define PSK_KNOWN(name) #name,
#include "known.def"
#undef PSK_KNOWN
};
#define KNOWN (sizeof known / sizeof known[0])

void *_Atomic psk_real[PSK_ROWS];

#define MAP_SIZE 1024 /* power of two, over twice the rows and known names together with their aliases */
enum { ROW_KNOWN = -2, ROW_NONE = -1 };
typedef struct map {
    void *libcuda;
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

typedef CUresult (*getproc_v1)(const char *, void **, int, uint64_t);
typedef CUresult (*getproc_v2)(const char *, void **, int, uint64_t, int *);

/* NULL until the process itself has loaded the driver: the hook never does. */
static const map *get_map(void) {
    map *m = atomic_load_explicit(&the_map, memory_order_acquire);
    if (PSK_LIKELY(m != NULL)) return m;
    if (!psk_have_dlsym()) return NULL;
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!lib) {
        dlerror(); /* not the caller's failure */
        return NULL;
    }
    m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->libcuda = lib; /* kept open: the pointers below stay valid */
    getproc_v1 v1 = (getproc_v1)psk_real_dlsym(lib, "cuGetProcAddress");
    getproc_v2 v2 = (getproc_v2)psk_real_dlsym(lib, "cuGetProcAddress_v2");
    for (int r = 0; r < PSK_ROWS; r++) {
        const psk_row *row = &psk_rows[r];
        void *byname = psk_real_dlsym(lib, row->name), *byproc = NULL;
        /* Also what cuGetProcAddress calls this function, should it hand out another address for it. */
        uint64_t flags = row->ptsz ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
        int status = CU_GET_PROC_ADDRESS_SUCCESS;
        CUresult rc = v2   ? v2(row->base, &byproc, row->since, flags, &status)
                      : v1 ? v1(row->base, &byproc, row->since, flags)
                           : CUDA_ERROR_NOT_FOUND;
        if (rc != CUDA_SUCCESS || status != CU_GET_PROC_ADDRESS_SUCCESS) byproc = NULL;
        if (byname || byproc) atomic_store_explicit(&psk_real[r], byname ? byname : byproc, memory_order_release);
        put(m, byname, r);
        put(m, byproc, r);
    }
    for (size_t i = 0; i < KNOWN; i++) put(m, psk_real_dlsym(lib, known[i]), ROW_KNOWN);
    dlerror(); /* what the driver lacks is not the caller's failure either */
    map *none = NULL;
    if (!atomic_compare_exchange_strong(&the_map, &none, m)) {
        free(m);
        dlclose(lib);
        m = none;
    }
    return m;
}

static CUresult missing(void) { return CUDA_ERROR_NOT_FOUND; }

void *psk_real_slow(int row) {
    get_map();
    void *p = atomic_load_explicit(&psk_real[row], memory_order_acquire);
    return p ? p : (void *)missing; /* the caller cleans the stack: any signature may call it */
}

int psk_row_by_name(const char *name) {
    for (int r = 0; r < PSK_ROWS; r++)
        if (!strcmp(psk_rows[r].name, name)) return r;
    return ROW_NONE;
}

void *psk_driver_symbol(const char *name) {
    int row = psk_row_by_name(name);
    const map *m = get_map();
    if (!m) return NULL;
    return row >= 0 ? atomic_load_explicit(&psk_real[row], memory_order_acquire) : psk_real_dlsym(m->libcuda, name);
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

PSK_EXPORT const char *penstock_hook_unhooked_names(void) { return names; }

void *psk_substitute(void *real, const char *name, int route) {
    const map *m = get_map();
    if (!m) return real;
    int row = get(m, real);
    if (row >= 0) {
        if (route == PSK_ROUTE_DLSYM) PSK_COUNT(psk_S.route_dlsym);
        if (route == PSK_ROUTE_GETPROC) PSK_COUNT(psk_S.route_getproc);
        if (route == PSK_ROUTE_RUNTIME) PSK_COUNT(psk_S.route_runtime);
        return psk_rows[row].wrapper;
    }
    if (row == ROW_NONE) {
        /* One of ours already: cudart asked our cuGetProcAddress. */
        for (int r = 0; r < PSK_ROWS; r++) {
            if (real == psk_rows[r].wrapper) {
                if (route == PSK_ROUTE_RUNTIME) PSK_COUNT(psk_S.route_runtime);
                return real;
            }
        }
        note_unhooked(name);
    }
    return real;
}
