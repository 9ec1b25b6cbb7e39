/* A runtime: its entry points ask the driver. BYPASS asks past the hook, as a runtime that resolved it earlier would. REFUSING finds nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

typedef int (*getproc_v2)(const char *, void **, int, uint64_t, int *);

static getproc_v2 get(void) {
#ifdef BYPASS
    return (getproc_v2)dlsym(RTLD_NEXT, "cuGetProcAddress_v2"); /* linked against libcuda, which comes next */
#else
    return (getproc_v2)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
#endif
}

/* Its own table of the driver, filled at the first call. */
int cudaMemsetAsync(void *p, int value, size_t bytes, void *stream) {
    static int (*fill)(uint64_t, unsigned char, size_t, void *);
    int status;
    if (!fill && get()("cuMemsetD8Async", (void **)&fill, 13000, 0, &status)) return 999;
    return fill((uint64_t)(uintptr_t)p, (unsigned char)value, bytes, stream);
}
int cudaGetLastError(void) { return 0; }

#ifdef REFUSING
int cudaGetDriverEntryPoint(const char *symbol, void **pfn, unsigned long long flags, int *status) { return (void)symbol, (void)pfn, (void)flags, (void)status, 500; }
#else
int cudaGetDriverEntryPoint(const char *symbol, void **pfn, unsigned long long flags, int *status) { return get()(symbol, pfn, 13000, flags, status); }
#endif
int cudaGetDriverEntryPointByVersion(const char *symbol, void **pfn, unsigned version, unsigned long long flags, int *status) { return get()(symbol, pfn, (int)version, flags, status); }
