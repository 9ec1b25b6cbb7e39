// The functions that PyTorch's pluggable allocator calls.
#include "counters.h"
#include "engine.h"
#include "oom.h"
#include "penstock_torch.h"

#include <atomic>
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

[[noreturn]] void no_pools() {
    throw std::runtime_error("penstock: this engine cannot keep memory for CUDA graphs or torch.cuda.MemPool (libpenstock.so has no "
                             "penstock_begin_pool); run without CUDA graphs, or use a newer build");
}

} // namespace

extern "C" {

void *penstock_torch_malloc(ssize_t size, int device, CudaStream stream) {
    if (size == 0) return nullptr; // PyTorch never frees a null pointer
    const Engine &e = started(device);
    // A size above the signed range comes in negative: more than any budget.
    void *p = size < 0 ? nullptr : e.malloc(size, device, stream);
    if (!p) throw_out_of_memory(e, static_cast<size_t>(size), device);
    count_malloc(size);
    return p;
}

void penstock_torch_free(void *ptr, ssize_t size, int device, CudaStream stream) {
    if (!ptr) return;
    const Engine *e = opened();
    if (!e) return; // a forked child: the memory is the parent's
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
    if (int rc = e.set_memory_fraction(fraction, device)) {
        std::string why = last_error(e);
        throw std::runtime_error(why.empty() ? "penstock: cannot limit device " + std::to_string(device) + " to the fraction " +
                                                   std::to_string(fraction) + " (error " + std::to_string(rc) + ")"
                                             : "penstock: " + why);
    }
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
    if (!e.begin_pool || !e.end_pool || !e.release_pool) no_pools();
    e.begin_pool(device, id.first, id.second);
}

void penstock_torch_end_pool(int device, PoolId id) {
    const Engine *e = opened();
    if (e && e->end_pool) e->end_pool(device, id.first, id.second);
}

// Called by the destructor of a CUDA graph, possibly at exit: must not throw.
void penstock_torch_release_pool(int device, PoolId id) {
    const Engine *e = opened();
    if (e && e->release_pool) e->release_pool(device, id.first, id.second);
}
}
