/*
 * Device, managed, pinned and mapped memory, all of it host memory underneath.
 * One lock over everything; the worker threads of the streams take it for each
 * touch, so do not measure speed here.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum kind { DEVICE, MANAGED, PINNED, REGISTERED, RESERVED };
enum { ABSENT, ON_HOST, ON_DEVICE }; /* ABSENT: never populated, or discarded and dropped */

typedef struct block {
    uint8_t where;
    bool discarded;
    uint64_t arrived; /* on the device */
} block;

typedef struct mapping { /* in a RESERVED range */
    uint64_t at, bytes;
    CUmemGenericAllocationHandle handle;
    bool accessible;
    struct mapping *next;
} mapping;

typedef struct range {
    uint64_t base, bytes;
    enum kind kind;
    void *map; /* what was mmapped */
    size_t map_bytes;
    block *blocks; /* MANAGED */
    mapping *mappings;
    int advice[7], advice_location[7];
} range;

typedef struct physical {
    int fd;
    uint64_t bytes;
    int location; /* 1 device */
    unsigned refs; /* one of the handle, one a mapping */
    bool released;
} physical;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static range **ranges; /* sorted by base */
static size_t nranges, cap_ranges;
static physical **handles; /* handle h is handles[h-1] */
static size_t nhandles;
static uint64_t plain_bytes, managed_resident, clock_ticks;

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

static range *find(uint64_t p) {
    size_t i = position(p);
    if (i == 0) return NULL;
    range *r = ranges[i - 1];
    return p - r->base < r->bytes ? r : NULL;
}

static bool insert(range *r) {
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

static void take_out(range *r) {
    for (size_t i = 0; i < nranges; i++) {
        if (ranges[i] != r) continue;
        memmove(ranges + i, ranges + i + 1, (--nranges - i) * sizeof *ranges);
        return;
    }
}

uint64_t stub_live_allocations(void) {
    pthread_mutex_lock(&mu);
    uint64_t n = nranges;
    pthread_mutex_unlock(&mu);
    return n;
}

static uint64_t round_block(uint64_t n) { return (n + STUB_BLOCK - 1) & ~(uint64_t)(STUB_BLOCK - 1); }

/* ---- residency; under mu ---- */

static void evict(range *r, block *b) {
    (void)r;
    if (!b->discarded) COUNT(N_D2H, STUB_BLOCK);
    COUNT(N_EVICTIONS, 1);
    b->where = b->discarded ? ABSENT : ON_HOST;
    managed_resident -= STUB_BLOCK;
}

/* Evicts the blocks that arrived first until bytes fit beside what cannot be evicted. */
static bool make_room(uint64_t bytes) {
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
    if (!make_room(STUB_BLOCK)) return false;
    if (b->where == ON_HOST && !b->discarded) COUNT(N_H2D, STUB_BLOCK);
    b->where = ON_DEVICE;
    b->arrived = ++clock_ticks;
    managed_resident += STUB_BLOCK;
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

int stub_touch(uint64_t p, size_t n) {
    int ok = 0;
    pthread_mutex_lock(&mu);
    range *r = find(p);
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
    } else if (r->kind == RESERVED) {
        for (uint64_t at = p, end = p + n; at < end && !ok;) {
            mapping *m = r->mappings;
            while (m && !(at - m->at < m->bytes)) m = m->next;
            if (!m || !m->accessible)
                ok = -1;
            else
                at = m->at + m->bytes;
        }
    }
    pthread_mutex_unlock(&mu);
    if (ok) {
        COUNT(N_ILLEGAL, 1);
        stub_touched_illegal = true;
    }
    return ok;
}

uint64_t stub_resident_bytes(uint64_t p, size_t n) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&mu);
    range *r = find(p);
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
        if (r->kind == RESERVED) {
            for (mapping *m = r->mappings; m; m = m->next) {
                uint64_t from = p > m->at ? p : m->at, to = p + n < m->at + m->bytes ? p + n : m->at + m->bytes;
                if (from < to && handles[m->handle - 1]->location == 1) bytes += to - from;
            }
        }
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
static range *map_range(uint64_t bytes, enum kind kind, int prot) {
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

static void free_range(range *r) {
    if (r->map) munmap(r->map, r->map_bytes);
    free(r->blocks);
    free(r);
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    READY();
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemAlloc")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    if (plain_bytes + bytes <= stub_total_bytes() && make_room(bytes)) {
        range *r = map_range(bytes, DEVICE, PROT_READ | PROT_WRITE);
        if (r && insert(r)) {
            plain_bytes += bytes;
            *out = r->base;
            rc = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
    READY();
    if (!bytes || !flags) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemAllocManaged")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    range *r = map_range(bytes, MANAGED, PROT_READ | PROT_WRITE);
    if (r) {
        r->blocks = calloc(round_block(bytes) / STUB_BLOCK, sizeof *r->blocks);
        if (r->blocks && insert(r)) {
            *out = r->base;
            rc = CUDA_SUCCESS;
        } else {
            free_range(r);
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

static void sync_all(void);

static CUresult free_kind(uint64_t p, unsigned kinds) {
    READY();
    if (!p) return CUDA_SUCCESS;
    sync_all(); /* cuMemFree waits for the device */
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = find(p);
    if (r && r->base == p && (kinds >> r->kind & 1)) {
        if (r->kind == DEVICE) plain_bytes -= r->bytes;
        if (r->kind == MANAGED)
            FOR_BLOCKS(b, r, r->base, r->bytes) if (b->where == ON_DEVICE) managed_resident -= STUB_BLOCK;
        take_out(r);
        free_range(r);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemFree_v2(CUdeviceptr p) { return free_kind(p, 1u << DEVICE | 1u << MANAGED); }

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    READY();
    (void)flags;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemHostAlloc")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    range *r = map_range(bytes, PINNED, PROT_READ | PROT_WRITE);
    if (r && insert(r)) {
        *out = (void *)(uintptr_t)r->base;
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}
CUresult cuMemAllocHost_v2(void **out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }
CUresult cuMemFreeHost(void *p) { return free_kind((uint64_t)(uintptr_t)p, 1u << PINNED); }

CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
    READY();
    (void)flags;
    if (!p || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemHostRegister")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    range *r = calloc(1, sizeof *r);
    if (r) {
        *r = (range){.base = (uint64_t)(uintptr_t)p, .bytes = bytes, .kind = REGISTERED};
        if (find(r->base)) {
            free(r);
            rc = 712; /* CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED */
        } else if (insert(r)) {
            rc = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}
CUresult cuMemHostUnregister(void *p) { return free_kind((uint64_t)(uintptr_t)p, 1u << REGISTERED); }

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned flags) {
    READY();
    (void)flags;
    *out = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    READY();
    pthread_mutex_lock(&mu);
    *total = stub_total_bytes();
    *free_bytes = *total - plain_bytes - managed_resident;
    pthread_mutex_unlock(&mu);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr p) {
    READY();
    pthread_mutex_lock(&mu);
    range *r = find(p);
    if (r && base) *base = r->base;
    if (r && bytes) *bytes = r->bytes;
    pthread_mutex_unlock(&mu);
    return r ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr p) {
    READY();
    CUresult rc = CUDA_SUCCESS;
    pthread_mutex_lock(&mu);
    range *r = find(p);
    if (!r) {
        rc = CUDA_ERROR_INVALID_VALUE;
    } else {
        switch (attribute) {
        case 2: *(unsigned *)data = r->kind == PINNED || r->kind == REGISTERED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
        case 3: case 4: *(uint64_t *)data = p; break;
        case 8: *(unsigned *)data = r->kind == MANAGED; break;
        case 9: *(int *)data = 0; break;
        case 11: *(uint64_t *)data = r->base; break;
        case 12: *(size_t *)data = r->bytes; break;
        default: rc = CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

/* ---- managed memory: advice, prefetch, discard ---- */

static CUresult advise(CUdeviceptr p, size_t n, int advice, int location) {
    READY();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = find(p);
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
    range *r = find(o->a);
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
    range *r = find(p);
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
    READY();
    if (stub_should_fail("cuMemPrefetch")) return CUDA_ERROR_OUT_OF_MEMORY;
    COUNT(N_PREFETCHES, 1);
    return move(p, n, device, MOVE_PREFETCH, h, ptsz);
}

CUresult cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice dev, CUstream s) { return prefetch(p, n, dev >= 0, s, 0); }
CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr p, size_t n, CUdevice dev, CUstream s) { return prefetch(p, n, dev >= 0, s, 1); }
CUresult cuMemPrefetchAsync_v2(CUdeviceptr p, size_t n, CUmemLocation l, unsigned flags, CUstream s) { return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(p, n, l.type == 1, s, 0); }
CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr p, size_t n, CUmemLocation l, unsigned flags, CUstream s) { return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(p, n, l.type == 1, s, 1); }

static CUresult batch(CUdeviceptr *p, size_t *n, size_t count, CUmemLocation *locs, size_t *idx, size_t nlocs, unsigned long long flags, int what, CUstream s, int ptsz) {
    READY();
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

/* ---- virtual memory management ---- */

typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *win32;
    unsigned char rest[8];
} alloc_prop;

typedef struct {
    CUmemLocation location;
    int flags;
} access_desc;

CUresult cuMemGetAllocationGranularity(size_t *n, const alloc_prop *prop, int option) {
    READY();
    (void)prop, (void)option;
    *n = STUB_BLOCK;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const alloc_prop *prop, unsigned long long flags) {
    READY();
    if (!bytes || bytes % STUB_BLOCK || flags || prop->type != 1) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemCreate")) return CUDA_ERROR_OUT_OF_MEMORY;
    bool device = prop->location.type == 1;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    if (!device || (plain_bytes + bytes <= stub_total_bytes() && make_room(bytes))) {
        physical *h = calloc(1, sizeof *h);
        physical **more = realloc(handles, (nhandles + 1) * sizeof *more);
        if (more) handles = more;
        int fd = memfd_create("stub", MFD_CLOEXEC);
        if (h && more && fd >= 0 && !ftruncate(fd, (off_t)bytes)) {
            *h = (physical){.fd = fd, .bytes = bytes, .location = prop->location.type, .refs = 1};
            handles[nhandles++] = h;
            *out = nhandles;
            if (device) plain_bytes += bytes;
            rc = CUDA_SUCCESS;
        } else {
            free(h);
            if (fd >= 0) close(fd);
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

static void unref(physical *h) {
    if (--h->refs) return;
    if (h->location == 1) plain_bytes -= h->bytes;
    close(h->fd);
    h->fd = -1;
}

static physical *handle_of(CUmemGenericAllocationHandle h) { return h && h <= nhandles && handles[h - 1]->refs ? handles[h - 1] : NULL; }

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    READY();
    pthread_mutex_lock(&mu);
    physical *h = handle_of(handle);
    bool ok = h && !h->released;
    if (ok) {
        h->released = true;
        unref(h);
    }
    pthread_mutex_unlock(&mu);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t align, CUdeviceptr hint, unsigned long long flags) {
    READY();
    (void)hint;
    if (!bytes || bytes % STUB_BLOCK || flags || align > STUB_BLOCK) return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    range *r = map_range(bytes, RESERVED, PROT_NONE);
    if (r && insert(r)) {
        *out = r->base;
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes) {
    READY();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = find(p);
    if (r && r->kind == RESERVED && r->base == p && r->bytes == bytes && !r->mappings) {
        take_out(r);
        free_range(r);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    READY();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = find(p);
    physical *h = handle_of(handle);
    if (r && r->kind == RESERVED && h && !flags && bytes && p % STUB_BLOCK == 0 && bytes % STUB_BLOCK == 0 && offset + bytes <= h->bytes && bytes <= r->base + r->bytes - p) {
        bool overlap = false;
        for (mapping *m = r->mappings; m; m = m->next) overlap |= p < m->at + m->bytes && m->at < p + bytes;
        mapping *m = overlap ? NULL : calloc(1, sizeof *m);
        if (m && mmap((void *)(uintptr_t)p, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, h->fd, (off_t)offset) != MAP_FAILED) {
            *m = (mapping){.at = p, .bytes = bytes, .handle = handle, .next = r->mappings};
            r->mappings = m;
            h->refs++;
            rc = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const access_desc *desc, size_t count) {
    READY();
    bool writable = false;
    for (size_t i = 0; i < count; i++) writable |= desc[i].flags == 3;
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = find(p);
    if (r && r->kind == RESERVED) {
        uint64_t covered = 0;
        for (mapping *m = r->mappings; m; m = m->next)
            if (m->at >= p && m->at + m->bytes <= p + bytes) covered += m->bytes;
        if (covered == bytes && !mprotect((void *)(uintptr_t)p, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ)) {
            for (mapping *m = r->mappings; m; m = m->next)
                if (m->at >= p && m->at + m->bytes <= p + bytes) m->accessible = true;
            rc = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemUnmap(CUdeviceptr p, size_t bytes) {
    READY();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = find(p);
    if (r && r->kind == RESERVED) {
        uint64_t covered = 0;
        for (mapping *m = r->mappings; m; m = m->next)
            if (m->at >= p && m->at + m->bytes <= p + bytes) covered += m->bytes;
        if (covered == bytes) {
            for (mapping **at = &r->mappings, *m; (m = *at);) {
                if (m->at < p || m->at + m->bytes > p + bytes) {
                    at = &m->next;
                    continue;
                }
                *at = m->next;
                unref(handles[m->handle - 1]);
                free(m);
            }
            mmap((void *)(uintptr_t)p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
            rc = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

/* ---- copies and fills, run by the workers ---- */

/* Memory that the copy engines may not reach is an error here rather than a crash of the process. */
static bool reachable(uint64_t p, size_t n) {
    pthread_mutex_lock(&mu);
    range *r = find(p);
    bool ok = true;
    if (r && r->kind == RESERVED) {
        for (uint64_t at = p, end = p + n; at < end && ok;) {
            mapping *m = r->mappings;
            while (m && !(at - m->at < m->bytes)) m = m->next;
            ok = m && m->accessible;
            if (ok) at = m->at + m->bytes;
        }
    } else if (r) {
        ok = n <= r->base + r->bytes - p;
    }
    if (ok && r && r->kind == MANAGED) /* a write ends a discard; a copy does not move the block */
        FOR_BLOCKS(b, r, p, n) {
            b->discarded = false;
            if (b->where == ABSENT) b->where = ON_HOST;
        }
    pthread_mutex_unlock(&mu);
    if (!ok) COUNT(N_ILLEGAL, 1);
    return ok;
}

static char *end_of(int type, const void *host, CUdeviceptr device) { return (char *)(type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device); }

CUresult stub_copy_3d(const CUDA_MEMCPY3D *c) {
    if (c->srcMemoryType == CU_MEMORYTYPE_ARRAY || c->dstMemoryType == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
    char *src = end_of(c->srcMemoryType, c->srcHost, c->srcDevice), *dst = end_of(c->dstMemoryType, c->dstHost, c->dstDevice);
    for (size_t z = 0; z < c->Depth; z++) {
        for (size_t y = 0; y < c->Height; y++) {
            char *s = src + ((c->srcZ + z) * c->srcHeight + c->srcY + y) * c->srcPitch + c->srcXInBytes;
            char *d = dst + ((c->dstZ + z) * c->dstHeight + c->dstY + y) * c->dstPitch + c->dstXInBytes;
            if (!reachable((uintptr_t)s, c->WidthInBytes) || !reachable((uintptr_t)d, c->WidthInBytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
            memmove(d, s, c->WidthInBytes);
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
