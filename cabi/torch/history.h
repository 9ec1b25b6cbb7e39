// The history of allocations, as torch.cuda.memory._record_memory_history asks for it: a ring of what happened, and the
// stack of each live allocation. Off, it costs an atomic load a call.
#ifndef PENSTOCK_TORCH_HISTORY_H
#define PENSTOCK_TORCH_HISTORY_H

#include "engine.h"

#include <atomic>
#include <cstdint>
#include <sys/types.h>

namespace penstock {

// What stacks are taken of, each with those before: PyTorch's contexts.
enum class Stacks { Off, None, OfLive, OfMallocs, OfFrees };

// Off: nothing is recorded.
extern std::atomic<Stacks> history_stacks;

void record_malloc(const void *p, ssize_t bytes, int device, const void *stream);
void record_free(const void *p, ssize_t bytes, int device, const void *stream);
void record_out_of_memory(const Engine &e, ssize_t bytes, int device, const void *stream);

// These stand beside each allocation. None of this library's or the engine's locks is held: the interpreter's may be waited
// for. A free is noted before its memory can be given out again.
inline bool history_is_on() { return __builtin_expect(history_stacks.load(std::memory_order_relaxed) != Stacks::Off, 0); }
inline void note_malloc(const void *p, ssize_t bytes, int device, const void *stream) {
    if (history_is_on()) record_malloc(p, bytes, device, stream);
}
inline void note_free(const void *p, ssize_t bytes, int device, const void *stream) {
    if (history_is_on()) record_free(p, bytes, device, stream);
}
inline void note_out_of_memory(const Engine &e, ssize_t bytes, int device, const void *stream) {
    if (history_is_on()) record_out_of_memory(e, bytes, device, stream);
}

} // namespace penstock

#endif
