/* Textures over linear memory: an object's handle says nothing of the address. */
#include "texture.h"
#include "contexts.h"
#include "ranges.h"

enum { MOST = 256 };
static _Atomic(CUdeviceptr) address[MOST]; /* 0: free */

CUresult cuTexObjectCreate(uint64_t *object, const CUDA_RESOURCE_DESC *resource, const void *texture, const void *view) {
    CURRENT();
    if (!object || !resource || !texture || view) return CUDA_ERROR_INVALID_VALUE;
    if (resource->resType != CU_RESOURCE_TYPE_LINEAR && resource->resType != CU_RESOURCE_TYPE_PITCH2D) return CUDA_ERROR_NOT_SUPPORTED;
    CUdeviceptr p = resource->res.devPtr;
    if (!stub_has_type(p)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < MOST; i++) {
        CUdeviceptr none = 0;
        if (!atomic_compare_exchange_strong(&address[i], &none, p)) continue;
        *object = i + 1;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuTexObjectDestroy(uint64_t object) {
    CURRENT();
    return object && object <= MOST && atomic_exchange(&address[object - 1], 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A reference is where its address is. */
CUresult cuTexRefSetAddress_v2(size_t *offset, void *texture, CUdeviceptr p, size_t bytes) {
    CURRENT();
    if (!texture || !bytes || !stub_has_type(p)) return CUDA_ERROR_INVALID_VALUE;
    if (offset) *offset = 0;
    *(CUdeviceptr *)texture = p;
    return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress2D_v3(void *texture, const void *array, CUdeviceptr p, size_t pitch) { return (void)array, cuTexRefSetAddress_v2(NULL, texture, p, pitch); }

uint64_t stub_texture_address(uint64_t object) { return object && object <= MOST ? address[object - 1] : 0; }
