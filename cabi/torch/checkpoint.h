// A pool's state, kept and restored: what the graph trees of torch.compile(mode="reduce-overhead") are built on.
#ifndef PENSTOCK_TORCH_CHECKPOINT_H
#define PENSTOCK_TORCH_CHECKPOINT_H

#include "penstock_torch.h"
#include "symbols.h"

#include <atomic>
#include <memory>
#include <unordered_set>
#include <vector>

namespace penstock {

// c10::CachingDeviceAllocator's AllocatorState: nothing but a virtual destructor.
struct State {
    virtual ~State();
};

// c10::DataPtr: the address; a std::unique_ptr, which has the function that frees before what it frees; the device. So in
// all versions since 1.0; that it is so is looked at each time.
struct DataPtr {
    void *address;
    void *owner[2];
    uint64_t device;
};

// c10::cuda::CUDACachingAllocator::CheckpointDelta
struct Delta {
    std::vector<void *> freed;
    std::vector<DataPtr> allocated;
};

// The entries of the allocator's virtual table.
std::shared_ptr<State> checkpoint(Allocator *, DeviceIndex device, PoolId id);
Delta restore(Allocator *a, DeviceIndex device, std::shared_ptr<State> state);
bool live_are(Allocator *, DeviceIndex device, PoolId id, const std::unordered_set<void *> &expected);

extern std::atomic<unsigned> restoring; // threads
void *take_restored();
// The address that an allocation by this thread is to have, once: it is restored. NULL: any.
inline void *restored() { return __builtin_expect(restoring.load(std::memory_order_relaxed) != 0, 0) ? take_restored() : nullptr; }

} // namespace penstock

#endif
