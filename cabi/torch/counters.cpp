#include "counters.h"
#include "engine.h"
#include "penstock_torch.h"

#include <atomic>

namespace penstock {
namespace {

constexpr ssize_t small_limit = 1 << 20;

// Relaxed atomics: every number is right by itself, and a reader that catches
// two of them a moment apart is no worse off than with a lock.
struct Counter {
    std::atomic<int64_t> allocated{0}, freed{0}, peak{0};
    // What reset_accumulated subtracts.
    std::atomic<int64_t> allocated_base{0}, freed_base{0};

    int64_t current() const { return allocated.load(std::memory_order_relaxed) - freed.load(std::memory_order_relaxed); }
    void raise_peak(int64_t to) {
        int64_t p = peak.load(std::memory_order_relaxed);
        while (p < to && !peak.compare_exchange_weak(p, to, std::memory_order_relaxed)) {
        }
    }
    void add(int64_t n) {
        allocated.fetch_add(n, std::memory_order_relaxed);
        raise_peak(current());
    }
    void remove(int64_t n) { freed.fetch_add(n, std::memory_order_relaxed); }
    void read(int64_t *out) const {
        out[0] = current();
        out[1] = peak.load(std::memory_order_relaxed);
        out[2] = allocated.load(std::memory_order_relaxed) - allocated_base.load(std::memory_order_relaxed);
        out[3] = freed.load(std::memory_order_relaxed) - freed_base.load(std::memory_order_relaxed);
    }
    void reset_peak() { peak.store(current(), std::memory_order_relaxed); }
    void reset_accumulated() {
        allocated_base.store(allocated.load(std::memory_order_relaxed), std::memory_order_relaxed);
        freed_base.store(freed.load(std::memory_order_relaxed), std::memory_order_relaxed);
    }
};

struct Pool {
    Counter count, bytes;
};

Pool pools[3]; // all, small, large

} // namespace

void count_malloc(ssize_t bytes) {
    for (Pool *p : {&pools[0], &pools[bytes <= small_limit ? 1 : 2]}) {
        p->count.add(1);
        p->bytes.add(bytes);
    }
}

void count_free(ssize_t bytes) {
    for (Pool *p : {&pools[0], &pools[bytes <= small_limit ? 1 : 2]}) {
        p->count.remove(1);
        p->bytes.remove(bytes);
    }
}

} // namespace penstock

using namespace penstock;

extern "C" {

void penstock_torch_counters(int64_t out[24]) {
    for (int i = 0; i < 3; i++) {
        pools[i].count.read(out + i * 8);
        pools[i].bytes.read(out + i * 8 + 4);
    }
}

void penstock_torch_reset_peak(void) {
    if (const Engine *e = opened()) e->reset_peak_stats();
    for (Pool &p : pools) p.count.reset_peak(), p.bytes.reset_peak();
}

void penstock_torch_reset_accumulated(void) {
    for (Pool &p : pools) p.count.reset_accumulated(), p.bytes.reset_accumulated();
}
}
