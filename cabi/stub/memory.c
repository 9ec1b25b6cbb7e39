/* Calls that allocate and free, and tell of addresses. */
#define _GNU_SOURCE
#include "memory.h"
#include "contexts.h"
#include "ranges.h"
#include "streams.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/mman.h>

#define mu stub_memory_mu

/* What memory holds that nobody has written yet: the driver gives out again what was
 * freed as it is, also pinned memory. As a number it is a large one, not negative. */
#define USED 0x5a

static uint64_t registered_bytes;

uint64_t stub_registered_bytes(void) { return registered_bytes; }

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

static CUresult free_kind(uint64_t p, unsigned kinds) {
    CURRENT();
    if (!p) return CUDA_SUCCESS;
    cuCtxSynchronize(); /* cuMemFree waits for the device */
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    if (r && r->base == p && (kinds >> r->kind & 1)) {
        if (r->kind == DEVICE) stub_add_plain(-(int64_t)r->bytes);
        if (r->kind == REGISTERED) registered_bytes -= r->bytes;
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
    usleep((useconds_t)stub_env_bytes("STUB_PIN_US", 0));
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
        if (stub_overlaps(r->base, bytes)) {
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
    *free_bytes = *total - stub_used_bytes();
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
