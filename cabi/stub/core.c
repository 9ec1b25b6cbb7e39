/* Initialisation, devices, contexts, errors, counters, fault injection. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

atomic_uint_fast64_t stub_counters[N_COUNTS];
static const char *const counter_names[N_COUNTS] = {"launches", "graph_launches", "faults", "h2d_bytes", "d2h_bytes", "evictions", "prefetches", "discards", "wait_values", "write_values", "copies", "illegal", "param_queries"};

uint64_t stub_queued(void);

uint64_t stub_count(const char *name) {
    if (!strcmp(name, "queued")) return stub_queued();
    for (int i = 0; i < N_COUNTS; i++)
        if (!strcmp(name, counter_names[i])) return atomic_load(&stub_counters[i]);
    return stub_memory_count(name);
}

void stub_reset_counts(void) {
    for (int i = 0; i < N_COUNTS; i++) atomic_store(&stub_counters[i], 0);
    stub_reset_peaks();
}

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

CUresult cuDriverGetVersion(int *version) {
    *version = STUB_VERSION;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
};

static CUresult error_text(CUresult code, const char **out, bool name) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code != code) continue;
        *out = name ? errors[i].name : errors[i].text;
        return CUDA_SUCCESS;
    }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **out) { return error_text(code, out, true); }
CUresult cuGetErrorString(CUresult code, const char **out) { return error_text(code, out, false); }

/* ---- the device ---- */

CUresult cuDeviceGetCount(int *n) {
    READY();
    *n = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *dev, int ordinal) {
    READY();
    if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
    *dev = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)len, "Penstock stub (no GPU)");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(void *uuid, CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid, "penstock-stub-00", 16);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(void *uuid, CUdevice dev) { return cuDeviceGetUuid_v2(uuid, dev); }

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)len, "0000:00:00.0");
    return CUDA_SUCCESS;
}

uint64_t stub_total_bytes(void);

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = stub_total_bytes();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
    case 1: *value = 1024; break;                         /* threads per block */
    case 2: case 3: case 5: *value = 1024; break;         /* block x, y; grid x below */
    case 4: *value = 64; break;                           /* block z */
    case 8: *value = 49152; break;                        /* shared memory per block */
    case 10: *value = 32; break;                          /* warp */
    case 13: *value = 1000000; break;                     /* clock, kHz */
    case 16: *value = 4; break;                           /* multiprocessors */
    case 18: *value = 0; break;                           /* integrated */
    case 19: *value = 1; break;                           /* can map host memory */
    case 31: *value = 1; break;                           /* concurrent kernels */
    case 33: case 34: case 50: *value = 0; break;         /* PCI bus, device, domain */
    case 40: *value = 2; break;                           /* async engines */
    case 41: *value = 1; break;                           /* unified addressing */
    case 75: *value = 9; break;                           /* compute capability */
    case 76: *value = 0; break;
    case 83: *value = 1; break;                           /* managed memory */
    case 88: *value = 0; break;                           /* pageable memory access */
    case 89: *value = (int)stub_env_bytes("STUB_CONCURRENT_MANAGED", 1); break;
    case 92: case 93: *value = 1; break;                  /* stream memory operations, version 1 */
    case 95: *value = 1; break;                           /* cooperative launch */
    case 102: *value = (int)stub_env_bytes("STUB_VMM", 1); break; /* virtual memory management */
    case 122: *value = 1; break;                          /* 64-bit stream memory operations */
    case 134: *value = 0; break;                          /* host NUMA node */
    case 141: case 145: *value = STUB_VERSION >= 12020; break; /* physical host memory through cuMemCreate */
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    *major = 9, *minor = 0;
    return CUDA_SUCCESS;
}

/* ---- contexts: a stack of them for each thread ---- */

struct CUctx_st {
    stream *legacy; /* its default stream, once used */
    uint64_t id;    /* no other has had it, while handles come back */
    struct CUctx_st *next;
};
static struct CUctx_st primary;
static atomic_int primary_refs;
static CUcontext spare; /* destroyed */
static pthread_mutex_t contexts_mu = PTHREAD_MUTEX_INITIALIZER;

enum { DEPTH = 8 };
static __thread CUcontext stack[DEPTH];
static __thread unsigned depth;

CUcontext stub_context(void) { return depth ? stack[depth - 1] : NULL; }

stream *stub_legacy(void) {
    CUcontext c = stub_context() ? stub_context() : &primary;
    pthread_mutex_lock(&contexts_mu);
    if (!c->legacy) c->legacy = stub_stream_new(c);
    pthread_mutex_unlock(&contexts_mu);
    return c->legacy;
}

uint64_t stub_context_id(void) { return stub_context() ? stub_context()->id : 0; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    atomic_fetch_add(&primary_refs, 1);
    *ctx = &primary;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    if (atomic_load(&primary_refs) == 0) return CUDA_ERROR_INVALID_CONTEXT;
    atomic_fetch_sub(&primary_refs, 1);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    READY();
    return dev == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned *flags, int *active) {
    READY();
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = atomic_load(&primary_refs) > 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags) {
    READY();
    (void)flags;
    return dev == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUcontext context_new(void) {
    static uint64_t ids;
    pthread_mutex_lock(&contexts_mu);
    CUcontext c = spare;
    if (c)
        spare = c->next;
    else
        c = malloc(sizeof *c);
    if (c) *c = (struct CUctx_st){.id = ++ids};
    pthread_mutex_unlock(&contexts_mu);
    return c;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    READY();
    if (!ctx || depth == DEPTH) return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext ctx) { return cuCtxPushCurrent_v2(ctx); }

CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
    READY();
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (ctx) *ctx = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev) {
    READY();
    (void)flags;
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    *ctx = context_new();
    return *ctx ? cuCtxPushCurrent_v2(*ctx) : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuCtxCreate(CUcontext *ctx, unsigned flags, CUdevice dev) { return cuCtxCreate_v2(ctx, flags, dev); }
CUresult cuCtxCreate_v3(CUcontext *ctx, void *params, int n, unsigned flags, CUdevice dev) { return (void)params, (void)n, cuCtxCreate_v2(ctx, flags, dev); }
CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned flags, CUdevice dev) { return (void)params, cuCtxCreate_v2(ctx, flags, dev); }

/* What it has queued runs to its end. */
CUresult cuCtxDestroy_v2(CUcontext ctx) {
    READY();
    if (!ctx || ctx == &primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx->legacy) stub_wait_idle(ctx->legacy), stub_stream_drop(ctx->legacy);
    if (stub_context() == ctx) depth--;
    pthread_mutex_lock(&contexts_mu);
    ctx->next = spare;
    spare = ctx;
    pthread_mutex_unlock(&contexts_mu);
    return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext ctx) { return cuCtxDestroy_v2(ctx); }
CUresult cuCtxDetach(CUcontext ctx) { return cuCtxDestroy_v2(ctx); }

CUresult cuCtxSetCurrent(CUcontext ctx) {
    READY();
    if (depth) depth--;
    return ctx ? cuCtxPushCurrent_v2(ctx) : CUDA_SUCCESS;
}

/* Green contexts: contexts by another name. */
CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice dev, unsigned flags) {
    READY();
    (void)resources, (void)flags;
    if (dev != 0) return CUDA_ERROR_INVALID_DEVICE;
    CUcontext c = context_new();
    *green = (CUgreenCtx)c;
    return c ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green) {
    READY();
    *ctx = (CUcontext)green;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green) { return cuCtxDestroy_v2((CUcontext)green); }

static _Atomic CUresult ended;

void stub_failed(CUresult rc) {
    CUresult none = CUDA_SUCCESS;
    if (rc == CUDA_ERROR_ILLEGAL_ADDRESS || rc == CUDA_ERROR_ECC_UNCORRECTABLE) atomic_compare_exchange_strong(&ended, &none, rc);
}

CUresult stub_ended(void) { return atomic_load(&ended); }

CUresult stub_current(void) {
    READY();
    return stub_context() ? stub_ended() : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetCurrent(CUcontext *ctx) {
    READY();
    *ctx = stub_context();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *dev) {
    READY();
    if (!stub_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *dev = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    READY();
    *least = 0, *greatest = -5;
    return CUDA_SUCCESS;
}
