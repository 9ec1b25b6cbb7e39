// CUDA tensors that are sent to other processes, as torch.multiprocessing does.
#ifndef PENSTOCK_TORCH_SHARE_H
#define PENSTOCK_TORCH_SHARE_H

#include "symbols.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

namespace penstock {

// c10::cuda::CUDACachingAllocator::ShareableHandle: by the handle another process gets at the memory, in which the allocation
// begins at the offset.
struct ShareableHandle {
    ptrdiff_t offset;
    std::string handle;
};

// The entries of the allocator's virtual table. What is shared stays on the device from then on, for as long as it lives.
ShareableHandle share(Allocator *, void *p);
std::shared_ptr<void> open_shared(Allocator *, std::string handle);

extern std::atomic<size_t> shared_count;
void end_sharing(void *p);
// An allocation is freed: who asks for it from now on does not get it.
inline void unshare(void *p) {
    if (shared_count.load(std::memory_order_relaxed)) end_sharing(p);
}

} // namespace penstock

#endif
