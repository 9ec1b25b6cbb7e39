// The functions that PyTorch's pluggable allocator calls.
#include "counters.h"
#include "engine.h"
#include "history.h"
#include "oom.h"
#include "penstock_torch.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

using namespace penstock;

namespace {

constexpr int max_devices = 64;

struct Fractions {
    std::atomic<double> of[max_devices];
    Fractions() {
        for (auto &f : of) f.store(1.0);
    }
} fractions;

// What the engine says of a call that failed.
[[noreturn]] void fail(const Engine &e, const std::string &what, int rc) {
    std::string why = last_error(e);
    throw std::runtime_error("penstock: " + (why.empty() ? what + " (" + std::strerror(-rc) + ")" : why));
}

} // namespace

extern "C" {

void *penstock_torch_malloc(ssize_t size, int device, CudaStream stream) {
    if (size == 0) return nullptr; // PyTorch never frees a null pointer
    const Engine &e = started(device);
    // A size above the signed range comes in negative: more than any budget.
    void *p = size < 0 ? nullptr : e.malloc(size, device, stream);
    if (!p) {
        note_out_of_memory(e, size, device, stream);
        throw_out_of_memory(e, static_cast<size_t>(size), device);
    }
    count_malloc(size);
    note_malloc(p, size, device, stream);
    return p;
}

void penstock_torch_free(void *ptr, ssize_t size, int device, CudaStream stream) {
    if (!ptr) return;
    const Engine *e = opened();
    if (!e) return; // a forked child: the memory is the parent's
    note_free(ptr, size, device, stream);
    e->free(ptr, size, device, stream);
    count_free(size);
}

void penstock_torch_record_stream(void *ptr, CudaStream stream) {
    const Engine *e = opened();
    if (e && ptr) e->record_stream(ptr, stream);
}

void penstock_torch_empty_cache(void) {
    if (const Engine *e = opened()) e->empty_cache();
}

void penstock_torch_set_memory_fraction(double fraction, int device) {
    const Engine &e = started(device);
    if (int rc = e.set_memory_fraction(fraction, device)) fail(e, "cannot limit the device to a fraction of its memory", rc);
    fractions.of[device].store(fraction);
}

double penstock_torch_memory_fraction(int device) {
    return device >= 0 && device < max_devices ? fractions.of[device].load() : 1.0;
}

// The filter says which streams' allocations belong to the pool. The engine
// puts every allocation between begin and end there instead: what another
// stream allocates meanwhile is kept resident longer than it needs to be, which
// is safe, and captures are short.
void penstock_torch_begin_pool(int device, PoolId id, std::function<bool(CudaStream)>) {
    const Engine &e = started(device);
    if (int rc = e.begin_pool(device, id.first, id.second)) fail(e, "cannot keep memory for a CUDA graph", rc);
}

void penstock_torch_end_pool(int device, PoolId id) {
    const Engine *e = opened();
    if (!e) return;
    if (int rc = e->end_pool(device, id.first, id.second)) fail(*e, "cannot end the memory pool of a CUDA graph", rc);
}

// Called by the destructor of a CUDA graph, possibly at exit: must not throw.
void penstock_torch_release_pool(int device, PoolId id) {
    const Engine *e = opened();
    if (e) e->release_pool(device, id.first, id.second);
}
}
