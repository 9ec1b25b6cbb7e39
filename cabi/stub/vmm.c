/*
 * Virtual memory management: reserved addresses, and physical memory mapped
 * where the device may reach it. Elsewhere in a reservation an access is a real
 * fault of this process: a kernel or copy under way dies of an unmap that came
 * too early.
 */
#define _GNU_SOURCE
#include "vmm.h"
#include "physical.h"
#include "ranges.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define mu stub_memory_mu

typedef struct physical {
    uint32_t *blocks;
    uint64_t bytes;
    int location; /* 1 device, 3 a NUMA node of the host */
    unsigned refs; /* one of the handle and of each time that it was retained, one a mapping */
    unsigned retained;
    bool released, exportable;
    int file; /* of whom it was imported from; -1: this process's own */
    size_t number, next; /* as a handle; the next that is free to be given out again */
} physical;

static physical **handles; /* handle h is handles[h-1] */
static size_t nhandles, spare; /* spare: the handle that became free last; the driver gives them out again, too */
static uint64_t device_bytes, device_peak, host_bytes;

/* Adds a handle's memory to the accounts, or takes it off. Under mu, like all that follows. */
static void account(const physical *h, int sign) {
    int64_t bytes = sign * (int64_t)h->bytes;
    if (h->location != 1) {
        host_bytes += (uint64_t)bytes;
        return;
    }
    device_bytes += (uint64_t)bytes;
    if (device_bytes > device_peak) device_peak = device_bytes;
    stub_add_plain(bytes);
}

uint64_t stub_vmm_count(const char *name) {
    return !strcmp(name, "physical_bytes") ? device_bytes : !strcmp(name, "physical_peak_bytes") ? device_peak : !strcmp(name, "host_physical_bytes") ? host_bytes : 0;
}

void stub_reset_vmm_peak(void) { device_peak = device_bytes; }

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

static physical *new_handle(void) {
    if (spare) {
        physical *h = handles[spare - 1];
        spare = h->next;
        return h;
    }
    physical *h = calloc(1, sizeof *h), **more = realloc(handles, (nhandles + 1) * sizeof *more);
    if (more) handles = more;
    if (!h || !more) {
        free(h);
        return NULL;
    }
    handles[nhandles++] = h;
    h->number = nhandles;
    return h;
}

static void free_handle(physical *h) {
    h->next = spare;
    spare = h->number;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const alloc_prop *prop, unsigned long long flags) {
    READY();
    bool device = prop->location.type == 1;
    if (!bytes || bytes % STUB_BLOCK || flags || prop->type != 1 || (!device && prop->location.type != 3) || prop->location.id) return CUDA_ERROR_INVALID_VALUE;
    if (stub_should_fail("cuMemCreate")) return CUDA_ERROR_OUT_OF_MEMORY;
    stub_api_lock();
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    if (!device || (stub_make_room(bytes))) {
        physical *h = new_handle();
        uint32_t *blocks = h ? stub_take_blocks(bytes / STUB_BLOCK) : NULL;
        if (blocks) {
            *h = (physical){.blocks = blocks, .bytes = bytes, .location = prop->location.type, .refs = 1, .exportable = prop->handle_types == 1, .file = -1, .number = h->number};
            *out = h->number;
            account(h, 1);
            rc = CUDA_SUCCESS;
        } else if (h) {
            free_handle(h);
        }
    }
    pthread_mutex_unlock(&mu);
    stub_api_unlock();
    return rc;
}

static void unref(physical *h) {
    if (--h->refs) return;
    if (h->file < 0) {
        account(h, -1);
        stub_give_blocks(h->blocks, h->bytes / STUB_BLOCK);
    } else {
        close(h->file);
        free(h->blocks);
    }
    free_handle(h);
}

static physical *handle_of(CUmemGenericAllocationHandle h) { return h && h <= nhandles && handles[h - 1]->refs ? handles[h - 1] : NULL; }

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    READY();
    pthread_mutex_lock(&mu);
    physical *h = handle_of(handle);
    bool ok = h && (h->retained || !h->released);
    if (ok) {
        if (h->retained)
            h->retained--;
        else
            h->released = true;
        unref(h);
    }
    pthread_mutex_unlock(&mu);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What is mapped at an address, or NULL. */
static mapping *mapped_at(CUdeviceptr p) {
    range *r = stub_find(p);
    mapping *m = r && r->kind == RESERVED ? r->mappings : NULL;
    while (m && !(p >= m->at && p < m->at + m->bytes)) m = m->next;
    return m;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    READY();
    pthread_mutex_lock(&mu);
    mapping *m = mapped_at((CUdeviceptr)(uintptr_t)addr);
    physical *h = m ? handle_of(m->handle) : NULL;
    if (h) {
        h->retained++, h->refs++;
        *handle = m->handle;
    }
    pthread_mutex_unlock(&mu);
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What an exported file descriptor says: whose blocks, and which. The driver keeps the memory while such a descriptor is
 * open; here it stays the exporter's. */
typedef struct {
    pid_t process;
    int file, location;
    uint64_t bytes;
} exported;

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags) {
    READY();
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    physical *h = handle_of(handle);
    if (h && type == 1 && !flags && h->exportable && h->file < 0) {
        exported x = {.process = getpid(), .file = stub_block_file(), .location = h->location, .bytes = h->bytes};
        size_t blocks = h->bytes / STUB_BLOCK * sizeof *h->blocks;
        int fd = memfd_create("stub-exported", MFD_CLOEXEC);
        if (fd >= 0 && write(fd, &x, sizeof x) == (ssize_t)sizeof x && write(fd, h->blocks, blocks) == (ssize_t)blocks) {
            *(int *)out = fd;
            rc = CUDA_SUCCESS;
        } else if (fd >= 0) {
            close(fd);
        }
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle, int type) {
    READY();
    int fd = (int)(intptr_t)os_handle;
    exported x;
    if (type != 1 || pread(fd, &x, sizeof x, 0) != (ssize_t)sizeof x) return CUDA_ERROR_INVALID_VALUE;
    size_t n = x.bytes / STUB_BLOCK;
    uint32_t *blocks = malloc(n * sizeof *blocks);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)x.process, x.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mu);
    physical *h = blocks && file >= 0 && pread(fd, blocks, n * sizeof *blocks, sizeof x) == (ssize_t)(n * sizeof *blocks) ? new_handle() : NULL;
    if (h) {
        *h = (physical){.blocks = blocks, .bytes = x.bytes, .location = x.location, .refs = 1, .file = file, .number = h->number};
        *out = h->number;
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    if (rc) {
        free(blocks);
        if (file >= 0) close(file);
    }
    return rc;
}

static bool all_mapped(CUdeviceptr p, size_t bytes) {
    bool whole = bytes != 0;
    pthread_mutex_lock(&mu);
    for (CUdeviceptr at = p; whole && at < p + bytes;) {
        mapping *m = mapped_at(at);
        whole = m;
        if (m) at = m->at + m->bytes;
    }
    pthread_mutex_unlock(&mu);
    return whole;
}

/* The handle is none that anybody could use. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr p, size_t bytes, int type, unsigned long long flags) {
    READY();
    if (type != 1 || flags || !all_mapped(p, bytes)) return CUDA_ERROR_INVALID_VALUE;
    *(int *)handle = -1;
    return CUDA_SUCCESS;
}

/* There is no other device that would reach it. */
static CUresult bind(CUdeviceptr p, size_t bytes, unsigned long long flags) {
    READY();
    return !flags && all_mapped(p, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr p, size_t bytes, unsigned long long flags) { return (void)object, (void)offset, bind(p, bytes, flags); }
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice dev, size_t offset, CUdeviceptr p, size_t bytes, unsigned long long flags) { return (void)object, (void)dev, (void)offset, bind(p, bytes, flags); }
CUresult cuLogicalEndpointBindAddr(uint32_t id, CUdevice dev, uint64_t offset, void *p, uint64_t bytes, unsigned long long flags) { return (void)id, (void)dev, (void)offset, bind((CUdeviceptr)(uintptr_t)p, bytes, flags); }

/* Exactly there, when nothing else is. */
static range *reserve_at(uint64_t hint, uint64_t bytes) {
    if (!hint) return NULL;
    void *map = mmap((void *)(uintptr_t)hint, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (map == MAP_FAILED) return NULL;
    range *r = (uintptr_t)map == hint ? calloc(1, sizeof *r) : NULL; /* a kernel that does not know the flag takes the address for a hint */
    if (!r) {
        munmap(map, bytes);
        return NULL;
    }
    *r = (range){.base = hint, .bytes = bytes, .kind = RESERVED, .map = map, .map_bytes = bytes};
    return r;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t align, CUdeviceptr hint, unsigned long long flags) {
    READY();
    if (!bytes || bytes % STUB_BLOCK || flags || align & (align - 1)) return CUDA_ERROR_INVALID_VALUE;
    if (align < STUB_BLOCK) align = STUB_BLOCK;
    if (stub_should_fail("cuMemAddressReserve")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&mu);
    range *r = hint % align ? NULL : reserve_at(hint, bytes);
    if (!r && (r = stub_map_range(bytes + align - STUB_BLOCK, RESERVED, PROT_NONE))) {
        r->base = (r->base + align - 1) & ~(uint64_t)(align - 1);
        r->bytes = bytes;
    }
    if (r && stub_insert(r)) {
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
    range *r = stub_find(p);
    if (r && r->kind == RESERVED && r->base == p && r->bytes == bytes && !r->mappings) {
        stub_take_out(r);
        stub_free_range(r);
        rc = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    READY();
    if (stub_should_fail("cuMemMap")) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    stub_api_lock();
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    physical *h = handle_of(handle);
    if (r && r->kind == RESERVED && h && !h->released && !flags && !offset && p % STUB_BLOCK == 0 && bytes == h->bytes && bytes <= r->base + r->bytes - p) {
        bool overlap = false;
        for (mapping *m = r->mappings; m; m = m->next) overlap |= p < m->at + m->bytes && m->at < p + bytes;
        mapping *m = overlap ? NULL : calloc(1, sizeof *m);
        if (m && stub_map_blocks(p, h->blocks, bytes / STUB_BLOCK, h->file)) {
            *m = (mapping){.at = p, .bytes = bytes, .handle = handle, .on_device = h->location == 1, .next = r->mappings};
            r->mappings = m;
            h->refs++;
            rc = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mu);
    stub_api_unlock();
    return rc;
}

CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const access_desc *desc, size_t count) {
    READY();
    if (stub_should_fail("cuMemSetAccess")) return CUDA_ERROR_OUT_OF_MEMORY;
    bool writable = false;
    for (size_t i = 0; i < count; i++) writable |= desc[i].flags == 3;
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    stub_api_lock();
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
    if (r && r->kind == RESERVED) {
        uint64_t covered = 0;
        for (mapping *m = r->mappings; m; m = m->next)
            if (m->at >= p && m->at + m->bytes <= p + bytes) covered += m->bytes;
        if (covered == bytes && !mprotect((void *)(uintptr_t)p, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ)) {
            for (mapping *m = r->mappings; m; m = m->next)
                if (m->at >= p && m->at + m->bytes <= p + bytes) m->accessible = true;
            stub_reach_blocks(p, bytes);
            rc = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mu);
    stub_api_unlock();
    return rc;
}

CUresult cuMemUnmap(CUdeviceptr p, size_t bytes) {
    READY();
    if (stub_should_fail("cuMemUnmap")) return CUDA_ERROR_INVALID_VALUE;
    CUresult rc = CUDA_ERROR_INVALID_VALUE;
    stub_api_lock();
    pthread_mutex_lock(&mu);
    range *r = stub_find(p);
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
    stub_api_unlock();
    return rc;
}

