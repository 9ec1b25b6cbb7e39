/* What lies at an address. */
#include "address.h"
#include "real.h"

CUresult psk_w_cuPointerGetAttribute(void *data, int attribute, CUdeviceptr p);

uint32_t psk_memory_type(uint64_t addr) {
    unsigned type = 0;
    return PSK_REAL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr) == CUDA_SUCCESS ? type : 0;
}
