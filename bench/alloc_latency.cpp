/*
 * Times the allocator that PyTorch uses now, as PyTorch calls it: raw_alloc and
 * raw_delete of c10's current CUDA allocator, from C++ threads. Built as a
 * shared library and called through ctypes by pool.py. Every thread keeps some
 * allocations and replaces one at random, so that nothing but the allocator's
 * cache is at work once it is warm.
 */
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;

static uint32_t ns_since(Clock::time_point t) {
    return static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - t).count());
}

extern "C" {

/* Writes rounds * threads times of each call, in nanoseconds, with the clock's own time in it.
 * Sizes are drawn from the given ones. Returns 0, or 1 when an allocation failed. */
int measure(int threads, long rounds, long warm_up, int kept, const int64_t *sizes, int nsizes, uint32_t *alloc_ns, uint32_t *free_ns) {
    namespace cca = c10::cuda::CUDACachingAllocator;
    const c10::DeviceIndex device = c10::cuda::current_device();
    std::atomic<int> waiting{threads}, failed{0};
    auto body = [&](int t) {
        uint64_t x = 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(t + 1);
        auto random = [&] { return x ^= x << 13, x ^= x >> 7, x ^= x << 17; };
        auto size = [&] { return static_cast<size_t>(sizes[random() % static_cast<uint64_t>(nsizes)]); };
        std::vector<void *> live;
        try {
            c10::cuda::set_device(device);
            for (int i = 0; i < kept; i++) live.push_back(cca::raw_alloc(size()));
            waiting--;
            while (waiting.load() > 0) std::this_thread::yield();
            for (long i = -warm_up; i < rounds; i++) {
                void *&p = live[random() % live.size()];
                const size_t n = size();
                auto began = Clock::now();
                cca::raw_delete(p);
                const uint32_t freed = ns_since(began);
                p = nullptr;
                began = Clock::now();
                p = cca::raw_alloc(n);
                const uint32_t allocated = ns_since(began);
                if (i >= 0) free_ns[t * rounds + i] = freed, alloc_ns[t * rounds + i] = allocated;
            }
        } catch (...) {
            failed = 1;
            waiting = 0;
        }
        for (void *p : live)
            if (p) cca::raw_delete(p);
    };
    if (threads == 1) {
        body(0);
        return failed;
    }
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++) all.emplace_back(body, t);
    for (auto &t : all) t.join();
    return failed;
}

/* What reading the clock twice takes, for the same number of times. */
void measure_clock(long rounds, uint32_t *ns) {
    for (long i = 0; i < rounds; i++) {
        auto began = Clock::now();
        ns[i] = ns_since(began);
    }
}
}
