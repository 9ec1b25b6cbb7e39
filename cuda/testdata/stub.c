/*
 * A driver library that does nothing but remember: every call appends a line
 * to the file LOG. What it answers and which functions it has is chosen by -D
 * when a test compiles it.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 13000
#endif
#ifndef INIT_RESULT
#define INIT_RESULT 0
#endif
#ifndef DEVICES
#define DEVICES 1
#endif
#ifndef CONCURRENT
#define CONCURRENT 1
#endif

typedef struct { int type, id; } location;
typedef struct { int type, handle_types; location loc; void *meta; unsigned char rest[8]; } prop;
typedef struct { location loc; int flags; } access_desc;

static void say(const char *fmt, ...)
{
    FILE *f = fopen(LOG, "a");
    va_list ap;
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fputc('\n', f);
    fclose(f);
}

static __thread uintptr_t current;
static uint64_t next = 0x7f0000000000;

int cuInit(unsigned f) { return f ? 1 : INIT_RESULT; }
#ifndef NO_VERSION
int cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
#endif
int cuDeviceGetCount(int *n) { *n = DEVICES; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "Stub %d", d); return 0; }
int cuDeviceTotalMem_v2(size_t *b, int d) { *b = (size_t)16 << 30; return 0; }
int cuDeviceGetUuid_v2(unsigned char *u, int d) { for (int i = 0; i < 16; i++) u[i] = i; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d)
{
    switch (a) {
    case 16: *v = 132; return 0;
    case 75: *v = 9; return 0;
    case 76: *v = 0; return 0;
    case 83: *v = 1; return 0;
    case 88: *v = 0; return 0;
    case 89: *v = CONCURRENT; return 0;
    case 102: *v = 1; return 0;
    case 134: *v = 1; return 0;
    case 141: *v = 1; return 0;
    }
    return 1;
}
int cuDevicePrimaryCtxRetain(uintptr_t *c, int d) { *c = 0xc0; say("retain %d", d); return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { say("release %d", d); return 0; }
int cuCtxGetCurrent(uintptr_t *c) { *c = current; return 0; }
int cuCtxSetCurrent(uintptr_t c) { current = c; say("current %#lx", (unsigned long)c); return 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { if (current != 0xc0) return 201; *f = 3; *t = 5; return 0; }
int cuMemAlloc_v2(uint64_t *p, size_t n) { if (n > (size_t)16 << 30) return 2; *p = next; next += 1 << 21; return 0; }
int cuMemFree_v2(uint64_t p) { return p == 0xbad ? 1 : 0; }
static char pinned[4096];
int cuMemHostAlloc(uint64_t *p, size_t n, unsigned f)
{
    say("hostalloc %zu %u", n, f);
    if (n > sizeof pinned) return 2;
    *p = (uint64_t)(uintptr_t)memset(pinned, 0x5a, sizeof pinned); /* as whoever had it left it */
    return 0;
}
int cuMemFreeHost(uint64_t p) { return 0; }
#ifndef NO_MANAGED
int cuMemAllocManaged(uint64_t *p, size_t n, unsigned f) { say("managed %zu %u", n, f); if (n == 13) return 2; *p = __atomic_fetch_add(&next, 1 << 21, __ATOMIC_RELAXED); return 0; }
#endif
int cuMemPrefetchAsync(uint64_t p, size_t n, int d, uintptr_t s) { say("prefetch1 %#lx %zu %d %lu", (long)p, n, d, (long)s); return 0; }
int cuMemAdvise(uint64_t p, size_t n, int a, int d) { say("advise1 %d %d", a, d); return 0; }
#ifndef NO_V2
int cuMemPrefetchAsync_v2(uint64_t p, size_t n, location l, unsigned f, uintptr_t s) { say("prefetch2 %#lx %zu %d:%d %u %lu", (long)p, n, l.type, l.id, f, (long)s); return 0; }
int cuMemAdvise_v2(uint64_t p, size_t n, int a, location l) { say("advise2 %d %d:%d", a, l.type, l.id); return 0; }
#endif
#ifndef NO_BATCH
int cuMemPrefetchBatchAsync(uint64_t *p, size_t *n, size_t c, location *l, size_t *ix, size_t nl, unsigned long long f, uintptr_t s)
{
    if (s < 2 || nl != 1 || ix[0] != 0 || f) return 1;
    size_t sum = 0;
    for (size_t i = 0; i < c; i++) sum += n[i] + (p[i] & 0xff);
    say("batch %zu sum %zu %d:%d %lu", c, sum, l->type, l->id, (long)s);
    return 0;
}
int cuMemDiscardBatchAsync(uint64_t *p, size_t *n, size_t c, unsigned long long f, uintptr_t s) { if (s < 2 || f) return 1; say("discard %zu %#lx %zu", c, (long)p[0], n[0]); return 0; }
int cuMemDiscardAndPrefetchBatchAsync(uint64_t *p, size_t *n, size_t c, location *l, size_t *ix, size_t nl, unsigned long long f, uintptr_t s) { if (s < 2 || f) return 1; say("discardprefetch %zu %d:%d", c, l->type, l->id); return 0; }
#endif
int cuStreamCreate(uintptr_t *s, unsigned f) { say("stream %u", f); *s = 0x51; return 0; }
int cuStreamDestroy_v2(uintptr_t s) { return 0; }
int cuStreamSynchronize(uintptr_t s) { return s == 0x700 ? 700 : 0; }
int cuCtxSynchronize(void) { return 0; }
int cuStreamQuery(uintptr_t s) { return s == 0x51 ? 600 : s == 0x700 ? 700 : 0; }
int cuStreamWaitEvent(uintptr_t s, uintptr_t e, unsigned f) { say("wait %lu %lu", (long)s, (long)e); return 0; }
int cuEventCreate(uintptr_t *e, unsigned f) { say("event %u", f); *e = 0xe1; return 0; }
int cuEventDestroy_v2(uintptr_t e) { return 0; }
int cuEventRecord(uintptr_t e, uintptr_t s) { say("record %lu %lu", (long)e, (long)s); return 0; }
int cuEventQuery(uintptr_t e) { return 0; }
int cuEventSynchronize(uintptr_t e) { return 0; }
int cuMemcpyAsync(uint64_t d, uint64_t s, size_t n, uintptr_t st) { say("copy %#lx %#lx %zu", (long)d, (long)s, n); return 0; }
#ifndef NO_VMM
int cuMemCreate(uint64_t *h, size_t n, const prop *p, unsigned long long f) { say("create %zu %d:%d type %d", n, p->loc.type, p->loc.id, p->type); *h = 0x42; return 0; }
#endif
int cuMemRelease(uint64_t h) { say("unhandle %#lx", (long)h); return 0; }
int cuMemAddressReserve(uint64_t *p, size_t n, size_t a, uint64_t at, unsigned long long f) { say("reserve %zu %zu %#lx", n, a, (long)at); *p = 0x9000000; return 0; }
int cuMemAddressFree(uint64_t p, size_t n) { return 0; }
int cuMemMap(uint64_t p, size_t n, size_t o, uint64_t h, unsigned long long f) { say("map %#lx %zu %zu %#lx", (long)p, n, o, (long)h); return 0; }
int cuMemUnmap(uint64_t p, size_t n) { return 0; }
int cuMemSetAccess(uint64_t p, size_t n, const access_desc *d, size_t c) { say("access %#lx %zu %d:%d %d", (long)p, n, d->loc.type, d->loc.id, d->flags); return c == 1 ? 0 : 1; }
int cuMemGetAllocationGranularity(size_t *g, const prop *p, int o) { *g = 2 << 20; return 0; }
int cuMemHostRegister_v2(uint64_t p, size_t n, unsigned f) { say("register %#lx %zu %u", (long)p, n, f); return 0; }
int cuPointerGetAttributes(unsigned n, int *attributes, void **values, uint64_t p)
{
    /* By the address: pinned, managed, cuMemAlloc, a pool's, mapped, of another device, pinned but elsewhere for kernels; unknown. */
    static const struct { unsigned type, managed, legacy; int device; uint64_t pool, offset; } memory[] = {
        {1}, {2, 1}, {2, 0, 1}, {2, 0, 0, 0, 7}, {2}, {2, 0, 1, 1}, {1, 0, 0, 0, 0, 64}};
    size_t kind = p >> 20;
    if (getenv("OLD_ATTRIBUTES") && n == 8) return 1;
    for (unsigned i = 0; i < n && kind < sizeof memory / sizeof *memory; i++) switch (attributes[i]) {
    case 2: *(unsigned *)values[i] = memory[kind].type; break;
    case 3: *(uint64_t *)values[i] = p + memory[kind].offset; break;
    case 8: *(unsigned *)values[i] = memory[kind].managed; break;
    case 9: *(int *)values[i] = memory[kind].device; break;
    case 10: *(unsigned *)values[i] = memory[kind].legacy; break;
    case 11: *(uint64_t *)values[i] = kind << 20; break;
    case 12: *(size_t *)values[i] = 4096; break;
    case 17: *(uint64_t *)values[i] = memory[kind].pool; break;
    default: return 1;
    }
    return 0;
}
int cuMemHostUnregister(uint64_t p) { say("unregister %#lx", (long)p); return 0; }
int cuModuleLoadDataEx(uintptr_t *m, const char *image, unsigned n, int *options, void **values)
{
    if (n != 2 || options[0] != 5 || options[1] != 6) return 1;
    say("module %s", image);
    if (!strcmp(image, "bad")) { snprintf(values[0], (size_t)values[1], "line 1;\nnonsense"); return 218; }
    *m = 0x30;
    return 0;
}
int cuModuleUnload(uintptr_t m) { say("unload %#lx", (long)m); return 0; }
int cuModuleGetFunction(uintptr_t *f, uintptr_t m, const char *name) { if (strcmp(name, "scan")) return 500; *f = m + 1; return 0; }
int cuLaunchKernel(uintptr_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, uintptr_t s, uint64_t **params, void **extra)
{
    say("launch %#lx %u,%u,%u %u,%u,%u %u on %lu: %#lx %#lx", (long)f, gx, gy, gz, bx, by, bz, shared, (long)s, (long)*params[0], (long)*params[1]);
    return params[2] || extra ? 1 : 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { static __thread int mine; int old = mine; mine = *mode; *mode = old; return 0; }
int cuStreamWaitValue32_v2(uintptr_t s, uint64_t p, uint32_t v, unsigned f) { return 0; }
#ifndef NO_WRITE_VALUE
int cuStreamWriteValue32_v2(uintptr_t s, uint64_t p, uint32_t v, unsigned f) { say("write %lu %#lx %u %u", (long)s, (long)p, v, f); return 0; }
#endif
int cuFuncGetParamInfo(uintptr_t f, size_t i, size_t *o, size_t *z) { return 0; }
