/*
 * Device, managed, pinned and mapped memory, all of it host memory underneath.
 * One lock over everything; the worker threads of the streams take it for each
 * touch, so do not measure speed here.
 */
#define _GNU_SOURCE
#include "memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t stub_memory_mu = PTHREAD_MUTEX_INITIALIZER;
#define mu stub_memory_mu

/* What memory holds that nobody has written yet: the driver gives out again what was
 * freed as it is, also pinned memory. As a number it is a large one, not negative. */
#define USED 0x5a
static range **ranges; /* sorted by base */
static size_t nranges, cap_ranges;
static uint64_t plain_bytes, managed_resident, clock_ticks;
static uint64_t device_peak, registered_bytes;

void stub_add_plain(int64_t bytes) {
    plain_bytes += (uint64_t)bytes;
    if (plain_bytes + managed_resident > device_peak) device_peak = plain_bytes + managed_resident;
}

uint64_t stub_memory_count(const char *name) {
    pthread_mutex_lock(&mu);
    uint64_t n = !strcmp(name, "live_allocations") ? nranges : !strcmp(name, "device_peak_bytes") ? device_peak : !strcmp(name, "registered_bytes") ? registered_bytes : stub_vmm_count(name);
    pthread_mutex_unlock(&mu);
    return n;
}

void stub_reset_peaks(void) {
    pthread_mutex_lock(&mu);
    device_peak = plain_bytes + managed_resident;
    stub_reset_vmm_peak();
    pthread_mutex_unlock(&mu);
}

uint64_t stub_total_bytes(void) {
    static atomic_uint_fast64_t total;
    if (!atomic_load(&total)) atomic_store(&total, stub_env_bytes("STUB_TOTAL_BYTES", 8ull << 30));
    return atomic_load(&total);
}

static size_t position(uint64_t p) { /* of the first range with base > p */
    size_t lo = 0, hi = nranges;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (ranges[mid]->base > p)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

range *stub_find(uint64_t p) {
    size_t i = position(p);
    if (i == 0) return NULL;
    range *r = ranges[i - 1];
    return p - r->base < r->bytes ? r : NULL;
}

bool stub_insert(range *r) {
    if (nranges == cap_ranges) {
        size_t cap = cap_ranges ? cap_ranges * 2 : 64;
        range **more = realloc(ranges, cap * sizeof *more);
        if (!more) return false;
        ranges = more, cap_ranges = cap;
    }
    size_t i = position(r->base);
    memmove(ranges + i + 1, ranges + i, (nranges - i) * sizeof *ranges);
    ranges[i] = r;
    nranges++;
    return true;
}

void stub_take_out(range *r) {
    for (size_t i = 0; i < nranges; i++) {
        if (ranges[i] != r) continue;
        memmove(ranges + i, ranges + i + 1, (--nranges - i) * sizeof *ranges);
        return;
    }
}

/* ---- residency; under mu ---- */

static void evict(range *r, block *b) {
    (void)r;
    if (!b->discarded) COUNT(N_D2H, STUB_BLOCK);
    COUNT(N_EVICTIONS, 1);
    b->where = b->discarded ? ABSENT : ON_HOST;
    managed_resident -= STUB_BLOCK;
}

/* Evicts the blocks that arrived first until bytes fit beside what cannot be evicted. */
bool stub_make_room(uint64_t bytes) {
    if (plain_bytes + bytes > stub_total_bytes()) return false;
    while (plain_bytes + managed_resident + bytes > stub_total_bytes()) {
        range *victim = NULL;
        block *oldest = NULL;
        for (size_t i = 0; i < nranges; i++) {
            range *r = ranges[i];
            if (r->kind != MANAGED) continue;
            for (uint64_t k = 0; k < round_block(r->bytes) / STUB_BLOCK; k++) {
                block *b = &r->blocks[k];
                if (b->where == ON_DEVICE && (!oldest || b->arrived < oldest->arrived)) victim = r, oldest = b;
            }
        }
        if (!oldest) return false;
        evict(victim, oldest);
    }
    return true;
}

static bool to_device(range *r, block *b) {
    (void)r;
    if (b->where == ON_DEVICE) {
        b->arrived = ++clock_ticks;
        return true;
    }
    if (!stub_make_room(STUB_BLOCK)) return false;
    if (b->where == ON_HOST && !b->discarded) COUNT(N_H2D, STUB_BLOCK);
    b->where = ON_DEVICE;
    b->arrived = ++clock_ticks;
    managed_resident += STUB_BLOCK;
    stub_add_plain(0); /* the peak */
    return true;
}

static void to_host(block *b) {
    if (b->where == ON_DEVICE) {
        if (!b->discarded) COUNT(N_D2H, STUB_BLOCK);
        managed_resident -= STUB_BLOCK;
    }
    b->where = ON_HOST;
}

/* The blocks of a managed range that [p, p+n) reaches into. */
#define FOR_BLOCKS(b, r, p, n)                                                                                       \
    for (block *b = &(r)->blocks[((p) - (r)->base) / STUB_BLOCK],                                                    \
               *b##_end = &(r)->blocks[((p) - (r)->base + (n) + STUB_BLOCK - 1) / STUB_BLOCK]; b < b##_end; b++)

__thread bool stub_touched_illegal;

void stub_illegal(const char *who, uint64_t p, size_t n) {
    COUNT(N_ILLEGAL, 1);
    if (!stub_env_bytes("STUB_ABORT", 0)) return;
    fprintf(stderr, "stub: %s reached [%#lx, %#lx), which the device cannot access\n", who, (unsigned long)p, (unsigned long)(p + n));
    abort();
}

int stub_touch(uint64_t p, size_t n) {
    int ok = 0;
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    if (!r || n > r->base + r->bytes - p) {
        ok = -1;
    } else if (r->kind == MANAGED) {
        FOR_BLOCKS(b, r, p, n) {
            if (b->where != ON_DEVICE) {
                COUNT(N_FAULTS, 1);
                to_device(r, b); /* no room: used in place, as the driver falls back to */
            }
            b->discarded = false;
        }
    } else if (r->kind == RESERVED && !stub_mapped(r, p, n)) {
        ok = -1;
    }
    pthread_mutex_unlock(&mu);
    if (ok) {
        stub_illegal("a kernel", p, n);
        stub_touched_illegal = true;
    }
    return ok;
}

uint64_t stub_resident_bytes(uint64_t p, size_t n) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    if (r && n <= r->base + r->bytes - p) {
        if (r->kind == DEVICE) bytes = n;
        if (r->kind == MANAGED) {
            uint64_t block_base = r->base + (p - r->base) / STUB_BLOCK * STUB_BLOCK;
            FOR_BLOCKS(b, r, p, n) {
                uint64_t from = p > block_base ? p : block_base;
                uint64_t to = p + n < block_base + STUB_BLOCK ? p + n : block_base + STUB_BLOCK;
                if (b->where == ON_DEVICE && !b->discarded) bytes += to - from;
                block_base += STUB_BLOCK;
            }
        }
        if (r->kind == RESERVED) bytes = stub_mapped_on_device(r, p, n);
    }
    pthread_mutex_unlock(&mu);
    return bytes;
}

uint64_t stub_device_bytes(void) {
    pthread_mutex_lock(&mu);
    uint64_t bytes = plain_bytes + managed_resident;
    for (size_t i = 0; i < nranges; i++) {
        range *r = ranges[i];
        if (r->kind != MANAGED) continue;
        FOR_BLOCKS(b, r, r->base, r->bytes) if (b->where == ON_DEVICE && b->discarded) bytes -= STUB_BLOCK;
    }
    pthread_mutex_unlock(&mu);
    return bytes;
}

/* ---- allocation ---- */

/* Host memory at a 2 MiB boundary, in the part of the address space that 47 bits reach. */
range *stub_map_range(uint64_t bytes, enum kind kind, int prot) {
    range *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->kind = kind;
    r->bytes = bytes;
    r->map_bytes = round_block(bytes) + STUB_BLOCK;
    r->map = mmap(NULL, r->map_bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->map == MAP_FAILED) {
        free(r);
        return NULL;
    }
    r->base = round_block((uint64_t)(uintptr_t)r->map);
    return r;
}

void stub_free_range(range *r) {
    if (r->map) munmap(r->map, r->map_bytes);
    free(r->blocks);
    free(r);
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    CURRENT();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemAlloc")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    if (stub_make_room(bytes)) {
        range *r = stub_map_range(bytes, DEVICE, PROT_READ | PROT_WRITE);
        if (r && stub_insert(r)) {
            stub_add_plain((int64_t)bytes);
            *out = r->base;
            if (stub_env_bytes("STUB_SCRIBBLE", 0)) memset((void *)(uintptr_t)r->base, USED, bytes);
            rc = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
    CURRENT();
    if (!bytes || !flags) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemAllocManaged")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    range *r = stub_map_range(bytes, MANAGED, PROT_READ | PROT_WRITE);
    if (r) {
        r->blocks = calloc(round_block(bytes) / STUB_BLOCK, sizeof *r->blocks);
        if (r->blocks && stub_insert(r)) {
            *out = r->base;
            rc = CUDA_SUCCESS;
        } else {
            stub_free_range(r);
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

static void sync_all(void);

static CUresult free_kind(uint64_t p, unsigned kinds) {
    CURRENT();
    if (!p) return CUDA_SUCCESS;
    sync_all(); /* cuMemFree waits for the device */
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    if (r && r->base == p && (kinds >> r->kind & 1)) {
        if (r->kind == DEVICE) stub_add_plain(-(int64_t)r->bytes);
        if (r->kind == REGISTERED) registered_bytes -= r->bytes;
        if (r->kind == MANAGED)
            FOR_BLOCKS(b, r, r->base, r->bytes) if (b->where == ON_DEVICE) managed_resident -= STUB_BLOCK;
        stub_take_out(r);
        stub_free_range(r);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemFree_v2(CUdeviceptr p) { return free_kind(p, 1u << DEVICE | 1u << MANAGED); }

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    CURRENT();
    (void)flags;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemHostAlloc")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    range *r = stub_map_range(bytes, PINNED, PROT_READ | PROT_WRITE);
    if (r && stub_insert(r)) {
        *out = memset((void *)(uintptr_t)r->base, USED, bytes);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}
CUresult cuMemAllocHost_v2(void **out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }
CUresult cuMemFreeHost(void *p) { return free_kind((uint64_t)(uintptr_t)p, 1u << PINNED); }

CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
    CURRENT();
    (void)flags;
    if (!p || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemHostRegister")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    stub_api_lock();
    pthread_mutex_lock(&mu);
    range *r = calloc(1, sizeof *r);
    if (r) {
        *r = (range){.base = (uint64_t)(uintptr_t)p, .bytes = bytes, .kind = REGISTERED};
        size_t next = position(r->base + bytes - 1); /* ranges that begin before its end */
        if (next && ranges[next - 1]->base + ranges[next - 1]->bytes > r->base) {
            free(r);
            rc = 712; /* CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED */
        } else if (stub_insert(r)) {
            registered_bytes += bytes;
            rc = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mu);
    stub_api_unlock();
    return rc;
}
CUresult cuMemHostUnregister(void *p) {
    CUresult rc = free_kind((uint64_t)(uintptr_t)p, 1u << REGISTERED);
    return p && rc == CUDA_ERROR_INVALID_VALUE ? 713 /* CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED */ : rc;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned flags) {
    CURRENT();
    (void)flags;
    *out = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CURRENT();
    pthread_mutex_lock(&mu);
    *total = stub_total_bytes();
    *free_bytes = *total - plain_bytes - managed_resident;
    pthread_mutex_unlock(&mu);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
    READY();
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    if (r && base) *base = r->base;
    if (r && bytes) *bytes = r->bytes;
    pthread_mutex_unlock(&mu);
    return r ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr p) {
    READY();
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    /* What is mapped and may not be reached has a type, and nothing else (bench/probe/graph_absent.cu). */
    if (!r || (r->kind == RESERVED && !(attribute == 2 ? stub_backed(r, p) : stub_mapped(r, p, 1)))) {
        rc = CUDA_ERROR_INVALID_VALUE;
    } else {
        bool host = r->kind == PINNED || r->kind == REGISTERED || (r->kind == RESERVED && !stub_mapped_on_device(r, p, 1));
        switch (attribute) {
        case 2: *(unsigned *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
        case 3: case 4: *(uint64_t *)data = p; break;
        case 8: *(unsigned *)data = r->kind == MANAGED; break;
        case 9: *(int *)data = 0; break;
        case 10: *(unsigned *)data = r->kind == DEVICE; break;
        case 11: *(uint64_t *)data = r->base; break;
        case 12: *(size_t *)data = r->bytes; break;
        case 17: *(uint64_t *)data = 0; break;
        default: rc = CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

/* Of memory that it does not know all attributes are zero. */
CUresult cuPointerGetAttributes(unsigned n, int *attributes, void **data, CUdeviceptr p) {
    READY();
    for (unsigned i = 0; i < n; i++) {
        CUresult rc = cuPointerGetAttribute(data[i], attributes[i], p);
        if (rc == CUDA_ERROR_NOT_SUPPORTED) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* ---- managed memory: advice, prefetch, discard ---- */

static CUresult advise(CUdeviceptr p, size_t n, int advice, int location) {
    READY();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    if (r && r->kind == MANAGED && n && n <= r->base + r->bytes - p && advice >= 1 && advice <= 6) {
        r->advice[advice] = 1;
        r->advice_location[advice] = location;
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemAdvise(CUdeviceptr p, size_t n, int advice, CUdevice dev) { return advise(p, n, advice, dev); }
CUresult cuMemAdvise_v2(CUdeviceptr p, size_t n, int advice, CUmemLocation l) { return advise(p, n, advice, l.type == 1 ? l.id : -1); }

enum { MOVE_PREFETCH = 1, MOVE_DISCARD = 2 };

/* a: address, b: bytes, c: 1 to the device, d: MOVE_* */
static CUresult run_move(stream *s, op *o) {
    (void)s;
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&mu);
    range *r = stub_find(o->a);
    if (!r || r->kind != MANAGED || o->b > r->base + r->bytes - o->a) {
        rc = CUDA_ERROR_INVALID_VALUE; /* freed meanwhile: the caller's error */
    } else {
        if (o->d & MOVE_DISCARD) {
            /* Really gone, so that a live block discarded by mistake shows in the results. */
            memset((void *)(uintptr_t)o->a, 0xdb, o->b);
            uint64_t at = r->base + (o->a - r->base) / STUB_BLOCK * STUB_BLOCK;
            FOR_BLOCKS(b, r, o->a, o->b) {
                if (at >= o->a && at + STUB_BLOCK <= o->a + o->b) b->discarded = true;
                at += STUB_BLOCK;
            }
        }
        if (o->d & MOVE_PREFETCH) {
            FOR_BLOCKS(b, r, o->a, o->b) {
                if (o->c) {
                    if (!to_device(r, b)) break; /* a hint: what does not fit stays */
                } else {
                    to_host(b);
                }
                b->discarded = false;
            }
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

static CUresult check_managed(CUdeviceptr p, size_t n) {
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    bool ok = r && r->kind == MANAGED && n && n <= r->base + r->bytes - p;
    pthread_mutex_unlock(&mu);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult move(CUdeviceptr p, size_t n, bool device, int what, CUstream h, int ptsz) {
    CUresult rc = check_managed(p, n);
    stream *s = stub_stream(h, ptsz);
    if (rc != CUDA_SUCCESS || !s) return rc != CUDA_SUCCESS ? rc : CUDA_ERROR_INVALID_HANDLE;
    op *o = stub_op(run_move);
    o->a = p, o->b = n, o->c = device, o->d = (uint64_t)what;
    return stub_enqueue(s, o);
}

static CUresult prefetch(CUdeviceptr p, size_t n, bool device, CUstream h, int ptsz) {
    CURRENT();
    if (stub_should_fail("cuMemPrefetch")) return CUDA_ERROR_OUT_OF_MEMORY;
    COUNT(N_PREFETCHES, 1);
    return move(p, n, device, MOVE_PREFETCH, h, ptsz);
}

CUresult cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice dev, CUstream s) { return prefetch(p, n, dev >= 0, s, 0); }
CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr p, size_t n, CUdevice dev, CUstream s) { return prefetch(p, n, dev >= 0, s, 1); }
CUresult cuMemPrefetchAsync_v2(CUdeviceptr p, size_t n, CUmemLocation l, unsigned flags, CUstream s) { return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(p, n, l.type == 1, s, 0); }
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr p, size_t n, CUmemLocation l, unsigned flags, CUstream s) { return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(p, n, l.type == 1, s, 1); }

static CUresult batch(CUdeviceptr *p, size_t *n, size_t count, CUmemLocation *locs, size_t *idx, size_t nlocs, unsigned long long flags, int what, CUstream s, int ptsz) {
    CURRENT();
    if (!count || flags || !stub_stream(s, ptsz) || ((!s || s == CU_STREAM_LEGACY) && !ptsz)) return CUDA_ERROR_INVALID_VALUE;
    if (what & MOVE_PREFETCH) {
        if (!nlocs || idx[0] != 0) return CUDA_ERROR_INVALID_VALUE;
        if (stub_should_fail("cuMemPrefetch")) return CUDA_ERROR_OUT_OF_MEMORY;
        COUNT(N_PREFETCHES, 1);
    }
    if (what & MOVE_DISCARD) COUNT(N_DISCARDS, 1);
    for (size_t i = 0; i < count; i++)
        if (check_managed(p[i], n[i]) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, l = 0; i < count; i++) {
        while (what & MOVE_PREFETCH && l + 1 < nlocs && idx[l + 1] <= i) l++;
        CUresult rc = move(p[i], n[i], what & MOVE_PREFETCH && locs[l].type == 1, what, s, ptsz);
        if (rc != CUDA_SUCCESS) return rc;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr *p, size_t *n, size_t count, CUmemLocation *locs, size_t *idx, size_t nlocs, unsigned long long flags, CUstream s) { return batch(p, n, count, locs, idx, nlocs, flags, MOVE_PREFETCH, s, 0); }
CUresult cuMemDiscardBatchAsync(CUdeviceptr *p, size_t *n, size_t count, unsigned long long flags, CUstream s) { return batch(p, n, count, NULL, NULL, 0, flags, MOVE_DISCARD, s, 0); }
CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *p, size_t *n, size_t count, CUmemLocation *locs, size_t *idx, size_t nlocs, unsigned long long flags, CUstream s) { return batch(p, n, count, locs, idx, nlocs, flags, MOVE_DISCARD | MOVE_PREFETCH, s, 0); }

bool stub_known(uint64_t p) {
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    bool known = !r || r->kind != RESERVED || stub_mapped(r, p, 1);
    pthread_mutex_unlock(&mu);
    return known;
}

/* ---- copies and fills, run by the workers ---- */

/* Memory that the copy engines may not reach is an error here rather than a crash of the process. */
static bool reachable(uint64_t p, size_t n) {
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    bool ok = !r || (n <= r->base + r->bytes - p && (r->kind != RESERVED || stub_mapped(r, p, n)));
    if (ok && r && r->kind == MANAGED) /* a write ends a discard; a copy does not move the block */
        FOR_BLOCKS(b, r, p, n) {
            b->discarded = false;
            if (b->where == ABSENT) b->where = ON_HOST;
        }
    pthread_mutex_unlock(&mu);
    if (!ok) stub_illegal("a copy or fill", p, n);
    return ok;
}

/* memmove, at the speed of STUB_COPY_MBPS: a copy takes time, in the middle of which half of it is done. */
static void move_bytes(char *d, const char *s, size_t n) {
    static atomic_uint_fast64_t rate; /* MB/s + 1 */
    if (!atomic_load(&rate)) atomic_store(&rate, stub_env_bytes("STUB_COPY_MBPS", 0) + 1);
    uint64_t mbps = atomic_load(&rate) - 1;
    if (!mbps) {
        memmove(d, s, n);
        return;
    }
    for (size_t at = 0, piece = 256 << 10; at < n; at += piece) {
        size_t part = n - at < piece ? n - at : piece;
        memcpy(d + at, s + at, part);
        usleep((useconds_t)(part / mbps));
    }
}

static char *end_of(int type, const void *host, CUdeviceptr device) { return (char *)(type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device); }

#define FLIPPED_BYTES (1ul << 20) /* not the job's small copies */

CUresult stub_copy_3d(const CUDA_MEMCPY3D *c) {
    if (stub_should_fail("copy")) return CUDA_ERROR_ECC_UNCORRECTABLE;
    if (c->srcMemoryType == CU_MEMORYTYPE_ARRAY || c->dstMemoryType == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
    char *src = end_of(c->srcMemoryType, c->srcHost, c->srcDevice), *dst = end_of(c->dstMemoryType, c->dstHost, c->dstDevice);
    for (size_t z = 0; z < c->Depth; z++) {
        for (size_t y = 0; y < c->Height; y++) {
            char *s = src + ((c->srcZ + z) * c->srcHeight + c->srcY + y) * c->srcPitch + c->srcXInBytes;
            char *d = dst + ((c->dstZ + z) * c->dstHeight + c->dstY + y) * c->dstPitch + c->dstXInBytes;
            if (!reachable((uintptr_t)s, c->WidthInBytes) || !reachable((uintptr_t)d, c->WidthInBytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
            move_bytes(d, s, c->WidthInBytes);
            if (c->WidthInBytes >= FLIPPED_BYTES && stub_should_fail("flip")) d[c->WidthInBytes / 3] += 4; /* twice is not none */
        }
    }
    return CUDA_SUCCESS;
}

CUresult stub_fill(const CUDA_MEMSET_NODE_PARAMS *f) {
    for (size_t y = 0; y < f->height; y++) {
        char *row = (char *)(uintptr_t)(f->dst + y * f->pitch);
        if (!reachable((uintptr_t)row, f->width * f->elementSize)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        for (size_t x = 0; x < f->width; x++) memcpy(row + x * f->elementSize, &f->value, f->elementSize);
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void);
static void sync_all(void) { cuCtxSynchronize(); }
