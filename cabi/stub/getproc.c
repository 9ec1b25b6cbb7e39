/* cuGetProcAddress: the newest function of a name that the asked-for version knows. */
#define _GNU_SOURCE
#include "base.h"

#include <string.h>

#define PSK_SYM(name, base, since, ptsz) extern char name[];
#include "../hook/symbols.def"
#include "stub.def"
#undef PSK_SYM

static const struct {
    const char *base;
    void *fn;
    int since, ptsz;
} rows[] = {
#define PSK_SYM(name, base, since, ptsz) {#base, name, since, ptsz},
#include "../hook/symbols.def"
#include "stub.def"
#undef PSK_SYM
};

static void *find(const char *symbol, int version, uint64_t flags, int *status) {
    int best = -1, have_name = 0;
    if (version > STUB_VERSION) version = STUB_VERSION;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].base, symbol) || rows[i].since > STUB_VERSION) continue;
        have_name = 1;
        if (rows[i].since > version || (rows[i].ptsz && !(flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))) continue;
        if (best < 0 || rows[i].ptsz > rows[best].ptsz || (rows[i].ptsz == rows[best].ptsz && rows[i].since > rows[best].since)) best = (int)i;
    }
    *status = best >= 0 ? CU_GET_PROC_ADDRESS_SUCCESS : have_name ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return best >= 0 ? rows[best].fn : NULL;
}

CUresult getproc_v1(const char *symbol, void **pfn, int version, uint64_t flags) asm("cuGetProcAddress");
CUresult getproc_v1(const char *symbol, void **pfn, int version, uint64_t flags) {
    int status;
    if (!symbol || !pfn || version < 2000) return CUDA_ERROR_INVALID_VALUE;
    *pfn = find(symbol, version, flags, &status);
    return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* With a place for the status, an unknown name is no error. */
CUresult getproc_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *out) asm("cuGetProcAddress_v2");
CUresult getproc_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *out) {
    int status;
    if (!symbol || !pfn || version < 2000) return CUDA_ERROR_INVALID_VALUE;
    *pfn = find(symbol, version, flags, &status);
    if (out) *out = status;
    return *pfn || out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
