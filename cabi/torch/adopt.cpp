// PyTorch's pluggable allocator answers several virtual functions with "does
// not yet support ...", and has no setters for them. cuDNN's benchmark mode
// (torch.backends.cudnn.benchmark) calls one of them, cacheInfo, so a plain
// pluggable allocator breaks most vision training. Here the installed object
// gets a copy of its virtual table in which those entries are ours.
//
// Nothing about the table's layout is assumed: an entry is replaced where it
// holds the address of the function that PyTorch exports under that name. When
// a name is missing or is not in the table, it is left alone.
#include "engine.h"
#include "penstock_torch.h"

#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <link.h>

using namespace penstock;

namespace {

using DeviceIndex = signed char; // c10::DeviceIndex
struct Allocator;                // torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator

#define CLASS "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"

// In: the largest block seen so far. Out: at least what one allocation may
// take. cuDNN leaves out algorithms whose workspace does not fit into it. When
// the budget is full that is not nothing: room is made for a workspace by moving
// something else out, so a sixteenth of the budget is always there.
void cache_info(Allocator *, DeviceIndex device, size_t *largest) {
    const std::string json = stats(started(device));
    int64_t bytes = std::max(stat(json, "device_free_bytes", 0), stat(json, "budget_bytes", 0) / 16);
    if (bytes > 0) *largest = std::max(*largest, static_cast<size_t>(bytes));
}
void reset_peak(Allocator *, DeviceIndex) { penstock_torch_reset_peak(); }
void reset_accumulated(Allocator *, DeviceIndex) { penstock_torch_reset_accumulated(); }
double memory_fraction(Allocator *, DeviceIndex device) { return penstock_torch_memory_fraction(device); }

struct Override {
    const char *symbol;
    void *function;
};

void *find(const char *lib, const char *symbol) {
    void *handle = dlopen(lib, RTLD_NOW | RTLD_NOLOAD);
    if (!handle) return nullptr;
    void *p = dlsym(handle, symbol);
    dlclose(handle);
    return p;
}

// The size of a data symbol, from the ELF symbol table.
size_t size_of(void *symbol) {
    Dl_info info;
    const ElfW(Sym) *sym = nullptr;
    if (!dladdr1(symbol, &info, reinterpret_cast<void **>(const_cast<ElfW(Sym) **>(&sym)), RTLD_DL_SYMENT) || !sym ||
        info.dli_saddr != symbol)
        return 0;
    return sym->st_size;
}

} // namespace

extern "C" int penstock_torch_adopt(void) {
    // std::atomic<CUDAAllocator *> c10::cuda::CUDACachingAllocator::allocator
    auto *slot = static_cast<void **>(find("libc10_cuda.so", "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
    void *table = find("libtorch_cuda.so", "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE");
    size_t bytes = table ? size_of(table) : 0;
    if (!slot || bytes <= 2 * sizeof(void *) || bytes % sizeof(void *) != 0) return -1;
    void *object = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    void **address_point = static_cast<void **>(table) + 2; // after offset-to-top and the type
    if (!object || *static_cast<void ***>(object) != address_point) return -1;

    const Override overrides[] = {
        {CLASS "9cacheInfoEaPm", reinterpret_cast<void *>(cache_info)},
        {CLASS "14resetPeakStatsEa", reinterpret_cast<void *>(reset_peak)},
        {CLASS "21resetAccumulatedStatsEa", reinterpret_cast<void *>(reset_accumulated)},
        {CLASS "17getMemoryFractionEa", reinterpret_cast<void *>(memory_fraction)},
    };
    const size_t words = bytes / sizeof(void *);
    void **copy = new void *[words]; // lives as long as the allocator: for ever
    std::memcpy(copy, table, bytes);
    int replaced = 0;
    for (const Override &o : overrides) {
        void *original = find("libtorch_cuda.so", o.symbol);
        for (size_t i = 2; original && i < words; i++)
            if (copy[i] == original) {
                copy[i] = o.function;
                replaced++;
            }
    }
    if (replaced == 0) {
        delete[] copy;
        return 0;
    }
    __atomic_store_n(static_cast<void ***>(object), copy + 2, __ATOMIC_RELEASE);
    return replaced;
}
