/*
 * The real entry points: of the driver, by the rows of symbols.def, and dlsym itself.
 *
 * Nothing here holds a lock across a loader call: two threads may look the driver's up
 * at the same time, find the same, and one copy is thrown away.
 */
#define _GNU_SOURCE
#include "real.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

const psk_row psk_rows[PSK_ROWS] = {
#define PSK_SYM(name, base, since, ptsz) {#name, #base, since, ptsz},
#include "symbols.def"
#undef PSK_SYM
};

/* ---- dlsym ---- */

void *(*psk_real_dlsym)(void *, const char *);

bool psk_have_dlsym(void) {
    if (PSK_LIKELY(__atomic_load_n(&psk_real_dlsym, __ATOMIC_ACQUIRE) != NULL)) return true;
    void *p = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!p) p = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    __atomic_store_n(&psk_real_dlsym, p, __ATOMIC_RELEASE);
    return p != NULL;
}

void *psk_symbol_near(void *addr, const char *name) {
    Dl_info info;
    if (!dladdr(addr, &info) || !info.dli_fname) return NULL;
    void *h = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!h) return NULL;
    void *p = psk_real_dlsym(h, name);
    dlclose(h);
    return p;
}

/* The definition behind this library in the global scope. The question must be
 * asked from here: were it the last call, the compiler could make it a jump and
 * so ask on the caller's behalf. */
void *psk_symbol_behind(const char *name) {
    void *p = psk_real_dlsym(RTLD_NEXT, name);
    asm volatile("" : "+r"(p));
    return p;
}

/* ---- the driver's ---- */

void *_Atomic psk_real[PSK_ROWS];
static psk_driver *_Atomic the_driver;

typedef CUresult (*getproc_v1)(const char *, void **, int, uint64_t);
typedef CUresult (*getproc_v2)(const char *, void **, int, uint64_t, int *);

const psk_driver *psk_loaded_driver(void) {
    psk_driver *d = atomic_load_explicit(&the_driver, memory_order_acquire);
    if (PSK_LIKELY(d != NULL)) return d;
    if (!psk_have_dlsym()) return NULL;
    void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!lib) {
        dlerror(); /* not the caller's failure */
        return NULL;
    }
    d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->lib = lib; /* kept open: the pointers below stay valid */
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
        d->entry[r].byname = byname;
        d->entry[r].byproc = byproc;
    }
    dlerror(); /* what the driver lacks is not the caller's failure either */
    psk_driver *none = NULL;
    if (!atomic_compare_exchange_strong(&the_driver, &none, d)) {
        free(d);
        dlclose(lib);
        d = none;
    }
    return d;
}

static CUresult missing(void) { return CUDA_ERROR_NOT_FOUND; }

void *psk_real_slow(int row) {
    psk_loaded_driver();
    void *p = atomic_load_explicit(&psk_real[row], memory_order_acquire);
    return p ? p : (void *)missing; /* the caller cleans the stack: any signature may call it */
}

int psk_row_by_name(const char *name) {
    for (int r = 0; r < PSK_ROWS; r++)
        if (!strcmp(psk_rows[r].name, name)) return r;
    return -1;
}

void *psk_driver_symbol(const char *name) {
    int row = psk_row_by_name(name);
    const psk_driver *d = psk_loaded_driver();
    if (!d) return NULL;
    return row >= 0 ? atomic_load_explicit(&psk_real[row], memory_order_acquire) : psk_real_dlsym(d->lib, name);
}
