// managed_probe.c - what the driver's managed memory and stream gates cost on this machine.
//
// Build:  gcc -O2 -Wall -Wextra -pthread -o managed_probe managed_probe.c -ldl
// Run:    ./managed_probe [--only=abcdefgh] [--json]
//
//   --only=LETTERS  run only these stages (default all; see the table below)
//   --json          one JSON document on stdout; the table then goes to stderr
//                   (stage f's table shows only calls that blocked, failed or took
//                   over 50 ms; the document has every call)
//
//   a  prefetch each way by chunk size, through CUDA and through the direct ioctl
//   b  latency of a prefetch beside evictions, rates of both directions at once
//   c  discard, discard-and-prefetch, prefetch of resident ranges, does data survive
//   d  does eviction or discard give device memory back to the system's count
//   e  stream memory operations: CPU cost, GPU cost, latency of a gate
//   f  which calls still return while a stream is gated and a thread waits for it
//   g  eviction by threads, by state of the host pages and by advice; read-mostly
//   h  GPU demand faults
//
// It needs no CUDA headers: libcuda.so.1 is opened with dlopen, kernels are PTX.
//
// Safety: at most 4 GiB of managed memory is alive at any time (mm_alloc refuses
// more), a stage refuses to start with less than 40 GiB of device memory free (nine
// tenths of a smaller card), so managed memory is never oversubscribed. Every stage is its own process,
// one at a time, because a failed or stuck driver call must not lose the other
// stages' numbers; the parent never touches CUDA, ends a stage after 40 s (the
// last, f, has what is left) and everything before 120 s.
//
// Exit status: 0 = every stage finished; 1 = a stage failed or was ended; 2 =
// usage; 3 = refused (too little memory free); 124 = timed out.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define MAX_MANAGED_BYTES (4 * GIB) // hard limit of everything alive
#define MIN_FREE_BYTES (40 * GIB) // as bench/_common.py
#define TOTAL_LIMIT_S 120
#define STAGE_LIMIT_S 40
#define WATCHDOG_MS 1000 // the issue is "ever", not "how long": normal calls take < 50 ms

// -------------------------------------------------------------------- results

#define MAX_VALUES 6
typedef struct {
    char stage, name[100], text[120];
    int count;
    char key[MAX_VALUES][24];
    double value[MAX_VALUES];
} result;

// Shared between the parent and the stage processes, so that a stage that is
// killed keeps what it had measured.
static struct {
    atomic_int count;
    result r[1000];
} *results;

static FILE *table;
static char stage_now = '-';
static int quiet; // keep rows for the JSON document, do not print them

// row("name", "text or NULL", "key", value, ..., NULL) prints and keeps one result.
static void row(const char *name, const char *text, ...)
{
    result r = {.stage = stage_now};
    va_list ap;
    const char *k;
    snprintf(r.name, sizeof r.name, "%s", name);
    snprintf(r.text, sizeof r.text, "%s", text ? text : "");
    va_start(ap, text);
    while (r.count < MAX_VALUES && (k = va_arg(ap, const char *))) {
        snprintf(r.key[r.count], sizeof r.key[0], "%s", k);
        r.value[r.count++] = va_arg(ap, double);
    }
    va_end(ap);
    int at = atomic_fetch_add(&results->count, 1);
    if (at < (int)(sizeof results->r / sizeof results->r[0]))
        results->r[at] = r;
    if (quiet)
        return;
    fprintf(table, "%c  %-62s", r.stage, r.name);
    for (int i = 0; i < r.count; i++)
        fprintf(table, "  %s %.*f", r.key[i], r.value[i] >= 1000 ? 0 : r.value[i] >= 10 ? 1 : 2, r.value[i]);
    fprintf(table, "%s%s\n", r.text[0] ? "  " : "", r.text);
    fflush(table);
}

static void open_gate(void);
static void die(const char *fmt, ...)
{
    char msg[400];
    quiet = 0;
    open_gate(); // leave no stream waiting behind
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    row("STAGE FAILED", msg, NULL);
    _exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}
static double since_us(uint64_t t0) { return (double)(now_ns() - t0) / 1e3; }
static double gbps(size_t bytes, double us) { return us > 0 ? (double)bytes / 1e3 / us : 0; }

static int cmp_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double quantile(double *v, size_t n, double q)
{
    if (!n)
        return 0;
    qsort(v, n, sizeof *v, cmp_double);
    size_t i = (size_t)(q * (double)n);
    return v[i < n ? i : n - 1];
}

// ----------------------------------------------------------------------- CUDA

typedef int CUresult;
typedef unsigned long long devptr;
typedef void *stream_t;
typedef void *event_t;
typedef struct { int type, id; } memloc; // CUmemLocation: 1 = device, 2 = host
typedef struct { char bytes[16]; } uuid_t_;
typedef struct {
    int type, handle_types;
    memloc location;
    void *win32;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} alloc_prop; // CUmemAllocationProp
typedef struct { memloc location; int flags; } access_desc; // CUmemAccessDesc

enum { READ_MOSTLY = 1, UNSET_READ_MOSTLY, PREFERRED, UNSET_PREFERRED, ACCESSED_BY, UNSET_ACCESSED_BY };
enum { WAIT_GEQ = 0, WRITE_NO_BARRIER = 1, NON_BLOCKING = 1, HOST_PORTABLE_MAPPED = 3 };

#define CUDA_FUNCTIONS(F)                                                                                              \
    F(Init, "cuInit", (unsigned))                                                                                      \
    F(DriverGetVersion, "cuDriverGetVersion", (int *))                                                                 \
    F(DeviceGet, "cuDeviceGet", (int *, int))                                                                          \
    F(DeviceGetName, "cuDeviceGetName", (char *, int, int))                                                            \
    F(DeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int))                                                   \
    F(DeviceGetUuid, "cuDeviceGetUuid_v2", (uuid_t_ *, int))                                                           \
    F(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int))                                                    \
    F(CtxSetCurrent, "cuCtxSetCurrent", (void *))                                                                      \
    F(CtxSynchronize, "cuCtxSynchronize", (void))                                                                      \
    F(MemGetInfo, "cuMemGetInfo_v2", (size_t *, size_t *))                                                             \
    F(MemAllocManaged, "cuMemAllocManaged", (devptr *, size_t, unsigned))                                              \
    F(MemAlloc, "cuMemAlloc_v2", (devptr *, size_t))                                                                   \
    F(MemFree, "cuMemFree_v2", (devptr))                                                                               \
    F(MemHostAlloc, "cuMemHostAlloc", (void **, size_t, unsigned))                                                     \
    F(MemFreeHost, "cuMemFreeHost", (void *))                                                                          \
    F(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (devptr *, void *, unsigned))                           \
    F(MemcpyDtoH, "cuMemcpyDtoH_v2", (void *, devptr, size_t))                                                         \
    F(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (devptr, const void *, size_t, stream_t))                               \
    F(MemsetD8Async, "cuMemsetD8Async", (devptr, unsigned char, size_t, stream_t))                                     \
    F(ModuleLoadData, "cuModuleLoadData", (void **, const void *))                                                     \
    F(ModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *))                                       \
    F(LaunchKernel, "cuLaunchKernel",                                                                                  \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, stream_t, void **, void **))      \
    F(StreamCreate, "cuStreamCreate", (stream_t *, unsigned))                                                          \
    F(StreamDestroy, "cuStreamDestroy_v2", (stream_t))                                                                 \
    F(StreamSynchronize, "cuStreamSynchronize", (stream_t))                                                            \
    F(StreamWaitEvent, "cuStreamWaitEvent", (stream_t, event_t, unsigned))                                             \
    F(EventCreate, "cuEventCreate", (event_t *, unsigned))                                                             \
    F(EventRecord, "cuEventRecord", (event_t, stream_t))                                                               \
    F(EventQuery, "cuEventQuery", (event_t))                                                                           \
    F(EventSynchronize, "cuEventSynchronize", (event_t))                                                               \
    F(EventElapsedTime, "cuEventElapsedTime", (float *, event_t, event_t))                                             \
    F(StreamWaitValue32, "cuStreamWaitValue32_v2", (stream_t, devptr, uint32_t, unsigned))                             \
    F(StreamWriteValue32, "cuStreamWriteValue32_v2", (stream_t, devptr, uint32_t, unsigned))                           \
    F(MemPrefetch, "cuMemPrefetchAsync_v2", (devptr, size_t, memloc, unsigned, stream_t))                              \
    F(MemAdvise, "cuMemAdvise_v2", (devptr, size_t, int, memloc))                                                      \
    F(MemDiscardBatch, "cuMemDiscardBatchAsync", (devptr *, size_t *, size_t, unsigned long long, stream_t))           \
    F(MemPrefetchBatch, "cuMemPrefetchBatchAsync",                                                                     \
      (devptr *, size_t *, size_t, memloc *, size_t *, size_t, unsigned long long, stream_t))                          \
    F(MemDiscardAndPrefetchBatch, "cuMemDiscardAndPrefetchBatchAsync",                                                 \
      (devptr *, size_t *, size_t, memloc *, size_t *, size_t, unsigned long long, stream_t))                          \
    F(MemCreate, "cuMemCreate", (unsigned long long *, size_t, const alloc_prop *, unsigned long long))                \
    F(MemRelease, "cuMemRelease", (unsigned long long))                                                                \
    F(AddressReserve, "cuMemAddressReserve", (devptr *, size_t, size_t, devptr, unsigned long long))                   \
    F(AddressFree, "cuMemAddressFree", (devptr, size_t))                                                               \
    F(MemMap, "cuMemMap", (devptr, size_t, size_t, unsigned long long, unsigned long long))                            \
    F(MemUnmap, "cuMemUnmap", (devptr, size_t))                                                                        \
    F(MemSetAccess, "cuMemSetAccess", (devptr, size_t, const access_desc *, size_t))                                   \
    F(GetErrorName, "cuGetErrorName", (CUresult, const char **))

#define DECLARE(f, sym, args) CUresult(*f) args;
static struct { CUDA_FUNCTIONS(DECLARE) } cu;

static const char *cu_err(CUresult r)
{
    const char *s = NULL;
    if (cu.GetErrorName)
        cu.GetErrorName(r, &s);
    return s ? s : "?";
}
#define CU(call)                                                                                                       \
    do {                                                                                                               \
        CUresult r_ = (call);                                                                                          \
        if (r_)                                                                                                        \
            die("line %d: %s returned %d (%s)", __LINE__, #call, r_, cu_err(r_));                                      \
    } while (0)

static void load_cuda(void)
{
    void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!h)
        die("dlopen libcuda.so.1: %s", dlerror());
#define LOAD(f, sym, args)                                                                                             \
    if (!(*(void **)(&cu.f) = dlsym(h, sym)))                                                                          \
        die("libcuda.so.1 has no symbol %s: the driver is older than CUDA 13.0", sym);
    CUDA_FUNCTIONS(LOAD)
}

// fill: word at byte offset o (every `step` bytes) becomes v + o. check: counts
// words that differ from it. setword: one 32-bit word, visible to the CPU.
static const char ptx[] =
    ".version 6.4\n.target sm_75\n.address_size 64\n"
    ".visible .entry fill(.param .u64 p, .param .u64 n, .param .u64 v, .param .u64 step)\n"
    "{\n"
    "  .reg .pred %q;\n"
    "  .reg .b32 %r<5>;\n"
    "  .reg .b64 %d<12>;\n"
    "  ld.param.u64 %d1, [p];\n"
    "  ld.param.u64 %d2, [n];\n"
    "  ld.param.u64 %d3, [v];\n"
    "  ld.param.u64 %d4, [step];\n"
    "  cvta.to.global.u64 %d1, %d1;\n"
    "  mov.u32 %r1, %ctaid.x;\n"
    "  mov.u32 %r2, %ntid.x;\n"
    "  mov.u32 %r3, %tid.x;\n"
    "  mov.u32 %r4, %nctaid.x;\n"
    "  cvt.u64.u32 %d5, %r3;\n"
    "  mul.wide.u32 %d6, %r1, %r2;\n"
    "  add.u64 %d6, %d6, %d5;\n"
    "  mul.lo.u64 %d6, %d6, %d4;\n"
    "  mul.wide.u32 %d7, %r4, %r2;\n"
    "  mul.lo.u64 %d7, %d7, %d4;\n"
    "LOOP:\n"
    "  setp.ge.u64 %q, %d6, %d2;\n"
    "  @%q bra DONE;\n"
    "  add.u64 %d8, %d1, %d6;\n"
    "  add.u64 %d9, %d3, %d6;\n"
    "  st.global.u64 [%d8], %d9;\n"
    "  add.u64 %d6, %d6, %d7;\n"
    "  bra LOOP;\n"
    "DONE:\n"
    "  ret;\n"
    "}\n"
    ".visible .entry check(.param .u64 p, .param .u64 n, .param .u64 v, .param .u64 step, .param .u64 bad)\n"
    "{\n"
    "  .reg .pred %q;\n"
    "  .reg .b32 %r<5>;\n"
    "  .reg .b64 %d<14>;\n"
    "  ld.param.u64 %d1, [p];\n"
    "  ld.param.u64 %d2, [n];\n"
    "  ld.param.u64 %d3, [v];\n"
    "  ld.param.u64 %d4, [step];\n"
    "  ld.param.u64 %d10, [bad];\n"
    "  cvta.to.global.u64 %d1, %d1;\n"
    "  cvta.to.global.u64 %d10, %d10;\n"
    "  mov.u32 %r1, %ctaid.x;\n"
    "  mov.u32 %r2, %ntid.x;\n"
    "  mov.u32 %r3, %tid.x;\n"
    "  mov.u32 %r4, %nctaid.x;\n"
    "  cvt.u64.u32 %d5, %r3;\n"
    "  mul.wide.u32 %d6, %r1, %r2;\n"
    "  add.u64 %d6, %d6, %d5;\n"
    "  mul.lo.u64 %d6, %d6, %d4;\n"
    "  mul.wide.u32 %d7, %r4, %r2;\n"
    "  mul.lo.u64 %d7, %d7, %d4;\n"
    "LOOP:\n"
    "  setp.ge.u64 %q, %d6, %d2;\n"
    "  @%q bra DONE;\n"
    "  add.u64 %d8, %d1, %d6;\n"
    "  add.u64 %d9, %d3, %d6;\n"
    "  ld.global.u64 %d11, [%d8];\n"
    "  setp.ne.u64 %q, %d11, %d9;\n"
    "  @%q red.global.add.u32 [%d10], 1;\n"
    "  add.u64 %d6, %d6, %d7;\n"
    "  bra LOOP;\n"
    "DONE:\n"
    "  ret;\n"
    "}\n"
    ".visible .entry empty()\n"
    "{\n"
    "  ret;\n"
    "}\n"
    ".visible .entry setword(.param .u64 p, .param .u32 v)\n"
    "{\n"
    "  .reg .b32 %r1;\n"
    "  .reg .b64 %d1;\n"
    "  ld.param.u64 %d1, [p];\n"
    "  ld.param.u32 %r1, [v];\n"
    "  cvta.to.global.u64 %d1, %d1;\n"
    "  st.volatile.global.u32 [%d1], %r1;\n"
    "  membar.sys;\n"
    "  ret;\n"
    "}\n";

static void *ctx, *k_fill, *k_check, *k_empty, *k_setword;
static stream_t main_stream;
static devptr bad_words;
static int device;
static const memloc HOST = {2, 0};
static memloc gpu_location(void) { return (memloc){1, device}; }

static atomic_size_t managed_alive;
static devptr mm_alloc(size_t bytes)
{
    devptr p = 0;
    size_t alive = atomic_fetch_add(&managed_alive, bytes) + bytes;
    if (alive > MAX_MANAGED_BYTES)
        die("refused: %zu MiB of managed memory alive, the limit is %zu MiB", alive / MIB, MAX_MANAGED_BYTES / MIB);
    CU(cu.MemAllocManaged(&p, bytes, 1));
    if (p & (2 * MIB - 1))
        row("note: managed buffer is not aligned to 2 MiB", NULL, NULL);
    return p;
}
static void mm_free(devptr p, size_t bytes)
{
    CU(cu.MemFree(p));
    atomic_fetch_sub(&managed_alive, bytes);
}

static void fill_async(devptr p, size_t n, uint64_t v, uint64_t step, stream_t s)
{
    uint64_t n64 = n;
    void *a[] = {&p, &n64, &v, &step};
    CU(cu.LaunchKernel(k_fill, 1056, 1, 1, 256, 1, 1, 0, s, a, NULL));
}
static double fill(devptr p, size_t n, uint64_t v, uint64_t step)
{
    uint64_t t = now_ns();
    fill_async(p, n, v, step, main_stream);
    CU(cu.StreamSynchronize(main_stream));
    return since_us(t);
}
static double check(devptr p, size_t n, uint64_t v, uint64_t step, uint32_t *bad)
{
    uint64_t n64 = n;
    void *a[] = {&p, &n64, &v, &step, &bad_words};
    CU(cu.MemsetD8Async(bad_words, 0, 4, main_stream));
    CU(cu.StreamSynchronize(main_stream));
    uint64_t t = now_ns();
    CU(cu.LaunchKernel(k_check, 1056, 1, 1, 256, 1, 1, 0, main_stream, a, NULL));
    CU(cu.StreamSynchronize(main_stream));
    double us = since_us(t);
    CU(cu.MemcpyDtoH(bad, bad_words, 4));
    return us;
}
static size_t cpu_bad(devptr p, size_t n, uint64_t v)
{
    const volatile uint64_t *w = (const volatile uint64_t *)(uintptr_t)p;
    size_t bad = 0;
    for (size_t i = 0; i < n / 8; i++)
        bad += w[i] != v + i * 8;
    return bad;
}

static stream_t new_stream(void)
{
    stream_t s;
    CU(cu.StreamCreate(&s, NON_BLOCKING));
    return s;
}

static size_t free_bytes(void)
{
    size_t f, t;
    CU(cu.MemGetInfo(&f, &t));
    return f;
}

static void require_free(void)
{
    size_t f, t;
    CU(cu.MemGetInfo(&f, &t));
    const size_t needed = t / 10 * 9 < MIN_FREE_BYTES ? t / 10 * 9 : MIN_FREE_BYTES;
    if (f >= needed)
        return;
    char text[120];
    snprintf(text, sizeof text, "only %zu MiB of device memory free, need %zu MiB", f / MIB, needed / MIB);
    row("REFUSED", text, NULL);
    _exit(3);
}

static void open_cuda(void)
{
    void *mod;
    load_cuda();
    CU(cu.Init(0));
    CU(cu.DeviceGet(&device, 0));
    CU(cu.PrimaryCtxRetain(&ctx, device));
    CU(cu.CtxSetCurrent(ctx));
    require_free();
    CU(cu.ModuleLoadData(&mod, ptx));
    CU(cu.ModuleGetFunction(&k_fill, mod, "fill"));
    CU(cu.ModuleGetFunction(&k_check, mod, "check"));
    CU(cu.ModuleGetFunction(&k_empty, mod, "empty"));
    CU(cu.ModuleGetFunction(&k_setword, mod, "setword"));
    main_stream = new_stream();
    // Launch every kernel once: lazy loading would otherwise happen in the middle
    // of a measurement, or behind a closed gate.
    uint32_t bad, one = 1;
    devptr d;
    CU(cu.MemAlloc(&bad_words, 4096));
    d = bad_words + 1024;
    void *a[] = {&d, &one};
    fill(bad_words, 8, 5, 8);
    check(bad_words + 512, 8, 5, 8, &bad);
    CU(cu.LaunchKernel(k_setword, 1, 1, 1, 1, 1, 1, 0, main_stream, a, NULL));
    CU(cu.LaunchKernel(k_empty, 1, 1, 1, 1, 1, 1, 0, main_stream, NULL, NULL));
    CU(cu.LaunchKernel(k_empty, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    CU(cu.CtxSynchronize());
}

// ------------------------------------------------- direct ioctls (uvm device)

enum { U_MIGRATE = 51, U_UUID_TABLE = 64, U_VALIDATE = 72, U_DISCARD = 80 };
static int uvm_fd = -1;
static uint8_t gpu_uuid[16], cpu_uuid[16];

// find_uvm looks for the descriptor of this process that knows the managed
// range at p: libcuda holds two, and only one has the address space.
static int find_uvm(devptr p, size_t bytes)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    if (!d)
        return 0;
    while ((e = readdir(d)) && uvm_fd < 0) {
        char path[300], link[256];
        ssize_t n;
        int fd = atoi(e->d_name);
        if (e->d_name[0] == '.' || fd == dirfd(d))
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        n = readlink(path, link, sizeof link - 1);
        link[n < 0 ? 0 : n] = 0;
        const char *base = strrchr(link, '/');
        if (strcmp(base ? base + 1 : link, "nvidia-uvm"))
            continue;
        uint8_t v[24] = {0};
        uint64_t len = bytes;
        uint32_t s;
        memcpy(v, &p, 8), memcpy(v + 8, &len, 8), memset(v + 16, 0xff, 4);
        if (ioctl(fd, U_VALIDATE, v))
            continue;
        memcpy(&s, v + 16, 4);
        if (s == 0)
            uvm_fd = fd;
    }
    closedir(d);
    if (uvm_fd < 0) {
        row("direct ioctl", "skipped: no uvm descriptor of this process knows the range", NULL);
        return 0;
    }
    uint8_t *tab = calloc(512, 16), q[24] = {0};
    uuid_t_ u;
    int found = 0;
    uint64_t at = (uintptr_t)tab;
    if (!tab)
        die("out of memory");
    memcpy(q, &at, 8);
    CU(cu.DeviceGetUuid(&u, device));
    if (ioctl(uvm_fd, U_UUID_TABLE, q) == 0) {
        memcpy(cpu_uuid, tab, 16);
        for (int i = 1; i < 512 && !found; i++)
            found = !memcmp(tab + i * 16, u.bytes, 16);
        if (found)
            memcpy(gpu_uuid, u.bytes, 16);
        else // a partitioned card has another name there: take the first
            for (int i = 1; i < 512 && !found; i++)
                for (int k = 0; k < 16; k++)
                    if (tab[i * 16 + k]) {
                        memcpy(gpu_uuid, tab + i * 16, 16), found = 1;
                        break;
                    }
    }
    free(tab);
    if (!found) {
        row("direct ioctl", "skipped: the uvm device names no GPU", NULL);
        uvm_fd = -1;
    }
    return found;
}

static void uvm_migrate(devptr p, size_t bytes, int to_gpu, uint32_t flags)
{
    uint8_t m[80] = {0};
    uint64_t len = bytes;
    int32_t node = -1;
    uint32_t s;
    memcpy(m, &p, 8), memcpy(m + 8, &len, 8), memcpy(m + 16, to_gpu ? gpu_uuid : cpu_uuid, 16);
    memcpy(m + 32, &flags, 4), memcpy(m + 52, &node, 4);
    if (ioctl(uvm_fd, U_MIGRATE, m))
        die("UVM_MIGRATE ioctl: %s", strerror(errno));
    memcpy(&s, m + 72, 4);
    if (s)
        die("UVM_MIGRATE returned status 0x%x", s);
}

static uint32_t uvm_discard(devptr p, size_t bytes, uint64_t flags)
{
    uint8_t m[32] = {0};
    uint64_t len = bytes;
    uint32_t s;
    memcpy(m, &p, 8), memcpy(m + 8, &len, 8), memcpy(m + 16, &flags, 8);
    if (ioctl(uvm_fd, U_DISCARD, m))
        return ~0u;
    memcpy(&s, m + 24, 4);
    return s;
}

// --------------------------------------------------------------------- movers

enum { API, API_ONE_SYNC, IOCTL, IOCTL_ASYNC };
static const char *mode_name[] = {"api, sync each", "api, one sync", "ioctl", "ioctl async"};

// A mover migrates one range chunk by chunk, in a thread or in place.
typedef struct {
    devptr p;
    size_t bytes, chunk;
    int to_gpu, mode;
    stream_t stream;
    double *call_us, *done_us; // the call alone; until the chunk has arrived
    uint64_t *end_ns;
    size_t samples;
    atomic_size_t moved;
    atomic_int *done;      // set at the end
    pthread_barrier_t *go; // NULL: start at once
    uint64_t t0, t1;
    pthread_t thread;
} mover;

static void prefetch(devptr p, size_t n, int to_gpu, stream_t s)
{
    CU(cu.MemPrefetch(p, n, to_gpu ? gpu_location() : HOST, 0, s));
}

static void *mover_run(void *arg)
{
    mover *m = arg;
    CU(cu.CtxSetCurrent(ctx));
    if (m->go)
        pthread_barrier_wait(m->go);
    m->t0 = now_ns();
    for (size_t o = 0; o < m->bytes; o += m->chunk) {
        size_t n = m->bytes - o < m->chunk ? m->bytes - o : m->chunk;
        uint64_t t = now_ns();
        if (m->mode >= IOCTL)
            uvm_migrate(m->p + o, n, m->to_gpu, m->mode == IOCTL_ASYNC);
        else
            prefetch(m->p + o, n, m->to_gpu, m->stream);
        double call = since_us(t);
        if (m->mode == API)
            CU(cu.StreamSynchronize(m->stream));
        m->call_us[m->samples] = call;
        m->done_us[m->samples] = since_us(t);
        m->end_ns[m->samples++] = now_ns();
        if (m->mode == API || m->mode == IOCTL)
            atomic_fetch_add(&m->moved, n);
    }
    // An asynchronous ioctl has no completion of its own here: a synchronous one
    // over the same range moves nothing and waits for the copies.
    if (m->mode == IOCTL_ASYNC)
        uvm_migrate(m->p, m->bytes, m->to_gpu, 0);
    if (m->mode == API_ONE_SYNC)
        CU(cu.StreamSynchronize(m->stream));
    m->t1 = now_ns();
    if (m->done)
        atomic_store(m->done, 1);
    return NULL;
}

static void mover_init(mover *m, devptr p, size_t bytes, size_t chunk, int to_gpu, int mode)
{
    size_t n = bytes / chunk + 1;
    *m = (mover){.p = p, .bytes = bytes, .chunk = chunk, .to_gpu = to_gpu, .mode = mode, .stream = new_stream()};
    m->call_us = malloc(n * sizeof(double));
    m->done_us = malloc(n * sizeof(double));
    m->end_ns = malloc(n * sizeof(uint64_t));
    if (!m->call_us || !m->done_us || !m->end_ns)
        die("out of memory");
}
static void mover_free(mover *m)
{
    CU(cu.StreamDestroy(m->stream));
    free(m->call_us), free(m->done_us), free(m->end_ns);
}
static void mover_start(mover *m, pthread_barrier_t *go)
{
    m->go = go;
    if (pthread_create(&m->thread, NULL, mover_run, m))
        die("pthread_create: %s", strerror(errno));
}

// move migrates a range in place and reports; name NULL: no report.
static double move(const char *name, devptr p, size_t bytes, size_t chunk, int to_gpu, int mode)
{
    mover m;
    char label[100];
    mover_init(&m, p, bytes, chunk, to_gpu, mode);
    mover_run(&m);
    double us = (double)(m.t1 - m.t0) / 1e3;
    if (name) {
        snprintf(label, sizeof label, "%s %s, %zu MiB, %s", name, to_gpu ? "to GPU" : "to host", chunk / MIB,
                 mode_name[mode]);
        double call = quantile(m.call_us, m.samples, .5);
        if (mode == API_ONE_SYNC || mode == IOCTL_ASYNC)
            row(label, NULL, "gb_per_s", gbps(bytes, us), "call_median_us", call, NULL);
        else
            row(label, NULL, "gb_per_s", gbps(bytes, us), "call_median_us", call, "done_median_us",
                quantile(m.done_us, m.samples, .5), "done_p99_us", quantile(m.done_us, m.samples, .99), NULL);
    }
    mover_free(&m);
    return gbps(bytes, us);
}

// move_threads splits a range over threads.
static double move_threads(devptr p, size_t bytes, size_t chunk, int to_gpu, int threads)
{
    mover m[8];
    pthread_barrier_t go;
    uint64_t t0 = UINT64_MAX, t1 = 0;
    pthread_barrier_init(&go, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        mover_init(&m[i], p + bytes / (size_t)threads * (size_t)i, bytes / (size_t)threads, chunk, to_gpu, API);
        mover_start(&m[i], &go);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(m[i].thread, NULL);
        t0 = m[i].t0 < t0 ? m[i].t0 : t0;
        t1 = m[i].t1 > t1 ? m[i].t1 : t1;
    }
    for (int i = 0; i < threads; i++)
        mover_free(&m[i]);
    pthread_barrier_destroy(&go);
    return gbps(bytes, (double)(t1 - t0) / 1e3);
}

// -------------------------------------------------------------------- stage a

static void stage_a(void)
{
    static const size_t chunks[] = {2, 4, 8, 16, 32, 64, 256};
    size_t n = 2 * GIB;
    devptr p = mm_alloc(n);
    double us = fill(p, n, 1, 8);
    row("populate 2 GiB by a GPU kernel (first touch)", NULL, "gb_per_s", gbps(n, us), NULL);
    move("first eviction (host pages never existed)", p, n / 2, 16 * MIB, 0, API);
    move("first eviction (host pages never existed)", p + n / 2, n / 2, 64 * MIB, 0, API);
    move(NULL, p, n, 32 * MIB, 1, API); // warm both ways once more
    move(NULL, p, n, 32 * MIB, 0, API);
    for (int mode = API; mode <= IOCTL_ASYNC; mode++) {
        if (mode == IOCTL && !find_uvm(p, n))
            break;
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            move("move", p, n, chunks[i] * MIB, 1, mode);
            move("move", p, n, chunks[i] * MIB, 0, mode);
        }
    }
    size_t count = n / (16 * MIB);
    devptr ptrs[128];
    size_t sizes[128], idx[1] = {0};
    for (size_t i = 0; i < count; i++)
        ptrs[i] = p + i * 16 * MIB, sizes[i] = 16 * MIB;
    for (int to_gpu = 1; to_gpu >= 0; to_gpu--) {
        memloc l[1] = {to_gpu ? gpu_location() : HOST};
        uint64_t t = now_ns();
        CU(cu.MemPrefetchBatch(ptrs, sizes, count, l, idx, 1, 0, main_stream));
        double call = since_us(t);
        CU(cu.StreamSynchronize(main_stream));
        row(to_gpu ? "cuMemPrefetchBatchAsync of 128 x 16 MiB to GPU" : "cuMemPrefetchBatchAsync of 128 x 16 MiB to host",
            NULL, "gb_per_s", gbps(n, since_us(t)), "call_us", call, NULL);
    }
    uint32_t bad;
    check(p, n, 1, 8, &bad);
    row("check: contents after all moves", bad ? "BAD" : "ok", "bad_words", (double)bad, NULL);
    mm_free(p, n);
}

// -------------------------------------------------------------------- stage b

static int quiet_round; // a round that only warms up
// both_ways brings `in` to the GPU and `out` to the host at the same time and
// swaps the two. Rates are those until the first side was done.
static void both_ways(const char *name, devptr *in, devptr *out, size_t n, size_t chunk_in, size_t chunk_out,
                      int threads, int mode, double *lat, size_t *nlat)
{
    mover m[8];
    pthread_barrier_t go;
    pthread_barrier_init(&go, NULL, (unsigned)(2 * threads));
    size_t per = n / (size_t)threads;
    for (int i = 0; i < 2 * threads; i++) {
        int to_gpu = i < threads;
        mover_init(&m[i], (to_gpu ? *in : *out) + per * (size_t)(i % threads), per, to_gpu ? chunk_in : chunk_out,
                   to_gpu, mode);
    }
    for (int i = 0; i < 2 * threads; i++)
        mover_start(&m[i], &go);
    uint64_t t0 = UINT64_MAX, t1 = UINT64_MAX, end_in = 0, end_out = 0;
    for (int i = 0; i < 2 * threads; i++) {
        pthread_join(m[i].thread, NULL);
        uint64_t *e = i < threads ? &end_in : &end_out;
        t0 = m[i].t0 < t0 ? m[i].t0 : t0;
        *e = m[i].t1 > *e ? m[i].t1 : *e;
    }
    t1 = end_in < end_out ? end_in : end_out;
    size_t bytes[2] = {0, 0};
    for (int i = 0; i < 2 * threads; i++)
        for (size_t k = 0; k < m[i].samples; k++)
            if (m[i].end_ns[k] <= t1) {
                bytes[i < threads] += m[i].chunk;
                if (i < threads && lat)
                    lat[(*nlat)++] = m[i].done_us[k];
            }
    if (!quiet_round && name) {
        double us = (double)(t1 - t0) / 1e3;
        row(name, NULL, "to_gpu_gb_per_s", gbps(bytes[1], us), "to_host_gb_per_s", gbps(bytes[0], us),
            "total_gb_per_s", gbps(bytes[0] + bytes[1], us), "overlap_ms", us / 1e3, NULL);
    }
    for (int i = 0; i < 2 * threads; i++)
        mover_free(&m[i]);
    pthread_barrier_destroy(&go);
    devptr t = *in;
    *in = *out, *out = t;
}

static void stage_b(void)
{
    static const size_t chunks[] = {2, 8, 32};
    static double lat[4096];
    size_t n = 2 * GIB, half = n / 2, nlat = 0;
    char name[100];
    devptr p = mm_alloc(n), in = p, out = p + half;
    fill(p, n, 1, 8);
    move(NULL, p, n, 32 * MIB, 0, API);
    move(NULL, out, half, 32 * MIB, 1, API);
    int modes = find_uvm(p, n) ? 2 : 1;
    move("alone (baseline)", in, half, 8 * MIB, 1, API);
    move("alone (baseline)", in, half, 8 * MIB, 0, API);
    for (int m = 0; m < modes; m++)
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
            int mode = m ? IOCTL : API;
            nlat = 0;
            for (int round = 0; round < 3; round++) {
                snprintf(name, sizeof name, "8 MiB in beside %zu MiB out, %s", chunks[i], mode_name[mode]);
                quiet_round = round == 0;
                both_ways(name, &in, &out, half, 8 * MIB, chunks[i] * MIB, 1, mode, lat, &nlat);
            }
            snprintf(name, sizeof name, "latency of 8 MiB in beside %zu MiB out, %s", chunks[i], mode_name[mode]);
            row(name, NULL, "median_us", quantile(lat, nlat, .5), "p99_us", quantile(lat, nlat, .99), "max_us",
                quantile(lat, nlat, 1), "samples", (double)nlat, NULL);
        }
    for (int threads = 1; threads <= 2; threads++)
        for (int round = 0; round < 2; round++) {
            snprintf(name, sizeof name, "%d + %d threads, 16 MiB each way", threads, threads);
            both_ways(name, &in, &out, half, 16 * MIB, 16 * MIB, threads, API, NULL, NULL);
        }
    uint32_t bad;
    check(p, n, 1, 8, &bad);
    row("check: contents after all moves", bad ? "BAD" : "ok", "bad_words", (double)bad, NULL);
    mm_free(p, n);
}

// -------------------------------------------------------------------- stage c

static double discard(devptr p, size_t n)
{
    devptr a[1] = {p};
    size_t z[1] = {n};
    uint64_t t = now_ns();
    CU(cu.MemDiscardBatch(a, z, 1, 0, main_stream));
    CU(cu.StreamSynchronize(main_stream));
    return since_us(t);
}
static double discard_prefetch(devptr p, size_t n, int to_gpu)
{
    devptr a[1] = {p};
    size_t z[1] = {n}, idx[1] = {0};
    memloc l[1] = {to_gpu ? gpu_location() : HOST};
    uint64_t t = now_ns();
    CU(cu.MemDiscardAndPrefetchBatch(a, z, 1, l, idx, 1, 0, main_stream));
    CU(cu.StreamSynchronize(main_stream));
    return since_us(t);
}
static double timed_prefetch(devptr p, size_t n, int to_gpu)
{
    uint64_t t = now_ns();
    prefetch(p, n, to_gpu, main_stream);
    CU(cu.StreamSynchronize(main_stream));
    return since_us(t);
}

// dead_ranges measures ways to reuse a dead range, REPS different pieces each.
static void dead_ranges(devptr p, size_t size)
{
    enum { REPS = 4 };
    double v[8][REPS] = {{0}};
    char name[100];
    for (int i = 0; i < REPS; i++) {
        devptr q = p + (size_t)i * size;
        fill(q, size, 3, 8);
        v[0][i] = discard(q, size);                     // resident on the GPU
        v[1][i] = timed_prefetch(q, size, 1);           // keep it there, dead
        fill(q, size, 3, 8);
        v[2][i] = discard_prefetch(q, size, 1);         // both in one call
        fill(q, size, 3, 8);
        discard(q, size);
        v[3][i] = timed_prefetch(q, size, 0);           // drop: dead range to the host
        v[4][i] = timed_prefetch(q, size, 1);           // reference: a live copy in
        timed_prefetch(q, size, 0);
        v[5][i] = discard(q, size);                     // resident on the host
        v[6][i] = timed_prefetch(q, size, 1);           // populate without a transfer?
        timed_prefetch(q, size, 0);
        v[7][i] = discard_prefetch(q, size, 1);
    }
    static const char *what[] = {"discard, range on the GPU",
                                 "then prefetch to GPU",
                                 "discard-and-prefetch to GPU, range on the GPU",
                                 "discard, then this prefetch to host",
                                 "reference: prefetch to GPU of live host data",
                                 "discard, range on the host",
                                 "then prefetch to GPU (no bytes move?)",
                                 "discard-and-prefetch to GPU, range on the host"};
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "%zu MiB: %s", size / MIB, what[i]);
        double med = quantile(v[i], REPS, .5);
        row(name, NULL, "median_us", med, "equals_gb_per_s", gbps(size, med), NULL);
    }
}

static void stage_c(void)
{
    static const size_t sizes[] = {8, 64, 256}, resident[] = {2, 8, 32, 128, 512, 1024};
    size_t n = 2 * GIB, t = 64 * MIB;
    char name[100];
    devptr p = mm_alloc(n);
    fill(p, n, 1, 8);
    move(NULL, p, n, 32 * MIB, 0, API);
    move(NULL, p, n, 32 * MIB, 1, API);

    for (size_t i = 0; i < sizeof resident / sizeof resident[0]; i++) {
        double v[9];
        for (int k = 0; k < 9; k++)
            v[k] = timed_prefetch(p, resident[i] * MIB, 1);
        snprintf(name, sizeof name, "prefetch to GPU of %zu MiB already there", resident[i]);
        row(name, NULL, "median_us", quantile(v, 9, .5), "max_us", quantile(v, 9, 1), NULL);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        dead_ranges(p, sizes[i] * MIB);

    // Does data written after a discard survive? Each case starts from a live,
    // GPU-resident range with other contents (tag 3).
    static const char *what[] = {"discard, GPU write, prefetch to host, CPU reads",
                                 "discard, prefetch to GPU, GPU write, to host, CPU reads",
                                 "discard-and-prefetch, GPU write, to host, CPU reads",
                                 "on host: discard, GPU write, to host, CPU reads",
                                 "discard, GPU write of half of each block, to host, CPU reads that half",
                                 "discard, CPU write, prefetch to GPU, GPU reads",
                                 "discard, GPU write, to host, to GPU, GPU reads"};
    for (int k = 0; k < 7; k++) {
        uint64_t tag = 1000 + (uint64_t)k;
        double us = 0;
        size_t bad = 0;
        uint32_t bad32;
        timed_prefetch(p, t, 1);
        fill(p, t, 3, 8);
        if (k == 3)
            timed_prefetch(p, t, 0);
        if (k == 2)
            discard_prefetch(p, t, 1);
        else
            discard(p, t);
        if (k == 1)
            timed_prefetch(p, t, 1);
        if (k == 4) {
            for (size_t o = 0; o < t; o += 2 * MIB)
                us += fill(p + o, MIB, tag, 8);
        } else if (k == 5) {
            volatile uint64_t *w = (volatile uint64_t *)(uintptr_t)p;
            uint64_t t0 = now_ns();
            for (size_t i = 0; i < t / 8; i++)
                w[i] = tag + i * 8;
            us = since_us(t0);
        } else
            us = fill(p, t, tag, 8);
        timed_prefetch(p, t, k == 5);
        if (k == 6)
            timed_prefetch(p, t, 1);
        if (k == 5 || k == 6)
            check(p, t, tag, 8, &bad32), bad = bad32;
        else if (k == 4)
            for (size_t o = 0; o < t; o += 2 * MIB)
                bad += cpu_bad(p + o, MIB, tag);
        else
            bad = cpu_bad(p, t, tag);
        row(what[k], bad ? "DATA LOST" : "data kept", "write_us", us, "bad_words", (double)bad, NULL);
    }
    timed_prefetch(p, t, 1);
    row("reference: GPU write of 64 MiB resident", NULL, "write_us", fill(p, t, 3, 8), NULL);
    mm_free(p, n);
}

// -------------------------------------------------------------------- stage d

static struct {
    int (*Init)(void);
    int (*ByUUID)(const char *, void **);
    int (*MemoryInfo)(void *, unsigned long long *); // total, free, used
    void *dev;
} nvml;

static void open_nvml(void)
{
    void *h = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    uuid_t_ u;
    char name[64] = "GPU-";
    if (h) {
        *(void **)(&nvml.Init) = dlsym(h, "nvmlInit_v2");
        *(void **)(&nvml.ByUUID) = dlsym(h, "nvmlDeviceGetHandleByUUID");
        *(void **)(&nvml.MemoryInfo) = dlsym(h, "nvmlDeviceGetMemoryInfo");
    }
    if (!h || !nvml.Init || !nvml.ByUUID || !nvml.MemoryInfo || nvml.Init()) {
        row("nvml", "not available: only cuMemGetInfo is shown", NULL);
        return;
    }
    CU(cu.DeviceGetUuid(&u, device));
    for (int i = 0, o = 4; i < 16; i++)
        o += snprintf(name + o, sizeof name - (size_t)o, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      (unsigned char)u.bytes[i]);
    if (nvml.ByUUID(name, &nvml.dev)) {
        nvml.dev = NULL;
        row("nvml", "does not know the device: only cuMemGetInfo is shown", NULL);
    }
}

static double base_used[2];
static void show_used(const char *what, int base)
{
    size_t f, t;
    unsigned long long m[3] = {0};
    CU(cu.CtxSynchronize());
    CU(cu.MemGetInfo(&f, &t));
    double used = (double)(t - f) / (double)MIB, nv = 0;
    if (nvml.dev && nvml.MemoryInfo(nvml.dev, m) == 0)
        nv = (double)m[2] / (double)MIB;
    if (base)
        base_used[0] = used, base_used[1] = nv;
    row(what, NULL, "used_delta_mib", used - base_used[0], "nvml_used_delta_mib", nv - base_used[1], "used_mib", used,
        "nvml_used_mib", nv, NULL);
}

static void stage_d(void)
{
    size_t n = 2 * GIB;
    open_nvml();
    devptr p = mm_alloc(2 * MIB); // the first managed allocation sets things up
    fill(p, 2 * MIB, 1, 8);
    mm_free(p, 2 * MIB);
    show_used("start", 1);
    p = mm_alloc(n);
    show_used("after cuMemAllocManaged of 2 GiB", 0);
    fill(p, n, 1, 8);
    show_used("after a kernel wrote all of it", 0);
    move(NULL, p, n, 16 * MIB, 0, API);
    show_used("after evicting all to the host", 0);
    usleep(200000);
    show_used("0.2 s later", 0);
    devptr d = 0;
    CU(cu.MemAlloc(&d, n));
    show_used("after cuMemAlloc of 2 GiB on top", 0);
    CU(cu.MemFree(d));
    show_used("after cuMemFree of it", 0);
    move(NULL, p, n, 16 * MIB, 1, API);
    show_used("after prefetching all to the GPU", 0);
    discard(p, n);
    show_used("after cuMemDiscardBatchAsync of all", 0);
    timed_prefetch(p, n, 0);
    show_used("after prefetching the discarded range to the host", 0);
    fill(p, n, 1, 8);
    show_used("after a kernel wrote all of it again", 0);
    if (find_uvm(p, n))
        for (uint64_t flags = 0; flags < 2; flags++) {
            char name[60];
            uint64_t t = now_ns();
            uint32_t s = uvm_discard(p, n, flags);
            row(flags ? "direct UVM_DISCARD of 2 GiB, flags 1 (unmap)" : "direct UVM_DISCARD of 2 GiB, flags 0",
                s ? "refused" : "ok", "us", since_us(t), "status", (double)s, NULL);
            snprintf(name, sizeof name, "after the direct discard, flags %d", (int)flags);
            show_used(name, 0);
            timed_prefetch(p, n, 1);
            fill(p, n, 1, 8);
        }
    CU(cu.MemAdvise(p, n, READ_MOSTLY, gpu_location()));
    timed_prefetch(p, n, 0);
    show_used("read-mostly, prefetched to the host (a copy there)", 0);
    CU(cu.MemAdvise(p, n, UNSET_READ_MOSTLY, gpu_location()));
    show_used("after unset read-mostly", 0);
    mm_free(p, n);
    show_used("after cuMemFree of the managed buffer", 0);
}

// ------------------------------------------------------------ gates (e and f)

// words[0] is the gate that streams wait on, words[16] is what kernels write.
static volatile uint32_t *words;
static devptr words_dev;
static uint32_t gate_value; // a stream waits until words[0] >= gate_value

static void open_gate(void)
{
    if (words)
        __atomic_store_n(&words[0], gate_value, __ATOMIC_SEQ_CST);
}

// The watchdog opens the gate when a call has not returned in time, so that a
// call that waits for the gate is reported instead of hanging the machine.
static atomic_ullong watch_deadline;
static atomic_int watch_fired;
static void *watchdog(void *arg)
{
    (void)arg;
    for (;;) {
        unsigned long long d = atomic_load(&watch_deadline);
        if (d && now_ns() > d) {
            atomic_store(&watch_fired, 1);
            atomic_store(&watch_deadline, 0);
            open_gate();
        }
        usleep(2000);
    }
    return NULL;
}
static void arm(void)
{
    atomic_store(&watch_fired, 0);
    atomic_store(&watch_deadline, now_ns() + (uint64_t)WATCHDOG_MS * 1000000ull);
}
static int disarm(void) // 1: it had fired
{
    atomic_store(&watch_deadline, 0);
    return atomic_load(&watch_fired);
}

static void gates_init(void)
{
    void *h;
    pthread_t t;
    CU(cu.MemHostAlloc(&h, 4096, HOST_PORTABLE_MAPPED));
    memset(h, 0, 4096);
    words = h;
    CU(cu.MemHostGetDevicePointer(&words_dev, h, 0));
    if (pthread_create(&t, NULL, watchdog, NULL))
        die("pthread_create: %s", strerror(errno));
}
static void close_gate(stream_t s)
{
    gate_value++;
    CU(cu.StreamWaitValue32(s, words_dev, gate_value, WAIT_GEQ));
}
static void launch_empty(stream_t s) { CU(cu.LaunchKernel(k_empty, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL)); }
static void launch_setword(uint32_t v, stream_t s)
{
    devptr d = words_dev + 64;
    void *a[] = {&d, &v};
    CU(cu.LaunchKernel(k_setword, 1, 1, 1, 1, 1, 1, 0, s, a, NULL));
}

// -------------------------------------------------------------------- stage e

static void call_cost(const char *stream_name, stream_t s)
{
    enum { N = 4000 };
    static double v[N];
    static const char *what[] = {"cuLaunchKernel (empty)", "cuStreamWriteValue32, flag 1", "cuStreamWriteValue32, flag 0",
                                 "cuStreamWaitValue32, satisfied", "cuEventRecord"};
    char name[100];
    event_t ev;
    CU(cu.EventCreate(&ev, 2)); // no timing
    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < N; i++) {
            uint64_t t = now_ns();
            switch (k) {
            case 0: launch_empty(s); break;
            case 1: CU(cu.StreamWriteValue32(s, words_dev + 128, (uint32_t)i, WRITE_NO_BARRIER)); break;
            case 2: CU(cu.StreamWriteValue32(s, words_dev + 128, (uint32_t)i, 0)); break;
            case 3: CU(cu.StreamWaitValue32(s, words_dev + 192, 0, WAIT_GEQ)); break;
            default: CU(cu.EventRecord(ev, s));
            }
            v[i] = since_us(t);
            if (i % 100 == 99)
                CU(cu.StreamSynchronize(s));
        }
        snprintf(name, sizeof name, "CPU cost of %s, %s", what[k], stream_name);
        row(name, NULL, "median_us", quantile(v, N, .5), "p99_us", quantile(v, N, .99), NULL);
    }
}

// kernel_rows runs 10000 empty kernels with memory operations between them: end
// to end, where the CPU may be the limit, and queued behind a gate in batches
// of 200 (well below the launch queue's depth), which shows the GPU's side.
static void kernel_rows(void)
{
    enum { N = 10000, BATCH = 200 };
    static const char *what[] = {"plain", "a write after each", "a write after every 16th", "a satisfied wait before each",
                                 "wait before and write after each", "an event record after each"};
    event_t a, b, ev;
    float ms;
    char name[100];
    CU(cu.EventCreate(&a, 0));
    CU(cu.EventCreate(&b, 0));
    CU(cu.EventCreate(&ev, 2));
    stream_t s = main_stream;
    for (int k = 0; k < 6; k++) {
        double e2e = 0, gpu = 0;
        int blocked = 0, behind_gate = 0;
        for (int gated = 0; gated < 2; gated++) {
            uint64_t t = now_ns();
            for (int done = 0; done < N && !blocked;) {
                if (gated) {
                    close_gate(s);
                    arm();
                    CU(cu.EventRecord(a, s));
                }
                int until = gated ? done + BATCH : N;
                for (; done < until; done++) {
                    if (k == 3 || k == 4)
                        CU(cu.StreamWaitValue32(s, words_dev + 192, 0, WAIT_GEQ));
                    launch_empty(s);
                    if (k == 1 || k == 4 || (k == 2 && done % 16 == 15))
                        CU(cu.StreamWriteValue32(s, words_dev + 128, (uint32_t)done, WRITE_NO_BARRIER));
                    if (k == 5)
                        CU(cu.EventRecord(ev, s));
                }
                if (gated) {
                    CU(cu.EventRecord(b, s));
                    blocked += disarm();
                    open_gate();
                    CU(cu.StreamSynchronize(s));
                    CU(cu.EventElapsedTime(&ms, a, b));
                    gpu += (double)ms * 1e3;
                    behind_gate += BATCH;
                }
            }
            CU(cu.StreamSynchronize(s));
            if (!gated)
                e2e = since_us(t);
        }
        snprintf(name, sizeof name, "10000 empty kernels, %s", what[k]);
        row(name, blocked ? "submission BLOCKED behind the gate: gpu value is not valid" : NULL, "end_to_end_us_each",
            e2e / N, "gpu_us_each", behind_gate ? gpu / behind_gate : 0, NULL);
    }
}

static void gate_latency(void)
{
    enum { N = 300 };
    static double v[N];
    for (int gated = 1; gated >= 0; gated--) {
        int late = 0;
        for (uint32_t i = 0; i < N; i++) {
            uint32_t v32 = (uint32_t)(gated ? 1000000 : 2000000) + i;
            uint64_t t = 0;
            if (gated) {
                close_gate(main_stream);
                launch_setword(v32, main_stream);
                usleep(150); // the GPU's poll of the word is under way
                t = now_ns();
                open_gate();
            } else {
                t = now_ns();
                launch_setword(v32, main_stream);
            }
            while (__atomic_load_n(&words[16], __ATOMIC_ACQUIRE) != v32)
                if (since_us(t) > 1e6) {
                    late++;
                    break;
                }
            v[i] = since_us(t);
            CU(cu.StreamSynchronize(main_stream));
            if (late > 3)
                die("the kernel behind the gate did not run within 1 s");
        }
        row(gated ? "gate opened by the CPU to the word of the kernel behind it" : "reference: cuLaunchKernel to the kernel's word",
            NULL, "median_us", quantile(v, N, .5), "p99_us", quantile(v, N, .99), NULL);
    }
    // The other direction: how soon the CPU sees a stream's WriteValue.
    for (uint32_t i = 0; i < N; i++) {
        uint32_t v32 = 3000000 + i;
        uint64_t t = now_ns();
        CU(cu.StreamWriteValue32(main_stream, words_dev + 64, v32, WRITE_NO_BARRIER));
        while (__atomic_load_n(&words[16], __ATOMIC_ACQUIRE) != v32)
            if (since_us(t) > 1e6)
                die("a WriteValue was not seen within 1 s");
        v[i] = since_us(t);
    }
    row("cuStreamWriteValue32 on an idle stream to the CPU seeing it", NULL, "median_us", quantile(v, N, .5), "p99_us",
        quantile(v, N, .99), NULL);
}

static void stage_e(void)
{
    gates_init();
    call_cost("NULL stream", NULL);
    call_cost("non-blocking stream", main_stream);
    kernel_rows();
    gate_latency();
}

// -------------------------------------------------------------------- stage f

typedef struct {
    const char *name;
    int null_stream; // the gated stream is the legacy NULL stream
    int inside;      // what the second thread is inside
} gate_case;
enum { NOBODY, IN_STREAM_SYNC, IN_MEMCPY, IN_CTX_SYNC, IN_EVENT_SYNC, IN_LAUNCH };

static const gate_case gate_cases[] = {
    {"own stream gated, nobody waits", 0, NOBODY},
    {"NULL stream gated, nobody waits", 1, NOBODY},
    {"own gated, thread in cuStreamSynchronize", 0, IN_STREAM_SYNC},
    {"NULL gated, thread in cuStreamSynchronize", 1, IN_STREAM_SYNC},
    {"NULL gated, thread in cuMemcpyDtoH", 1, IN_MEMCPY},
    {"NULL gated, thread in cuCtxSynchronize", 1, IN_CTX_SYNC},
    {"own gated, thread in cuEventSynchronize", 0, IN_EVENT_SYNC},
    {"NULL gated, launch queue full", 1, IN_LAUNCH},
};
#define GATE_CASES ((int)(sizeof gate_cases / sizeof gate_cases[0]))

static struct {
    stream_t side, own; // the caller's stream; the stream that is gated
    devptr managed, dev;
    size_t managed_bytes;
    void *pinned;
    event_t ev, own_ev;
    alloc_prop prop;
    devptr reserved;
} f;

static struct {
    const gate_case *c;
    atomic_int entered, left;
    atomic_uint launches;
} waiter;

static void *waiter_run(void *arg)
{
    char host[4096];
    stream_t s = waiter.c->null_stream ? NULL : f.own;
    (void)arg;
    CU(cu.CtxSetCurrent(ctx));
    atomic_store(&waiter.entered, 1);
    switch (waiter.c->inside) {
    case IN_STREAM_SYNC: CU(cu.StreamSynchronize(s)); break;
    case IN_MEMCPY: CU(cu.MemcpyDtoH(host, f.dev, sizeof host)); break;
    case IN_CTX_SYNC: CU(cu.CtxSynchronize()); break;
    case IN_EVENT_SYNC: CU(cu.EventSynchronize(f.own_ev)); break;
    case IN_LAUNCH:
        for (int i = 0; i < 6000; i++) {
            launch_empty(s);
            atomic_fetch_add(&waiter.launches, 1);
        }
        break;
    }
    atomic_store(&waiter.left, 1);
    return NULL;
}

enum {
    C_EVENT, C_EVENT_SYNC, C_LAUNCH, C_COPY, C_STREAM_SYNC, C_TO_GPU, C_TO_HOST, C_DISCARD, C_DISCARD_PREFETCH, C_ADVISE,
    C_IOCTL, C_TO_GPU_NOSYNC, C_MEMGETINFO, C_MEMOPS, C_STREAM_CREATE, C_EVENT_CREATE, C_VMM, C_ALLOC_MANAGED, C_ALLOC,
    C_HOST_ALLOC, C_ALLOC_BIG, C_GATED_LAUNCH, C_FREE_MANAGED, C_FREE, C_FREE_HOST, CALLS
};
static const char *call_name[CALLS] = {
    "cuEventRecord + cuEventQuery, other stream", "cuEventRecord + cuEventSynchronize, other stream",
    "cuLaunchKernel + sync, other stream", "cuMemcpyHtoDAsync pinned + sync, other stream",
    "cuStreamSynchronize, other idle stream", "cuMemPrefetchAsync 8 MiB to GPU + sync",
    "cuMemPrefetchAsync 8 MiB to host + sync", "cuMemDiscardBatchAsync 8 MiB + sync",
    "cuMemDiscardAndPrefetchBatchAsync 8 MiB to GPU + sync", "cuMemAdvise set + unset read-mostly",
    "direct UVM_MIGRATE 8 MiB to GPU and back", "cuMemPrefetchAsync 8 MiB to GPU, call only", "cuMemGetInfo",
    "cuStreamWriteValue32 + sync, other stream", "cuStreamCreate", "cuEventCreate",
    "VMM create, map, set access, unmap, release 2 MiB", "cuMemAllocManaged 16 MiB", "cuMemAlloc 16 MiB",
    "cuMemHostAlloc 1 MiB", "cuMemAlloc 1 GiB", "cuLaunchKernel on the gated stream", "cuMemFree of managed memory",
    "cuMemFree of device memory", "cuMemFreeHost"};

static devptr freed_managed, freed_dev, freed_big;
static void *freed_host;

static CUresult one_call(int call, stream_t gated)
{
    devptr p[1] = {f.managed};
    size_t z[1] = {8 * MIB}, idx[1] = {0}, a, b;
    memloc l[1] = {gpu_location()};
    access_desc access = {gpu_location(), 3};
    unsigned long long h;
    stream_t s;
    event_t e;
    CUresult r = 0;
#define DO(x)                                                                                                          \
    do {                                                                                                               \
        if ((r = (x)))                                                                                                 \
            return r;                                                                                                  \
    } while (0)
    switch (call) {
    case C_EVENT:
        DO(cu.EventRecord(f.ev, f.side));
        for (uint64_t t = now_ns(); (r = cu.EventQuery(f.ev)) == 600 && since_us(t) < 3e6;) // 600: not ready
            ;
        return r;
    case C_EVENT_SYNC: DO(cu.EventRecord(f.ev, f.side)); return cu.EventSynchronize(f.ev);
    case C_LAUNCH: launch_empty(f.side); break;
    case C_COPY: DO(cu.MemcpyHtoDAsync(f.dev, f.pinned, 4096, f.side)); break;
    case C_STREAM_SYNC: break;
    case C_TO_GPU: DO(cu.MemPrefetch(f.managed, 8 * MIB, gpu_location(), 0, f.side)); break;
    case C_TO_GPU_NOSYNC: return cu.MemPrefetch(f.managed, 8 * MIB, gpu_location(), 0, f.side);
    case C_TO_HOST: DO(cu.MemPrefetch(f.managed, 8 * MIB, HOST, 0, f.side)); break;
    case C_DISCARD: DO(cu.MemDiscardBatch(p, z, 1, 0, f.side)); break;
    case C_DISCARD_PREFETCH: DO(cu.MemDiscardAndPrefetchBatch(p, z, 1, l, idx, 1, 0, f.side)); break;
    case C_ADVISE:
        DO(cu.MemAdvise(f.managed + 32 * MIB, 8 * MIB, READ_MOSTLY, gpu_location()));
        return cu.MemAdvise(f.managed + 32 * MIB, 8 * MIB, UNSET_READ_MOSTLY, gpu_location());
    case C_IOCTL:
        if (uvm_fd < 0)
            return 801;
        uvm_migrate(f.managed + 16 * MIB, 8 * MIB, 1, 0);
        uvm_migrate(f.managed + 16 * MIB, 8 * MIB, 0, 0);
        return 0;
    case C_MEMGETINFO: return cu.MemGetInfo(&a, &b);
    case C_MEMOPS: DO(cu.StreamWriteValue32(f.side, words_dev + 256, 1, WRITE_NO_BARRIER)); break;
    case C_STREAM_CREATE: return cu.StreamCreate(&s, NON_BLOCKING);
    case C_EVENT_CREATE: return cu.EventCreate(&e, 2);
    case C_VMM:
        DO(cu.MemCreate(&h, 2 * MIB, &f.prop, 0));
        DO(cu.MemMap(f.reserved, 2 * MIB, 0, h, 0));
        DO(cu.MemSetAccess(f.reserved, 2 * MIB, &access, 1));
        DO(cu.MemUnmap(f.reserved, 2 * MIB));
        return cu.MemRelease(h);
    case C_ALLOC_MANAGED:
        freed_managed = mm_alloc(16 * MIB);
        return 0;
    case C_ALLOC: return cu.MemAlloc(&freed_dev, 16 * MIB);
    case C_ALLOC_BIG: return cu.MemAlloc(&freed_big, GIB);
    case C_HOST_ALLOC: return cu.MemHostAlloc(&freed_host, MIB, HOST_PORTABLE_MAPPED);
    case C_GATED_LAUNCH: launch_empty(gated); return 0;
    case C_FREE_MANAGED:
        if (!freed_managed)
            return 0;
        DO(cu.MemFree(freed_managed));
        atomic_fetch_sub(&managed_alive, 16 * MIB);
        freed_managed = 0;
        return 0;
    case C_FREE:
        if (!freed_dev)
            return 0;
        DO(cu.MemFree(freed_dev));
        freed_dev = 0;
        return 0;
    case C_FREE_HOST:
        if (!freed_host)
            return 0;
        DO(cu.MemFreeHost(freed_host));
        freed_host = NULL;
        return 0;
    }
    return cu.StreamSynchronize(f.side);
}

static void release_leftovers(void) // with the gate open
{
    one_call(C_FREE_MANAGED, NULL);
    one_call(C_FREE, NULL);
    one_call(C_FREE_HOST, NULL);
    if (freed_big)
        CU(cu.MemFree(freed_big));
    freed_big = 0;
}

static pthread_t waiter_thread;
static void gate_up(const gate_case *c)
{
    stream_t s = c->null_stream ? NULL : f.own;
    waiter.c = c;
    atomic_store(&waiter.entered, 0);
    atomic_store(&waiter.left, 0);
    atomic_store(&waiter.launches, 0);
    arm(); // even closing the gate must not hang
    close_gate(s);
    launch_empty(s);
    CU(cu.EventRecord(f.own_ev, s));
    if (c->inside != NOBODY) {
        if (pthread_create(&waiter_thread, NULL, waiter_run, NULL))
            die("pthread_create: %s", strerror(errno));
        while (!atomic_load(&waiter.entered))
            usleep(200);
        unsigned seen;
        do { // in the launch case until no launch went through for 30 ms
            seen = atomic_load(&waiter.launches);
            usleep(30000);
        } while (seen != atomic_load(&waiter.launches) && !atomic_load(&watch_fired));
    }
    if (disarm())
        row(c->name, "the gate had to be opened while it was set up", NULL);
}
static void gate_down(const gate_case *c)
{
    open_gate();
    if (c->inside != NOBODY)
        pthread_join(waiter_thread, NULL);
    CU(cu.CtxSynchronize());
}

static void stage_f(void)
{
    int blocked_alone[2][CALLS] = {{0}};
    gates_init();
    f.side = new_stream();
    f.own = new_stream();
    f.managed_bytes = 64 * MIB;
    f.managed = mm_alloc(f.managed_bytes);
    CU(cu.MemAlloc(&f.dev, 1 * MIB));
    CU(cu.MemHostAlloc(&f.pinned, 4096, HOST_PORTABLE_MAPPED));
    CU(cu.EventCreate(&f.ev, 2));
    CU(cu.EventCreate(&f.own_ev, 2));
    f.prop = (alloc_prop){.type = 1, .location = gpu_location()};
    CU(cu.AddressReserve(&f.reserved, 2 * MIB, 2 * MIB, 0, 0));
    fill(f.managed, f.managed_bytes, 1, 8);
    find_uvm(f.managed, f.managed_bytes);
    // Everything once without a gate: first calls set things up, and a call that
    // fails here would fail below for a reason that has nothing to do with gates.
    for (int k = 0; k < CALLS; k++) {
        CUresult r = one_call(k, f.own);
        if (r)
            row(call_name[k], cu_err(r), NULL);
    }
    release_leftovers();
    CU(cu.CtxSynchronize());

    for (int c = 0; c < GATE_CASES; c++) {
        const gate_case *g = &gate_cases[c];
        char name[100], text[120];
        int ok = 0, blocked = 0;
        double slowest = 0;
        gate_up(g);
        if (g->inside == IN_LAUNCH)
            row(g->name,
                atomic_load(&waiter.left) ? "6000 launches went through: the queue did not fill"
                                          : "the launching thread is blocked",
                "launches", (double)atomic_load(&waiter.launches), NULL);
        else if (g->inside != NOBODY && atomic_load(&waiter.left))
            row(g->name, "the waiting thread came back although the gate is closed", NULL);
        for (int k = 0; k < CALLS; k++) {
            // The queue of the gated stream is full there: that launch must block.
            if (k == C_GATED_LAUNCH && g->inside == IN_LAUNCH)
                continue;
            if (g->inside != NOBODY && blocked_alone[g->null_stream][k])
                continue; // already known to wait for the gated stream itself
            arm();
            uint64_t t = now_ns();
            CUresult r = one_call(k, g->null_stream ? NULL : f.own);
            double us = since_us(t);
            int b = disarm();
            if (b) {
                blocked++;
                if (g->inside == NOBODY)
                    blocked_alone[g->null_stream][k] = 1;
                gate_down(g);
                gate_up(g);
            } else
                ok++;
            snprintf(name, sizeof name, "%s: %s", g->name, call_name[k]);
            if (b)
                snprintf(text, sizeof text, "BLOCKED until the watchdog opened the gate%s%s", r ? ", then " : "",
                         r ? cu_err(r) : "");
            else
                snprintf(text, sizeof text, "%s", r ? cu_err(r) : "ok");
            quiet = !b && !r && us < 50e3; // the table names only what is worth reading
            row(name, text, "us", us, NULL);
            quiet = 0;
            slowest = !b && us > slowest ? us : slowest;
        }
        gate_down(g);
        release_leftovers();
        snprintf(text, sizeof text, "%d calls returned, %d BLOCKED%s", ok, blocked,
                 g->inside != NOBODY ? " (left out: those that block with nobody waiting)" : "");
        row(g->name, text, "slowest_returned_us", slowest, NULL);
    }
}

// -------------------------------------------------------------------- stage g

static void advice_row(const char *what, int advice, memloc where, int madvise_flag)
{
    size_t n = GIB;
    char text[120] = "";
    devptr p = mm_alloc(n);
    fill(p, n, 1, 8); // first touch on the GPU, before advice could place it on the host
    if (madvise_flag && madvise((void *)(uintptr_t)p, n, madvise_flag))
        snprintf(text, sizeof text, "madvise refused: %s", strerror(errno));
    if (advice) {
        CUresult r = cu.MemAdvise(p, n, advice, where);
        if (r)
            snprintf(text, sizeof text, "cuMemAdvise refused: %s", cu_err(r));
    }
    double first = move(NULL, p, n, 16 * MIB, 0, API), back = move(NULL, p, n, 16 * MIB, 1, API),
           second = move(NULL, p, n, 16 * MIB, 0, API);
    move(NULL, p, n, 16 * MIB, 1, API);
    uint32_t bad;
    double read_us = check(p, n, 1, 8, &bad);
    if (bad)
        snprintf(text, sizeof text, "CONTENTS BAD: %u words", bad);
    row(what, text, "first_evict_gb_per_s", first, "to_gpu_gb_per_s", back, "second_evict_gb_per_s", second,
        "gpu_read_gb_per_s", gbps(n, read_us), NULL);
    mm_free(p, n);
}

static void read_mostly(void)
{
    size_t n = GIB, chunk = 16 * MIB;
    enum { CHUNKS = 64 };
    double set_us[CHUNKS], in_us[CHUNKS], unset_us[CHUNKS];
    uint32_t bad;
    double us;
    devptr p = mm_alloc(n);
    fill(p, n, 7, 8);
    move(NULL, p, n, chunk, 0, API);
    size_t f0 = free_bytes();
    uint64_t t = now_ns();
    CU(cu.MemAdvise(p, n, READ_MOSTLY, gpu_location()));
    row("read-mostly: set on 1 GiB resident on the host", NULL, "us", since_us(t), NULL);
    move("read-mostly: duplicate", p, n, chunk, 1, API);
    us = check(p, n, 7, 8, &bad);
    row("read-mostly: GPU reads the duplicate", bad ? "BAD" : "ok", "gb_per_s", gbps(n, us), "free_delta_mib",
        ((double)free_bytes() - (double)f0) / (double)MIB, NULL);
    t = now_ns();
    CU(cu.MemAdvise(p, n, UNSET_READ_MOSTLY, gpu_location()));
    us = since_us(t);
    row("read-mostly: unset on 1 GiB (drops the GPU copy?)", NULL, "us", us, "free_delta_mib",
        ((double)free_bytes() - (double)f0) / (double)MIB, NULL);
    us = timed_prefetch(p, n, 1);
    row("read-mostly: prefetch to GPU after the unset", NULL, "us", us, "equals_gb_per_s", gbps(n, us), NULL);
    check(p, n, 7, 8, &bad);
    row("read-mostly: contents after unset", bad ? "BAD" : "ok", "bad_words", (double)bad, NULL);

    // Evicting a range that is still read-mostly and duplicated.
    move(NULL, p, n, chunk, 0, API);
    CU(cu.MemAdvise(p, n, READ_MOSTLY, gpu_location()));
    move(NULL, p, n, chunk, 1, API);
    size_t f1 = free_bytes();
    move("read-mostly: eviction of a duplicated range", p, n, chunk, 0, API);
    us = check(p, n, 7, 8, &bad);
    row("read-mostly: GPU reads after that eviction (fast = copy stayed)", bad ? "BAD" : "ok", "gb_per_s", gbps(n, us),
        "free_delta_mib", ((double)free_bytes() - (double)f1) / (double)MIB, NULL);
    CU(cu.MemAdvise(p, n, UNSET_READ_MOSTLY, gpu_location()));

    // A range written by the GPU: what setting read-mostly and making the host copy costs, then dropping it.
    move(NULL, p, n, chunk, 1, API);
    fill(p, n, 9, 8);
    CU(cu.MemAdvise(p, n, READ_MOSTLY, gpu_location()));
    move("read-mostly: host copy of GPU-resident data", p, n, chunk, 0, API);
    us = check(p, n, 9, 8, &bad);
    row("read-mostly: GPU reads beside that copy", bad ? "BAD" : "ok", "gb_per_s", gbps(n, us), NULL);
    t = now_ns();
    CU(cu.MemAdvise(p, n, UNSET_READ_MOSTLY, gpu_location()));
    us = since_us(t);
    check(p, n, 9, 8, &bad);
    row("read-mostly: unset then drops which copy; contents", bad ? "BAD" : "ok", "us", us, NULL);

    // Chunk by chunk, as an evictor would use it.
    move(NULL, p, n, chunk, 0, API);
    for (size_t i = 0; i < CHUNKS; i++) {
        t = now_ns();
        CU(cu.MemAdvise(p + i * chunk, chunk, READ_MOSTLY, gpu_location()));
        set_us[i] = since_us(t);
        in_us[i] = timed_prefetch(p + i * chunk, chunk, 1);
    }
    for (size_t i = 0; i < CHUNKS; i++) {
        t = now_ns();
        CU(cu.MemAdvise(p + i * chunk, chunk, UNSET_READ_MOSTLY, gpu_location()));
        unset_us[i] = since_us(t);
    }
    row("read-mostly by 16 MiB: set / prefetch to GPU / unset", NULL, "set_us", quantile(set_us, CHUNKS, .5),
        "prefetch_us", quantile(in_us, CHUNKS, .5), "unset_us", quantile(unset_us, CHUNKS, .5), "unset_p99_us",
        quantile(unset_us, CHUNKS, .99), NULL);
    check(p, n, 9, 8, &bad);
    row("read-mostly by 16 MiB: contents", bad ? "BAD" : "ok", "bad_words", (double)bad, NULL);
    mm_free(p, n);
}

static void stage_g(void)
{
    char name[100];
    for (int threads = 1; threads <= 4; threads *= 2) {
        size_t n = 2 * GIB;
        devptr p = mm_alloc(n);
        fill(p, n, 1, 8);
        double first = move_threads(p, n, 16 * MIB, 0, threads), in = move_threads(p, n, 16 * MIB, 1, threads),
               second = move_threads(p, n, 16 * MIB, 0, threads);
        snprintf(name, sizeof name, "%d threads, 16 MiB", threads);
        row(name, NULL, "first_evict_gb_per_s", first, "to_gpu_gb_per_s", in, "second_evict_gb_per_s", second, NULL);
        mm_free(p, n);
    }
    advice_row("1 thread, no advice", 0, HOST, 0);
    advice_row("1 thread, madvise MADV_HUGEPAGE", 0, HOST, MADV_HUGEPAGE);
    advice_row("1 thread, preferred location host", PREFERRED, HOST, 0);
    advice_row("1 thread, preferred location GPU", PREFERRED, gpu_location(), 0);
    advice_row("1 thread, accessed by GPU", ACCESSED_BY, gpu_location(), 0);
    advice_row("1 thread, accessed by host", ACCESSED_BY, HOST, 0);
    {   // Host pages made by the CPU before the GPU ever saw the range.
        size_t n = GIB;
        devptr p = mm_alloc(n);
        uint64_t t = now_ns();
        for (size_t o = 0; o < n; o += 4096)
            *(volatile uint64_t *)(uintptr_t)(p + o) = o;
        double us = since_us(t);
        double in = move(NULL, p, n, 16 * MIB, 1, API), out = move(NULL, p, n, 16 * MIB, 0, API);
        row("1 thread, pages first touched by the CPU", NULL, "cpu_touch_gb_per_s", gbps(n, us), "to_gpu_gb_per_s", in,
            "evict_gb_per_s", out, NULL);
        mm_free(p, n);
        // Host pages made by a prefetch to the host of a range nobody touched.
        p = mm_alloc(n);
        us = timed_prefetch(p, n, 0);
        in = move(NULL, p, n, 16 * MIB, 1, API);
        out = move(NULL, p, n, 16 * MIB, 0, API);
        row("1 thread, untouched range prefetched to host first", NULL, "populate_gb_per_s", gbps(n, us),
            "to_gpu_gb_per_s", in, "evict_gb_per_s", out, NULL);
        mm_free(p, n);
    }
    read_mostly();
}

// -------------------------------------------------------------------- stage h

static void stage_h(void)
{
    size_t n = 512 * MIB;
    uint32_t bad;
    devptr p = mm_alloc(n);
    row("first touch by a GPU write, never populated", NULL, "gb_per_s", gbps(n, fill(p, n, 1, 8)), NULL);
    row("reference: GPU write, resident", NULL, "gb_per_s", gbps(n, fill(p, n, 1, 8)), NULL);
    row("reference: GPU read, resident", NULL, "gb_per_s", gbps(n, check(p, n, 1, 8, &bad)), NULL);
    timed_prefetch(p, n, 0);
    row("GPU write faults in a host-resident range", NULL, "gb_per_s", gbps(n, fill(p, n, 1, 8)), NULL);
    timed_prefetch(p, n, 0);
    double us = check(p, n, 1, 8, &bad);
    row("GPU read faults in a host-resident range", bad ? "BAD" : "ok", "gb_per_s", gbps(n, us), NULL);
    timed_prefetch(p, n, 0);
    us = fill(p, n, 1, 64 << 10);
    row("GPU writes one word every 64 KiB of a host-resident range", NULL, "range_gb_per_s", gbps(n, us), "ms", us / 1e3,
        NULL);
    timed_prefetch(p, n, 0);
    us = fill(p, n, 1, 2 << 20);
    row("GPU writes one word every 2 MiB of a host-resident range", NULL, "us_per_block", us / (double)(n / (2 * MIB)),
        "ms", us / 1e3, NULL);
    timed_prefetch(p, n, 0);
    uint64_t t = now_ns();
    fill_async(p, 8, 1, 8, main_stream);
    CU(cu.StreamSynchronize(main_stream));
    row("one GPU word in a host-resident range (one fault)", NULL, "us", since_us(t), NULL);
    mm_free(p, n);
    p = mm_alloc(n);
    us = timed_prefetch(p, n, 1);
    row("prefetch to GPU of a never populated range", NULL, "gb_per_s", gbps(n, us), "us_per_block",
        us / (double)(n / (2 * MIB)), NULL);
    row("then GPU write", NULL, "gb_per_s", gbps(n, fill(p, n, 1, 8)), NULL);
    mm_free(p, n);
    // The CPU's side of a fault, for comparison with prefetch to host.
    p = mm_alloc(n);
    fill(p, n, 1, 8);
    volatile uint64_t sink = 0;
    t = now_ns();
    for (size_t o = 0; o < n; o += 4096)
        sink += *(volatile uint64_t *)(uintptr_t)(p + o);
    row("CPU reads fault in a GPU-resident range", NULL, "gb_per_s", gbps(n, since_us(t)), NULL);
    mm_free(p, n);
}

// ----------------------------------------------------------------------- main

static const struct {
    char letter;
    void (*run)(void);
    const char *what;
} stages[] = {{'a', stage_a, "prefetch each way by chunk size"},
              {'b', stage_b, "prefetch beside evictions"},
              {'c', stage_c, "discard and resident prefetch"},
              {'d', stage_d, "device memory in use"},
              {'g', stage_g, "eviction by threads, host pages and advice"},
              {'h', stage_h, "GPU demand faults"},
              {'e', stage_e, "stream memory operations"},
              {'f', stage_f, "calls beside a gated stream"}}; // last: it may be ended by force

static void json_string(const char *s)
{
    putchar('"');
    for (; *s; s++)
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < 32)
            putchar(' ');
        else
            putchar(*s);
    putchar('"');
}

static void print_json(time_t began, char **argv, int status)
{
    int n = atomic_load(&results->count), max = (int)(sizeof results->r / sizeof results->r[0]);
    char date[32];
    strftime(date, sizeof date, "%FT%TZ", gmtime(&began));
    printf("{\"program\":\"managed_probe\",\"date\":\"%s\",\"command\":[", date);
    for (int i = 0; argv[i]; i++)
        fputs(i ? "," : "", stdout), json_string(argv[i]);
    printf("],\"exit_status\":%d,\"results\":[", status);
    for (int i = 0; i < n && i < max; i++) {
        const result *r = &results->r[i];
        printf("%s\n{\"stage\":\"%c\",\"name\":", i ? "," : "", r->stage);
        json_string(r->name);
        if (r->text[0])
            printf(",\"text\":"), json_string(r->text);
        for (int k = 0; k < r->count; k++)
            putchar(','), json_string(r->key[k]), printf(":%.6g", r->value[k]);
        putchar('}');
    }
    printf("\n]}\n");
}

static int run_stage(size_t i, uint64_t deadline)
{
    pid_t parent = getpid(), c;
    uint64_t t0 = now_ns(), stop = t0 + (uint64_t)STAGE_LIMIT_S * 1000000000ull;
    int w;
    stage_now = stages[i].letter;
    if (stop > deadline || stage_now == 'f') // f waits for the watchdog many times
        stop = deadline;
    fprintf(table, "== %c: %s\n", stages[i].letter, stages[i].what);
    fflush(NULL);
    if ((c = fork()) < 0) {
        perror("fork");
        return 1;
    }
    if (c == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        alarm(TOTAL_LIMIT_S); // should the parent be gone all the same
        open_cuda();
        if (i == 0 || stage_now == 'e') {
            char name[100] = "", text[120];
            int v = 0, managed = 0;
            CU(cu.DriverGetVersion(&v));
            CU(cu.DeviceGetName(name, sizeof name, device));
            CU(cu.DeviceGetAttribute(&managed, 89, device));
            snprintf(text, sizeof text, "%.60s, CUDA %d.%d, concurrent managed access %s", name, v / 1000, v % 1000 / 10,
                     managed ? "yes" : "NO");
            row("device", text, "free_mib", (double)(free_bytes() / MIB), NULL);
        }
        stages[i].run();
        fflush(NULL);
        _exit(0);
    }
    for (;;) {
        pid_t r = waitpid(c, &w, WNOHANG);
        if (r == c)
            break;
        if (now_ns() > stop) {
            row("STAGE FAILED", "timed out and was ended; what it had measured stands above", NULL);
            kill(c, SIGKILL);
            for (int k = 0; k < 50; k++, usleep(100000))
                if (waitpid(c, &w, WNOHANG) == c)
                    return now_ns() > deadline ? 124 : 1;
            // It is stuck in the driver and its memory may still be alive: start nothing more.
            row("STAGE FAILED", "it does not end: the driver holds it; nothing more is started", NULL);
            return 124;
        }
        usleep(5000);
    }
    fprintf(table, "   (%.1f s)\n", (double)(now_ns() - t0) / 1e9);
    if (WIFSIGNALED(w)) {
        char t[60];
        snprintf(t, sizeof t, "ended by signal %d", WTERMSIG(w));
        row("STAGE FAILED", t, NULL);
        return 1;
    }
    return WEXITSTATUS(w);
}

int main(int argc, char **argv)
{
    const char *only = NULL;
    int json = 0, status = 0;
    time_t began = time(NULL);
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--only=", 7) && strspn(argv[i] + 7, "abcdefgh") == strlen(argv[i] + 7))
            only = argv[i] + 7;
        else if (!strcmp(argv[i], "--json"))
            json = 1;
        else {
            fprintf(stderr, "usage: %s [--only=abcdefgh] [--json]\n", argv[0]);
            return 2;
        }
    }
    table = json ? stderr : stdout;
    results = mmap(NULL, sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED) {
        perror("mmap");
        return 2;
    }
    uint64_t deadline = now_ns() + (uint64_t)(TOTAL_LIMIT_S - 6) * 1000000000ull;
    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        if (only && !strchr(only, stages[i].letter))
            continue;
        int s = run_stage(i, deadline);
        if (s)
            status = s;
        if (s == 3 || s == 124)
            break;
    }
    if (json)
        print_json(began, argv, status);
    fprintf(table, status ? "RESULT: incomplete, exit status %d\n" : "RESULT: every stage finished\n", status);
    return status;
}
