/* Copies and fills, run by the workers. */
#define _GNU_SOURCE
#include "transfer.h"
#include "ranges.h"

#include <string.h>
#include <unistd.h>

#define mu stub_memory_mu

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

static void fill_row(char *row, const CUDA_MEMSET_NODE_PARAMS *f) {
    switch (f->elementSize) {
    case 1: memset(row, (int)f->value, f->width); break;
    case 2:
        for (size_t x = 0; x < f->width; x++) ((uint16_t *)(void *)row)[x] = (uint16_t)f->value;
        break;
    default:
        for (size_t x = 0; x < f->width; x++) ((uint32_t *)(void *)row)[x] = f->value;
    }
}

CUresult stub_fill(const CUDA_MEMSET_NODE_PARAMS *f) {
    for (size_t y = 0; y < f->height; y++) {
        char *row = (char *)(uintptr_t)(f->dst + y * f->pitch);
        if (!reachable((uintptr_t)row, f->width * f->elementSize)) return CUDA_ERROR_ILLEGAL_ADDRESS;
        fill_row(row, f);
    }
    return CUDA_SUCCESS;
}
