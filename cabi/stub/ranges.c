/*
 * Ranges of memory: device, managed, pinned and mapped, all of it host memory underneath.
 * One lock over everything; the worker threads of the streams take it for each
 * touch, so do not measure speed here.
 */
#define _GNU_SOURCE
#include "ranges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

pthread_mutex_t stub_memory_mu = PTHREAD_MUTEX_INITIALIZER;
#define mu stub_memory_mu

static range **ranges; /* sorted by base */
static size_t nranges, cap_ranges;
static uint64_t plain_bytes, managed_resident, clock_ticks;
static uint64_t device_peak;

void stub_add_plain(int64_t bytes) {
    plain_bytes += (uint64_t)bytes;
    if (plain_bytes + managed_resident > device_peak) device_peak = plain_bytes + managed_resident;
}

uint64_t stub_range_count(const char *name) { return !strcmp(name, "live_allocations") ? nranges : !strcmp(name, "device_peak_bytes") ? device_peak : 0; }

void stub_reset_range_peak(void) { device_peak = stub_used_bytes(); }

uint64_t stub_used_bytes(void) { return plain_bytes + managed_resident; }

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
    if (r->kind == MANAGED)
        FOR_BLOCKS(b, r, r->base, r->bytes) if (b->where == ON_DEVICE) managed_resident -= STUB_BLOCK;
    for (size_t i = 0; i < nranges; i++) {
        if (ranges[i] != r) continue;
        memmove(ranges + i, ranges + i + 1, (--nranges - i) * sizeof *ranges);
        return;
    }
}

bool stub_overlaps(uint64_t p, uint64_t bytes) {
    size_t next = position(p + bytes - 1); /* ranges that begin before its end */
    return next && ranges[next - 1]->base + ranges[next - 1]->bytes > p;
}

/* ---- reserved addresses; under mu ---- */

bool stub_mapped(const range *r, uint64_t p, size_t n) {
    for (uint64_t at = p, end = p + n; at < end;) {
        const mapping *m = r->mappings;
        while (m && !(at - m->at < m->bytes)) m = m->next;
        if (!m || !m->accessible) return false;
        at = m->at + m->bytes;
    }
    return true;
}

bool stub_backed(const range *r, uint64_t p) {
    const mapping *m = r->mappings;
    while (m && !(p - m->at < m->bytes)) m = m->next;
    return m;
}

uint64_t stub_mapped_on_device(const range *r, uint64_t p, size_t n) {
    uint64_t bytes = 0;
    for (const mapping *m = r->mappings; m; m = m->next) {
        uint64_t from = p > m->at ? p : m->at, to = p + n < m->at + m->bytes ? p + n : m->at + m->bytes;
        if (from < to && m->on_device) bytes += to - from;
    }
    return bytes;
}

/* ---- residency; under mu ---- */

static void evict(block *b) {
    if (!b->discarded) COUNT(N_D2H, STUB_BLOCK);
    COUNT(N_EVICTIONS, 1);
    b->where = b->discarded ? ABSENT : ON_HOST;
    managed_resident -= STUB_BLOCK;
}

/* Evicts the blocks that arrived first until bytes fit beside what cannot be evicted. */
bool stub_make_room(uint64_t bytes) {
    if (plain_bytes + bytes > stub_total_bytes()) return false;
    while (plain_bytes + managed_resident + bytes > stub_total_bytes()) {
        block *oldest = NULL;
        for (size_t i = 0; i < nranges; i++) {
            range *r = ranges[i];
            if (r->kind != MANAGED) continue;
            for (uint64_t k = 0; k < round_block(r->bytes) / STUB_BLOCK; k++) {
                block *b = &r->blocks[k];
                if (b->where == ON_DEVICE && (!oldest || b->arrived < oldest->arrived)) oldest = b;
            }
        }
        if (!oldest) return false;
        evict(oldest);
    }
    return true;
}

bool stub_to_device(block *b) {
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

void stub_to_host(block *b) {
    if (b->where == ON_DEVICE) {
        if (!b->discarded) COUNT(N_D2H, STUB_BLOCK);
        managed_resident -= STUB_BLOCK;
    }
    b->where = ON_HOST;
}

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
                stub_to_device(b); /* no room: used in place, as the driver falls back to */
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

/* ---- ranges themselves ---- */

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

/* ---- what the driver knows of an address ---- */

bool stub_known(uint64_t p) {
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    bool known = !r || r->kind != RESERVED || stub_mapped(r, p, 1);
    pthread_mutex_unlock(&mu);
    return known;
}

bool stub_has_type(uint64_t p) {
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    bool has = r && (r->kind != RESERVED || stub_backed(r, p));
    pthread_mutex_unlock(&mu);
    return has;
}
