// PyTorch's symbols, by which one binary of the shim serves several versions.
#ifndef PENSTOCK_TORCH_SYMBOLS_H
#define PENSTOCK_TORCH_SYMBOLS_H

#include <dlfcn.h>

// The mangled beginning of the names of torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator's functions.
#define PLUGGABLE "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"

namespace penstock {

using DeviceIndex = signed char; // c10::DeviceIndex
struct Allocator;                // torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator

// PyTorch's libraries are loaded RTLD_LOCAL by Python, so RTLD_DEFAULT does not
// see them; asking for the loaded library by its name does. NULL when there is no such symbol, or library.
inline void *find_symbol(const char *lib, const char *symbol) {
    void *handle = dlopen(lib, RTLD_NOW | RTLD_NOLOAD);
    if (!handle) return nullptr;
    void *p = dlsym(handle, symbol);
    dlclose(handle);
    return p;
}

} // namespace penstock

#endif
