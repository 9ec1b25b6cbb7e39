// Raising PyTorch's out-of-memory error without PyTorch's headers.
#ifndef PENSTOCK_TORCH_OOM_H
#define PENSTOCK_TORCH_OOM_H

#include "engine.h"

#include <functional>

namespace penstock {

// Throws c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError; a
// std::runtime_error with the same text when this PyTorch does not have the
// symbols that takes, or nobody has looked whether its layouts are those known here.
[[noreturn]] void throw_out_of_memory(const Engine &e, size_t bytes, int device);

// c10::cuda::CUDACachingAllocator::OutOfMemoryObserver: the device, what was asked for, the device's bytes in all and free.
using OutOfMemoryObserver = std::function<void(int64_t, size_t, size_t, size_t)>;
// Has an observer called before such an error is thrown, for the rest of the process.
void observe_out_of_memory(OutOfMemoryObserver observer);

// Says whether they are; until then they are not.
void know_exceptions(bool yes);

} // namespace penstock

#endif
