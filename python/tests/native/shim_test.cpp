/*
 * Calls the shim as PyTorch does: through function pointers, catching C++
 * exceptions. Arguments: the shim, the engine, the case.
 */
#ifdef WITH_C10
#include "fake_c10.h"
#endif
#include "penstock_torch.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <stdexcept>
#include <thread>
#include <vector>

static void *shim;

template <typename F> F *function(const char *name) {
    auto *f = reinterpret_cast<F *>(dlsym(shim, name));
    if (!f) std::fprintf(stderr, "no %s\n", name), std::exit(3);
    return f;
}
#define SHIM(name) function<decltype(name)>(#name)

// In another thread too: PyTorch's backward pass allocates in its own.
static void out_of_memory(size_t bytes) {
    auto *alloc = SHIM(penstock_torch_malloc);
    try {
        alloc(static_cast<ssize_t>(bytes), 0, nullptr);
        std::puts("no exception");
#ifdef WITH_C10
    } catch (const c10::OutOfMemoryError &e) {
        std::printf("c10::OutOfMemoryError %s\n", e.what());
#endif
    } catch (const std::runtime_error &e) {
        std::printf("runtime_error %s\n", e.what());
    }
}

// Pools of memory that are begun at once: the last that takes an allocation has it.
static void pools() {
    PoolId outer{7, 9}, inner{7, 10};
    bool takes = true;
    auto *alloc = SHIM(penstock_torch_malloc);
    auto *begin = SHIM(penstock_torch_begin_pool);
    auto *end = SHIM(penstock_torch_end_pool);
    try {
        begin(0, outer, [](CudaStream) { return true; });
        begin(0, inner, [&takes](CudaStream) { return takes; });
        alloc(64, 0, nullptr);
        takes = false;
        alloc(65, 0, nullptr);
        alloc(66, 1, nullptr); // another device
        end(0, outer);
        alloc(67, 0, nullptr);
        takes = true;
        alloc(68, 0, nullptr);
        end(0, inner);
        alloc(69, 0, nullptr);
        SHIM(penstock_torch_release_pool)(0, outer);
        std::puts("pools work");
        begin(0, outer, [](CudaStream) { return true; });
        try {
            begin(0, outer, [](CudaStream) { return true; });
        } catch (const std::runtime_error &e) {
            std::printf("again: %s\n", e.what());
        }
        end(0, inner);
    } catch (const std::runtime_error &e) {
        std::printf("runtime_error %s\n", e.what());
    }
}

// Many threads at once: the counters must come out even.
static void threads() {
    auto *alloc = SHIM(penstock_torch_malloc);
    auto *release = SHIM(penstock_torch_free);
    std::vector<std::thread> all;
    for (int t = 0; t < 8; t++)
        all.emplace_back([=] {
            for (int i = 0; i < 500; i++) {
                ssize_t n = i % 5 == 0 ? (2 << 20) : 100;
                void *p = alloc(n, 0, nullptr);
                release(p, n, 0, nullptr);
            }
        });
    for (auto &t : all) t.join();
    int64_t c[24];
    SHIM(penstock_torch_counters)(c);
    for (int i = 0; i < 24; i++) std::printf("%lld ", static_cast<long long>(c[i]));
    std::puts("");
}

static std::string history() {
    std::string text(1 << 20, '\0');
    text.resize(static_cast<size_t>(SHIM(penstock_torch_history)(&text[0], text.size(), 1)));
    return text;
}

// Where there is no Python: what happened is known, without stacks. Threads come and go while the recording does.
static void record() {
    auto *alloc = SHIM(penstock_torch_malloc);
    auto *release = SHIM(penstock_torch_free);
    auto *start = SHIM(penstock_torch_record_history);
    void *before = alloc(100, 0, nullptr);
    start(4, 6, 0, 0);
    for (ssize_t n = 1; n <= 3; n++) release(alloc(n, 0, nullptr), n, 0, nullptr);
    release(before, 100, 0, nullptr);
    SHIM(penstock_torch_note_snapshot)(0, 7);
    try {
        alloc(ssize_t{1} << 50, 0, nullptr);
    } catch (const std::exception &) {
    }
    std::puts(history().c_str());
    char little[8];
    std::printf("%d %d\n", SHIM(penstock_torch_history)(little, sizeof little, 1) == static_cast<long>(history().size()), SHIM(penstock_torch_history_enabled)());
    start(1, 100, 1 << 1, 1);
    release(alloc(9, 0, nullptr), 9, 0, nullptr);
    std::puts(history().c_str());
    std::vector<std::thread> all;
    for (int t = 0; t < 4; t++)
        all.emplace_back([=] {
            for (int i = 0; i < 2000; i++) release(alloc(100, 0, nullptr), 100, 0, nullptr);
        });
    for (int i = 0; i < 200; i++) {
        start(i % 5, i, 0, i % 3 == 0);
        history();
    }
    for (auto &t : all) t.join();
    start(0, 0, 0, 0);
    release(alloc(9, 0, nullptr), 9, 0, nullptr);
    std::printf("%s %d\n", history().c_str(), SHIM(penstock_torch_history_enabled)());
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    // As Python loads it.
    shim = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!shim) return std::fprintf(stderr, "%s\n", dlerror()), 3;
    if (const char *error = SHIM(penstock_torch_setup)(argv[2], !std::getenv("UNKNOWN_EXCEPTIONS"))) {
        std::printf("setup: %s\n", error);
        return 0;
    }
    const char *what = argv[3];
    if (!std::strcmp(what, "oom")) {
        out_of_memory(size_t{5} << 30);
        std::thread(out_of_memory, size_t{5} << 30).join();
        out_of_memory(~size_t{0} - 4095); // negative as a ssize_t
#ifdef WITH_C10
        std::printf("live %d\n", c10::Error::live);
#endif
    } else if (!std::strcmp(what, "pools"))
        pools();
    else if (!std::strcmp(what, "threads"))
        threads();
    else if (!std::strcmp(what, "record"))
        record();
    else if (!std::strcmp(what, "exit"))
        SHIM(penstock_torch_malloc)(64, 0, nullptr); // and leave by exit(): the engine must be closed
    else
        return 2;
    return 0;
}
