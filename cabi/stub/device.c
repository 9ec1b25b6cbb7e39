/* The device, and what errors are called. */
#define _GNU_SOURCE
#include "base.h"
#include "ranges.h"

#include <stdio.h>
#include <string.h>

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
    case 103: *value = (int)stub_env_bytes("STUB_EXPORT", 1); break; /* file descriptors of physical memory */
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
