// Raising PyTorch's out-of-memory error without PyTorch's headers.
#ifndef PENSTOCK_TORCH_OOM_H
#define PENSTOCK_TORCH_OOM_H

#include "engine.h"

namespace penstock {

// Throws c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError; a
// std::runtime_error with the same text when this PyTorch does not have the
// symbols that takes.
[[noreturn]] void throw_out_of_memory(const Engine &e, size_t bytes, int device);

} // namespace penstock

#endif
