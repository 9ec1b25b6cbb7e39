/*
 * Parameter layouts of kernels, cached by handle.
 *
 * Read without a lock: an open-addressing table whose rows are only added. A
 * layout is asked for once per handle. Handles may be reused after a module, a
 * library or a context goes away, so that starts a new generation: a layout of
 * an older one is asked for again, and keeps its function id when nothing
 * changed. While an unload runs nothing is trusted or kept.
 */
#define _GNU_SOURCE
#include "func.h"
#include "lists.h"
#include "real.h"
#include "shared.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TABLE (PSK_MAX_FUNCS * 2) /* power of two */
static struct {
    _Atomic uint64_t handle;
    psk_layout *_Atomic layout;
} table[TABLE];
static unsigned rows_used;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint generation = 1;
static atomic_int unloads; /* in progress */

typedef CUresult (*param_info_fn)(const void *, size_t, size_t *, size_t *);
typedef CUresult (*name_fn)(const char **, const void *);

static param_info_fn func_params, kernel_params;
static name_fn func_name, kernel_name;

static void find_queries(void) {
    static atomic_int found;
    if (atomic_load(&found)) return;
    func_params = (param_info_fn)psk_driver_symbol("cuFuncGetParamInfo");
    kernel_params = (param_info_fn)psk_driver_symbol("cuKernelGetParamInfo");
    func_name = (name_fn)psk_driver_symbol("cuFuncGetName");
    kernel_name = (name_fn)psk_driver_symbol("cuKernelGetName");
    atomic_store(&found, 1);
}

/* Asks the driver. The name belongs to the driver. NULL when out of memory. */
static psk_layout *query(CUfunction f, const char **name) {
    find_queries();
    *name = NULL;
    /* A CUkernel may stand where a CUfunction is expected; the driver then says it is no function. */
    bool kernel = func_name && func_name(name, f) == CUDA_ERROR_INVALID_HANDLE;
    param_info_fn params = func_params;
    size_t offset, size;
    CUresult r = params ? params(f, 0, &offset, &size) : CUDA_ERROR_NOT_FOUND;
    if (r == CUDA_ERROR_INVALID_HANDLE) kernel = true;
    if (kernel) {
        params = kernel_params;
        r = params ? params(f, 0, &offset, &size) : CUDA_ERROR_NOT_FOUND;
        if (!kernel_name || kernel_name(name, f) != CUDA_SUCCESS) *name = NULL;
    }
    size_t cap = 16;
    psk_layout *l = malloc(sizeof *l + cap * sizeof(psk_param));
    if (!l) return NULL;
    memset(l, 0, sizeof *l);
    size_t i = 0;
    /* The count calls came later than these: go on until the index is out of range. */
    for (; r == CUDA_SUCCESS && i <= UINT16_MAX; r = params(f, ++i, &offset, &size)) {
        size_t first = (8 - offset % 8) % 8;
        if (size < first + 8) continue;
        if (l->nscan == cap) {
            cap *= 2;
            psk_layout *more = realloc(l, sizeof *l + cap * sizeof(psk_param));
            if (!more) {
                free(l);
                return NULL;
            }
            l = more;
        }
        l->scan[l->nscan++] = (psk_param){.index = (uint16_t)i, .first = (uint16_t)first, .words = (uint32_t)((size - first) / 8)};
    }
    l->nparams = (uint32_t)i;
    if (r != CUDA_ERROR_INVALID_VALUE) {
        l->opaque = 1;
        l->nscan = 0;
    }
    return l;
}

bool psk_func_param(CUfunction f, uint32_t index, size_t *offset, size_t *size) {
    find_queries();
    CUresult r = func_params ? func_params(f, index, offset, size) : CUDA_ERROR_NOT_FOUND;
    if (r == CUDA_ERROR_INVALID_HANDLE && kernel_params) r = kernel_params(f, index, offset, size);
    return r == CUDA_SUCCESS;
}

static bool same(const psk_layout *a, const char *a_name, const psk_layout *b, const char *b_name) {
    return a->nparams == b->nparams && a->opaque == b->opaque && a->nscan == b->nscan && !strcmp(a_name, b_name) &&
           !memcmp(a->scan, b->scan, a->nscan * sizeof(psk_param));
}

/* A row of the function table; the last one is shared once it is full. Under mu. */
static uint32_t new_id(CUfunction f, const char *name, const psk_layout *l) {
    uint32_t n = psk_S.nfuncs;
    if (n == PSK_MAX_FUNCS) return n - 1;
    char *copy = strdup(name);
    psk_S.funcs[n] = (psk_func){.name = copy ? copy : "", .handle = (uint64_t)(uintptr_t)f, .nparams = l->nparams, .opaque = l->opaque};
    __atomic_store_n(&psk_S.nfuncs, n + 1, __ATOMIC_RELEASE);
    return n;
}

/* Another function may have the name and the layout of the one that went away under this handle. */
static void forget_clearance(uint32_t id) {
    uint32_t cleared = PSK_INSPECT_CLEARED;
    __atomic_compare_exchange_n(&psk_S.funcs[id].inspect, &cleared, PSK_INSPECT_NEW, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    uint32_t follows = PSK_INSPECT_FOLLOWS;
    __atomic_compare_exchange_n(&psk_S.funcs[id].inspect, &follows, PSK_INSPECT_ALWAYS, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    __atomic_store_n(&psk_S.funcs[id].launches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&psk_S.funcs[id].inspected, 0, __ATOMIC_RELAXED);
}

static unsigned hash(uint64_t h) { return (unsigned)((h * 0x9e3779b97f4a7c15u) >> 40) & (TABLE - 1); }

static psk_layout *fill(CUfunction f) {
    uint64_t handle = (uint64_t)(uintptr_t)f;
    unsigned gen = atomic_load(&generation);
    const char *name;
    psk_layout *l = query(f, &name); /* not under the lock: these are driver calls */
    if (!l) return NULL;
    if (!name) name = "";
    psk_list_recognise(l, name);
    atomic_init(&l->generation, gen);
    pthread_mutex_lock(&mu);
    unsigned i = hash(handle);
    while (atomic_load(&table[i].handle) != 0 && atomic_load(&table[i].handle) != handle) i = (i + 1) & (TABLE - 1);
    bool have = atomic_load(&table[i].handle) == handle;
    psk_layout *old = have ? atomic_load(&table[i].layout) : NULL;
    if (old && same(old, psk_S.funcs[old->id].name, l, name)) {
        l->id = old->id;
        if (atomic_load(&unloads) == 0) {
            atomic_store(&old->generation, gen);
            forget_clearance(old->id);
            free(l);
            l = old;
        }
    } else {
        l->id = new_id(f, name, l);
        bool room = have || rows_used < TABLE * 3 / 4;
        if (room) {
            /* The layout it replaces may be in use and is never freed: few functions change under a handle. */
            rows_used += !have;
            l->cached = 1;
            atomic_store_explicit(&table[i].layout, l, memory_order_release);
            atomic_store_explicit(&table[i].handle, handle, memory_order_release);
        }
    }
    pthread_mutex_unlock(&mu);
    return l;
}

psk_layout *psk_func_layout(CUfunction f) {
    if (PSK_UNLIKELY(!f)) return NULL; /* the mark of an empty row */
    uint64_t handle = (uint64_t)(uintptr_t)f;
    if (PSK_LIKELY(atomic_load_explicit(&unloads, memory_order_relaxed) == 0)) {
        unsigned gen = atomic_load_explicit(&generation, memory_order_acquire);
        for (unsigned i = hash(handle);; i = (i + 1) & (TABLE - 1)) {
            uint64_t h = atomic_load_explicit(&table[i].handle, memory_order_acquire);
            if (h == handle) {
                psk_layout *l = atomic_load_explicit(&table[i].layout, memory_order_acquire);
                if (PSK_LIKELY(atomic_load_explicit(&l->generation, memory_order_relaxed) == gen)) return l;
                break;
            }
            if (h == 0) break;
        }
    }
    return fill(f);
}

void psk_func_unload_begins(void) {
    PSK_COUNT(psk_S.unloads);
    atomic_fetch_add(&unloads, 1);
}

void psk_func_unload_ended(void) {
    atomic_fetch_add(&generation, 1);
    atomic_fetch_sub(&unloads, 1);
}

void psk_func_release(psk_layout *l) {
    if (l && PSK_UNLIKELY(!l->cached)) free(l);
}
