// The functions that PyTorch's pluggable allocator calls.
#include "checkpoint.h"
#include "counters.h"
#include "engine.h"
#include "history.h"
#include "oom.h"
#include "penstock_torch.h"
#include "pools.h"
#include "share.h"

#include <atomic>

using namespace penstock;

namespace {

constexpr int max_devices = 64;

struct Fractions {
    std::atomic<double> of[max_devices];
    Fractions() {
        for (auto &f : of) f.store(1.0);
    }
} fractions;

} // namespace

extern "C" {

void *penstock_torch_malloc(ssize_t size, int device, CudaStream stream) {
    if (size == 0) return nullptr; // PyTorch never frees a null pointer
    if (void *p = restored()) {
        count_malloc(size);
        note_malloc(p, size, device, stream);
        return p;
    }
    const Engine &e = started(device);
    // A size above the signed range comes in negative: more than any budget.
    void *p = size < 0 ? nullptr : allocate(e, size, device, stream);
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
    unshare(ptr);
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
    check(e, "cannot limit the device to a fraction of its memory", e.set_memory_fraction(fraction, device));
    fractions.of[device].store(fraction);
}

double penstock_torch_memory_fraction(int device) {
    return device >= 0 && device < max_devices ? fractions.of[device].load() : 1.0;
}
}
