/*
 * The functions of libcuda.so.1 that Penstock calls, declared by hand so that
 * no CUDA toolkit is needed to build. Handles are uintptr_t: the ABI passes
 * them like the pointers they are. The names are those of the symbols: a
 * suffix is part of the ABI (cuMemPrefetchAsync and cuMemPrefetchAsync_v2 take
 * different arguments).
 */
#ifndef PENSTOCK_LIBCUDA_H
#define PENSTOCK_LIBCUDA_H
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int psk_result; /* CUresult */
#define PSK_NOT_SUPPORTED 801

typedef struct { int type, id; } psk_location; /* CUmemLocation */
enum { PSK_LOCATION_DEVICE = 1, PSK_LOCATION_HOST = 2, PSK_LOCATION_HOST_NUMA = 3 };

typedef struct { /* CUmemAllocationProp */
    int type;    /* 1: pinned */
    int handle_types;
    psk_location location;
    void *win32_metadata;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
} psk_alloc_prop;

typedef struct { /* CUmemAccessDesc */
    psk_location location;
    int flags; /* 3: read and write */
} psk_access_desc;

typedef struct { /* CUlaunchAttribute */
    int id, pad;
    char value[64];
} psk_launch_attribute;

typedef struct { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    uintptr_t stream;
    psk_launch_attribute *attributes;
    unsigned count;
} psk_launch_config;

_Static_assert(sizeof(psk_launch_attribute) == 72 && sizeof(psk_launch_config) == 56, "CUlaunchConfig");
_Static_assert(sizeof(psk_alloc_prop) == 32 && offsetof(psk_alloc_prop, win32_metadata) == 16, "CUmemAllocationProp");
_Static_assert(sizeof(psk_access_desc) == 12, "CUmemAccessDesc");

/* X(symbol, required, (arguments), parameters...) */
#define PSK_FUNCTIONS(X) \
    X(cuInit, 1, (flags), unsigned flags) \
    X(cuDriverGetVersion, 1, (version), int *version) \
    X(cuDeviceGetCount, 1, (count), int *count) \
    X(cuDeviceGet, 1, (dev, ordinal), int *dev, int ordinal) \
    X(cuDeviceGetName, 1, (name, len, dev), char *name, int len, int dev) \
    X(cuDeviceGetAttribute, 1, (value, attr, dev), int *value, int attr, int dev) \
    X(cuDeviceTotalMem_v2, 1, (bytes, dev), size_t *bytes, int dev) \
    X(cuDeviceGetUuid_v2, 0, (uuid, dev), void *uuid, int dev) \
    X(cuDeviceGetUuid, 0, (uuid, dev), void *uuid, int dev) \
    X(cuDevicePrimaryCtxRetain, 1, (ctx, dev), uintptr_t *ctx, int dev) \
    X(cuDevicePrimaryCtxRelease_v2, 1, (dev), int dev) \
    X(cuCtxGetCurrent, 1, (ctx), uintptr_t *ctx) \
    X(cuCtxSetCurrent, 1, (ctx), uintptr_t ctx) \
    X(cuMemGetInfo_v2, 1, (free_bytes, total_bytes), size_t *free_bytes, size_t *total_bytes) \
    X(cuMemAlloc_v2, 1, (p, n), uint64_t *p, size_t n) \
    X(cuMemFree_v2, 1, (p), uint64_t p) \
    X(cuMemHostAlloc, 1, (p, n, flags), uint64_t *p, size_t n, unsigned flags) \
    X(cuMemFreeHost, 1, (p), uint64_t p) \
    X(cuMemHostRegister_v2, 0, (p, n, flags), uint64_t p, size_t n, unsigned flags) \
    X(cuMemHostUnregister, 0, (p), uint64_t p) \
    X(cuPointerGetAttributes, 0, (n, attributes, values, p), unsigned n, int *attributes, void **values, uint64_t p) \
    X(cuMemAllocManaged, 0, (p, n, flags), uint64_t *p, size_t n, unsigned flags) \
    X(cuMemPrefetchAsync, 0, (p, n, dev, s), uint64_t p, size_t n, int dev, uintptr_t s) \
    X(cuMemPrefetchAsync_v2, 0, (p, n, loc, flags, s), uint64_t p, size_t n, psk_location loc, unsigned flags, uintptr_t s) \
    X(cuMemPrefetchBatchAsync, 0, (p, n, count, locs, idx, nlocs, flags, s), \
      uint64_t *p, size_t *n, size_t count, psk_location *locs, size_t *idx, size_t nlocs, unsigned long long flags, uintptr_t s) \
    X(cuMemDiscardBatchAsync, 0, (p, n, count, flags, s), \
      uint64_t *p, size_t *n, size_t count, unsigned long long flags, uintptr_t s) \
    X(cuMemDiscardAndPrefetchBatchAsync, 0, (p, n, count, locs, idx, nlocs, flags, s), \
      uint64_t *p, size_t *n, size_t count, psk_location *locs, size_t *idx, size_t nlocs, unsigned long long flags, uintptr_t s) \
    X(cuMemAdvise, 0, (p, n, advice, dev), uint64_t p, size_t n, int advice, int dev) \
    X(cuMemAdvise_v2, 0, (p, n, advice, loc), uint64_t p, size_t n, int advice, psk_location loc) \
    X(cuStreamCreate, 1, (s, flags), uintptr_t *s, unsigned flags) \
    X(cuStreamDestroy_v2, 1, (s), uintptr_t s) \
    X(cuStreamSynchronize, 1, (s), uintptr_t s) \
    X(cuCtxSynchronize, 1, (unused), int unused) /* it takes none, and does not mind */ \
    X(cuStreamQuery, 1, (s), uintptr_t s) \
    X(cuStreamIsCapturing, 0, (s, status), uintptr_t s, int *status) \
    X(cuStreamWaitEvent, 1, (s, e, flags), uintptr_t s, uintptr_t e, unsigned flags) \
    X(cuEventCreate, 1, (e, flags), uintptr_t *e, unsigned flags) \
    X(cuEventDestroy_v2, 1, (e), uintptr_t e) \
    X(cuEventRecord, 1, (e, s), uintptr_t e, uintptr_t s) \
    X(cuEventQuery, 1, (e), uintptr_t e) \
    X(cuEventSynchronize, 1, (e), uintptr_t e) \
    X(cuMemcpyAsync, 1, (dst, src, n, s), uint64_t dst, uint64_t src, size_t n, uintptr_t s) \
    X(cuMemCreate, 0, (h, n, prop, flags), uint64_t *h, size_t n, const psk_alloc_prop *prop, unsigned long long flags) \
    X(cuMemRelease, 0, (h), uint64_t h) \
    X(cuMemAddressReserve, 0, (p, n, align, hint, flags), uint64_t *p, size_t n, size_t align, uint64_t hint, unsigned long long flags) \
    X(cuMemAddressFree, 0, (p, n), uint64_t p, size_t n) \
    X(cuMemMap, 0, (p, n, offset, h, flags), uint64_t p, size_t n, size_t offset, uint64_t h, unsigned long long flags) \
    X(cuMemUnmap, 0, (p, n), uint64_t p, size_t n) \
    X(cuMemSetAccess, 0, (p, n, desc, count), uint64_t p, size_t n, const psk_access_desc *desc, size_t count) \
    X(cuMemGetAllocationGranularity, 0, (n, prop, option), size_t *n, const psk_alloc_prop *prop, int option) \
    X(cuStreamWriteValue32_v2, 0, (s, p, v, flags), uintptr_t s, uint64_t p, uint32_t v, unsigned flags) \
    X(cuModuleLoadDataEx, 0, (m, image, n, options, values), uintptr_t *m, const void *image, unsigned n, int *options, void **values) \
    X(cuModuleUnload, 0, (m), uintptr_t m) \
    X(cuModuleGetFunction, 0, (f, m, name), uintptr_t *f, uintptr_t m, const char *name) \
    X(cuLaunchKernel, 0, (f, gx, gy, gz, bx, by, bz, shared, s, params, extra), \
      uintptr_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, uintptr_t s, void **params, void **extra) \
    X(cuLaunchKernelEx, 0, (c, f, params, extra), const psk_launch_config *c, uintptr_t f, void **params, void **extra) \
    X(cuMemsetD8Async, 0, (p, v, n, s), uint64_t p, unsigned char v, size_t n, uintptr_t s) \
    X(cuThreadExchangeStreamCaptureMode, 0, (mode), int *mode) \
    /* Never called from here: only their presence counts. */ \
    X(cuStreamWaitValue32_v2, 0, (s, p, v, flags), uintptr_t s, uint64_t p, uint32_t v, unsigned flags) \
    X(cuFuncGetParamInfo, 0, (f, i, offset, size), uintptr_t f, size_t i, size_t *offset, size_t *size)

#define PSK_FIELD(name, required, args, ...) psk_result (*name)(__VA_ARGS__);
typedef struct { PSK_FUNCTIONS(PSK_FIELD) } psk_driver;
#undef PSK_FIELD

/* A function that the driver lacks answers "not supported": never a jump to NULL. */
#define PSK_CALL(name, required, args, ...) \
    static inline psk_result psk_##name(const psk_driver *d, __VA_ARGS__) { return d->name ? d->name args : PSK_NOT_SUPPORTED; }
PSK_FUNCTIONS(PSK_CALL)
#undef PSK_CALL

/* The driver compiles PTX; the text of its complaint goes to log, NUL-terminated. */
static inline psk_result psk_load_module(const psk_driver *d, uintptr_t *m, const void *image, char *log, size_t log_bytes)
{
    int options[] = {5 /* CU_JIT_ERROR_LOG_BUFFER */, 6 /* CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES */};
    void *values[] = {log, (void *)(uintptr_t)(log_bytes - 1)};
    memset(log, 0, log_bytes);
    return psk_cuModuleLoadDataEx(d, m, image, 2, options, values);
}

/* What the driver knows of the memory that an address lies in; zeros of what it does not know. */
typedef struct {
    uint64_t base, at; /* at: where kernels of the context find the address, 0 when nowhere */
    size_t bytes;
    unsigned type; /* CUmemorytype: 1 host, 2 device */
    int device;
    unsigned managed, legacy; /* legacy: of cuMemAlloc, and not mapped piece by piece */
    uint64_t pool;            /* of cuMemAllocAsync: the pool */
} psk_memory;
static inline psk_result psk_memory_at(const psk_driver *d, uint64_t p, psk_memory *m)
{
    int attributes[] = {2 /* MEMORY_TYPE */, 3 /* DEVICE_POINTER */, 8 /* IS_MANAGED */, 9 /* DEVICE_ORDINAL */,
                        10 /* IS_LEGACY_CUDA_IPC_CAPABLE */, 11 /* RANGE_START_ADDR */, 12 /* RANGE_SIZE */, 17 /* MEMPOOL_HANDLE: CUDA 11.3 */};
    void *values[] = {&m->type, &m->at, &m->managed, &m->device, &m->legacy, &m->base, &m->bytes, &m->pool};
    enum { ALL = sizeof attributes / sizeof attributes[0] };
    memset(m, 0, sizeof *m);
    psk_result r = psk_cuPointerGetAttributes(d, ALL, attributes, values, p);
    return r == 1 /* invalid value */ ? psk_cuPointerGetAttributes(d, ALL - 1, attributes, values, p) : r;
}

static inline void psk_zero(uint64_t p, size_t n) { memset((void *)(uintptr_t)p, 0, n); }

/* A launch whose parameters are n 8-byte values. */
enum { PSK_MAX_ARGUMENTS = 16 };
static inline psk_result psk_launch(const psk_driver *d, uintptr_t f, const unsigned grid[3], const unsigned block[3], uintptr_t s, uint64_t *args, int n)
{
    void *params[PSK_MAX_ARGUMENTS + 1] = {NULL};
    for (int i = 0; i < n && i < PSK_MAX_ARGUMENTS; i++)
        params[i] = &args[i];
    return psk_cuLaunchKernel(d, f, grid[0], grid[1], grid[2], block[0], block[1], block[2], 0, s, params, NULL);
}

/* A launch whose parameters lie in one buffer, with clusters if cluster has any. */
static inline psk_result psk_launch_again(const psk_driver *d, uintptr_t f, const unsigned grid[3], const unsigned block[3], const unsigned cluster[3], unsigned policy, unsigned shared, uintptr_t s,
                                          void *params, size_t bytes)
{
    void *extra[] = {(void *)1 /* CU_LAUNCH_PARAM_BUFFER_POINTER */, params, (void *)2 /* CU_LAUNCH_PARAM_BUFFER_SIZE */, &bytes, NULL /* CU_LAUNCH_PARAM_END */};
    if (!cluster[0])
        return psk_cuLaunchKernel(d, f, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, s, NULL, extra);
    psk_launch_attribute attributes[2] = {{.id = 4 /* CLUSTER_DIMENSION */}, {.id = 5 /* CLUSTER_SCHEDULING_POLICY_PREFERENCE */}};
    memcpy(attributes[0].value, cluster, 3 * sizeof *cluster);
    memcpy(attributes[1].value, &policy, sizeof policy);
    psk_launch_config c = {.grid = {grid[0], grid[1], grid[2]}, .block = {block[0], block[1], block[2]}, .shared = shared, .stream = s, .attributes = attributes, .count = policy ? 2 : 1};
    return psk_cuLaunchKernelEx(d, &c, f, NULL, extra);
}

/* While any thread of the process captures a stream, the driver refuses calls
 * such as allocations and questions whether work is done, and spoils the capture: unless the calling thread has
 * said that it knows what it does. None of these calls is part of a graph. */
#define PSK_RELAXED(name, params, args) \
    static inline psk_result psk_relaxed_##name params \
    { \
        int mode = 2; /* CU_STREAM_CAPTURE_MODE_RELAXED */ \
        int exchanged = psk_cuThreadExchangeStreamCaptureMode(d, &mode) == 0; \
        psk_result r = psk_##name args; \
        if (exchanged) \
            psk_cuThreadExchangeStreamCaptureMode(d, &mode); \
        return r; \
    }
PSK_RELAXED(cuMemAlloc_v2, (const psk_driver *d, uint64_t *p, size_t n), (d, p, n))
PSK_RELAXED(cuMemAllocManaged, (const psk_driver *d, uint64_t *p, size_t n, unsigned flags), (d, p, n, flags))
PSK_RELAXED(cuMemFree_v2, (const psk_driver *d, uint64_t p), (d, p))
PSK_RELAXED(cuMemHostAlloc, (const psk_driver *d, uint64_t *p, size_t n, unsigned flags), (d, p, n, flags))
PSK_RELAXED(cuCtxSynchronize, (const psk_driver *d, int unused), (d, unused))
PSK_RELAXED(cuStreamQuery, (const psk_driver *d, uintptr_t s), (d, s))
PSK_RELAXED(cuStreamSynchronize, (const psk_driver *d, uintptr_t s), (d, s))
PSK_RELAXED(cuEventSynchronize, (const psk_driver *d, uintptr_t e), (d, e))
PSK_RELAXED(cuEventQuery, (const psk_driver *d, uintptr_t e), (d, e))
PSK_RELAXED(cuMemFreeHost, (const psk_driver *d, uint64_t p), (d, p))
PSK_RELAXED(cuMemHostRegister_v2, (const psk_driver *d, uint64_t p, size_t n, unsigned flags), (d, p, n, flags))
PSK_RELAXED(cuMemHostUnregister, (const psk_driver *d, uint64_t p), (d, p))
PSK_RELAXED(cuMemCreate, (const psk_driver *d, uint64_t *h, size_t n, const psk_alloc_prop *prop), (d, h, n, prop, 0))
PSK_RELAXED(cuMemRelease, (const psk_driver *d, uint64_t h), (d, h))
PSK_RELAXED(cuMemMap, (const psk_driver *d, uint64_t p, size_t n, uint64_t h), (d, p, n, 0, h, 0))
PSK_RELAXED(cuMemUnmap, (const psk_driver *d, uint64_t p, size_t n), (d, p, n))
PSK_RELAXED(cuMemSetAccess, (const psk_driver *d, uint64_t p, size_t n, const psk_access_desc *desc), (d, p, n, desc, 1))
PSK_RELAXED(load_module, (const psk_driver *d, uintptr_t *m, const void *image, char *log, size_t log_bytes), (d, m, image, log, log_bytes))
PSK_RELAXED(cuModuleUnload, (const psk_driver *d, uintptr_t m), (d, m))
#undef PSK_RELAXED

typedef struct {
    const char *name;
    int required;
} psk_symbol;
#define PSK_NAME(name, required, args, ...) {#name, required},
static const psk_symbol psk_symbols[] = {PSK_FUNCTIONS(PSK_NAME)};
#undef PSK_NAME
enum { PSK_SYMBOLS = sizeof psk_symbols / sizeof psk_symbols[0] };
_Static_assert(sizeof(psk_driver) == PSK_SYMBOLS * sizeof(void *), "the table is an array of pointers");

static inline const psk_symbol *psk_symbol_at(int i) { return &psk_symbols[i]; }
static inline void psk_set(psk_driver *d, int i, void *fn) { ((void **)d)[i] = fn; }
static inline int psk_has(const psk_driver *d, int i) { return ((void *const *)d)[i] != NULL; }

/* dlopen and the text of its failure, which the next call would overwrite. */
static inline void *psk_open(const char *path, const char **why)
{
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *why = h ? NULL : dlerror();
    return h;
}
#endif
