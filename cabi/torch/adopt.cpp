// PyTorch's pluggable allocator answers several virtual functions with "does
// not yet support ...", and has no setters for them. cuDNN's benchmark mode
// (torch.backends.cudnn.benchmark) calls one of them, cacheInfo, so a plain
// pluggable allocator breaks most vision training; torch.cuda.MemPool and graph
// trees call others. Here the installed object gets a copy of its virtual table
// in which those entries are ours.
//
// An entry is replaced where it holds the address of the function that PyTorch
// exports under that name. When a name is missing or is not in the table, it is
// left alone. What a MemPool calls has no exported names: these are entries of
// the base class, whose places are known for the versions that were tried.
#include "checkpoint.h"
#include "engine.h"
#include "oom.h"
#include "penstock_torch.h"
#include "pools.h"
#include "share.h"
#include "symbols.h"

#include <algorithm>
#include <cstring>
#include <link.h>
#include <stdexcept>

using namespace penstock;

namespace {

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

void observe_ooms(Allocator *, OutOfMemoryObserver observer) { observe_out_of_memory(std::move(observer)); }

int pool_use_count(Allocator *, DeviceIndex device, PoolId id) { return pool_users(device, id); }
void create_or_incref_pool(Allocator *, DeviceIndex device, PoolId id, std::shared_ptr<Allocator> other) {
    if (other) throw std::runtime_error("penstock: a MemPool with an allocator of its own is not supported: make it without `allocator`, or run without Penstock");
    retain_pool(device, id);
}
void set_use_on_oom(Allocator *, DeviceIndex device, PoolId id, bool on) { serve_when_full(device, id, on); }
void set_no_split(Allocator *, DeviceIndex, PoolId) {} // how a pool's memory is cut is not seen by programs

struct Override {
    const char *symbol;
    void *function;
};

const Override overrides[] = {
    {PLUGGABLE "9cacheInfoEaPm", reinterpret_cast<void *>(cache_info)},
    {PLUGGABLE "14resetPeakStatsEa", reinterpret_cast<void *>(reset_peak)},
    {PLUGGABLE "21resetAccumulatedStatsEa", reinterpret_cast<void *>(reset_accumulated)},
    {PLUGGABLE "17getMemoryFractionEa", reinterpret_cast<void *>(memory_fraction)},
    {PLUGGABLE "25attachOutOfMemoryObserverESt8functionIFvlmmmEE", reinterpret_cast<void *>(observe_ooms)},
    {PLUGGABLE "18getCheckpointStateEaSt4pairIyyE", reinterpret_cast<void *>(checkpoint)},
    {PLUGGABLE "22setCheckpointPoolStateEaSt10shared_ptrIN3c104cuda20CUDACachingAllocator14AllocatorStateEE", reinterpret_cast<void *>(restore)},
    {PLUGGABLE "14shareIpcHandleEPv", reinterpret_cast<void *>(share)},
    {PLUGGABLE "12getIpcDevPtrENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", reinterpret_cast<void *>(open_shared)},
};

// What comes between two functions that have names, in the versions that were tried.
const char *const before_pools = PLUGGABLE "11releasePoolEaSt4pairIyyE", *const after_pools = PLUGGABLE "14shareIpcHandleEPv";
void *const pool_functions[] = {
    reinterpret_cast<void *>(pool_use_count),        // getPoolUseCount
    reinterpret_cast<void *>(create_or_incref_pool), // createOrIncrefPool
    reinterpret_cast<void *>(set_use_on_oom),        // setUseOnOOM
    reinterpret_cast<void *>(set_no_split),          // setNoSplit
    reinterpret_cast<void *>(live_are),              // checkPoolLiveAllocations
};
constexpr size_t npools = sizeof pool_functions / sizeof *pool_functions;

int replace_pools(void **first, void **last) {
    void **at = std::find(first, last, find_symbol("libtorch_cuda.so", before_pools));
    void *after = find_symbol("libtorch_cuda.so", after_pools);
    if (!after || static_cast<size_t>(last - at) < npools + 2 || at[npools + 1] != after) return 0;
    std::copy(std::begin(pool_functions), std::end(pool_functions), at + 1);
    return npools;
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

extern "C" int penstock_torch_adopt(int known_pools) {
    // std::atomic<CUDAAllocator *> c10::cuda::CUDACachingAllocator::allocator
    auto *slot = static_cast<void **>(find_symbol("libc10_cuda.so", "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
    void *table = find_symbol("libtorch_cuda.so", "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE");
    size_t bytes = table ? size_of(table) : 0;
    if (!slot || bytes <= 2 * sizeof(void *) || bytes % sizeof(void *) != 0) return -1;
    void *object = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    void **address_point = static_cast<void **>(table) + 2; // after offset-to-top and the type
    if (!object || *static_cast<void ***>(object) != address_point) return -1;

    const size_t words = bytes / sizeof(void *);
    void **copy = new void *[words]; // lives as long as the allocator: for ever
    std::memcpy(copy, table, bytes);
    int replaced = known_pools ? replace_pools(copy + 2, copy + words) : 0;
    for (const Override &o : overrides) {
        void *original = find_symbol("libtorch_cuda.so", o.symbol);
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
