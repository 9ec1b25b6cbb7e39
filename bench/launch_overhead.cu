// CPU time of launching an empty kernel with four pointers, one launch at a time.
//
//   launch_overhead MODE [--launches N] [--engine lib/libpenstock.so]
//
//   stock    all pointers from cudaMalloc; also used with the hook preloaded and no engine
//   engine   two pointers from penstock_malloc; the hook is left in the mode that the engine chose
//   observe  as engine, then the hook is set to OBSERVE: records, no gates
//   gated    as engine, and it is an error if the engine did not choose GATED
//
// Prints one JSON line. Launches go out in batches with a synchronisation in
// between, which is not timed: otherwise the launch queue fills up and what is
// measured is the GPU's rate. The kernels touch none of their pointers.
//
// build: nvcc -O2 -o launch_overhead launch_overhead.cu [-cudart shared] -ldl
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "../cabi/hook/penstock_hook.h"

__global__ void empty4(void *, void *, void *, void *) {}

namespace {

constexpr int batch = 400;          // below the launch queue's 1024 entries
constexpr int warm_up = 20000;      // the engine learns, the driver loads
constexpr size_t bytes = 4u << 20;  // large enough to be managed by the engine under a budget

[[noreturn]] void die(const char *what, const char *why) {
    std::fprintf(stderr, "launch_overhead: %s: %s\n", what, why);
    std::exit(1);
}

void check(cudaError_t e, const char *what) {
    if (e != cudaSuccess) die(what, cudaGetErrorString(e));
}

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

struct Engine {
    void *(*malloc)(ssize_t, int, void *) = nullptr;
    void (*close)(void) = nullptr;
    psk_shared *hook = nullptr;
};

void *symbol(void *library, const char *name) {
    void *p = dlsym(library, name);
    if (!p) die(name, dlerror());
    return p;
}

Engine open_engine(const char *path) {
    const char *limit = std::getenv("PENSTOCK_MANAGED_LIMIT");
    if (!limit || std::strcmp(limit, "8GiB") != 0) die("refused", "PENSTOCK_MANAGED_LIMIT must be 8GiB");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) die("dlopen", dlerror());
    Engine e;
    e.malloc = reinterpret_cast<void *(*)(ssize_t, int, void *)>(symbol(library, "penstock_malloc"));
    e.close = reinterpret_cast<void (*)(void)>(symbol(library, "penstock_close"));
    auto attach = reinterpret_cast<psk_shared *(*)(uint32_t)>(symbol(RTLD_DEFAULT, "penstock_hook_attach"));
    // The engine attaches at its first allocation; attaching again gives the same shared state.
    if (!e.malloc(bytes, 0, nullptr)) die("penstock_malloc", "no memory, or the engine did not start (see above)");
    e.hook = attach(PSK_HOOK_ABI);
    if (!e.hook) die("penstock_hook_attach", "another ABI version, or a forked child");
    return e;
}

uint64_t load(uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
uint32_t load(uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

int64_t percentile(const std::vector<int32_t> &sorted, double p) {
    return sorted[std::min(sorted.size() - 1, size_t(p * double(sorted.size())))];
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 2) die("usage", "launch_overhead stock|engine|observe|gated [--launches N] [--engine PATH]");
    const std::string mode = argv[1];
    int launches = 200000;
    const char *path = "lib/libpenstock.so";
    for (int i = 2; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--launches")) launches = std::atoi(argv[i + 1]);
        else if (!std::strcmp(argv[i], "--engine")) path = argv[i + 1];
        else die("unknown option", argv[i]);
    }
    if (mode != "stock" && mode != "engine" && mode != "observe" && mode != "gated") die("unknown mode", mode.c_str());
    if (launches < batch) die("usage", "too few launches");

    check(cudaSetDevice(0), "cudaSetDevice");
    check(cudaFree(nullptr), "cudaFree(0)");
    size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    if (free_bytes < (size_t(100) << 30)) die("refused", "less than 100 GiB of the card are free");

    Engine engine;
    void *p[4] = {};
    for (void *&q : p) check(cudaMalloc(&q, bytes), "cudaMalloc");
    if (mode != "stock") {
        engine = open_engine(path);
        for (int i = 0; i < 2; i++)
            if (!(p[i] = engine.malloc(bytes, 0, nullptr))) die("penstock_malloc", "out of memory");
        if (mode == "gated" && load(&engine.hook->mode) != PSK_MODE_GATED)
            die("gated", "the engine did not choose gated mode: is PENSTOCK_BUDGET set, and does the driver have stream memory operations?");
        if (mode == "observe") __atomic_store_n(&engine.hook->mode, uint32_t(PSK_MODE_OBSERVE), __ATOMIC_RELEASE);
    }

    void *args[4] = {&p[0], &p[1], &p[2], &p[3]};
    const void *kernel = reinterpret_cast<const void *>(&empty4);
    auto launch = [&] { return cudaLaunchKernel(kernel, dim3(1), dim3(32), args, 0, nullptr); };
    for (int i = 0; i < warm_up; i++) {
        check(launch(), "launch");
        if (i % batch == batch - 1) check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");

    psk_shared *h = engine.hook;
    const uint64_t seen = h ? load(&h->launches) : 0, gated = h ? load(&h->gated) : 0;
    const uint64_t dropped = h ? load(&h->dropped) : 0, opaque = h ? load(&h->opaque_launches) : 0;
    std::vector<int32_t> ns;
    ns.reserve(size_t(launches));
    for (int done = 0; done < launches;) {
        const int n = std::min(batch, launches - done);
        for (int i = 0; i < n; i++) {
            const int64_t began = now_ns();
            const cudaError_t e = launch();
            const int64_t ended = now_ns();
            if (e != cudaSuccess) check(e, "launch");
            ns.push_back(int32_t(std::min<int64_t>(ended - began, INT32_MAX)));
        }
        done += n;
        check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }

    std::vector<int32_t> timer;
    for (int i = 0; i < 100000; i++) {
        const int64_t began = now_ns();
        timer.push_back(int32_t(now_ns() - began));
    }
    std::sort(timer.begin(), timer.end());
    std::sort(ns.begin(), ns.end());
    int64_t sum = 0;
    for (int32_t x : ns) sum += x;
    std::printf("{\"mode\":\"%s\",\"launches\":%d,\"median_ns\":%lld,\"p90_ns\":%lld,\"p99_ns\":%lld,\"p999_ns\":%lld,\"mean_ns\":%.1f,\"timer_ns\":%lld,"
                "\"hook_present\":%s,\"hook_mode\":%d,\"hook_launches\":%llu,\"hook_gated\":%llu,\"hook_dropped\":%llu,\"hook_opaque\":%llu}\n",
                mode.c_str(), launches, (long long)percentile(ns, .5), (long long)percentile(ns, .9), (long long)percentile(ns, .99),
                (long long)percentile(ns, .999), double(sum) / double(ns.size()), (long long)percentile(timer, .5),
                dlsym(RTLD_DEFAULT, "penstock_hook_attach") ? "true" : "false", h ? int(load(&h->mode)) : -1,
                (unsigned long long)(h ? load(&h->launches) - seen : 0), (unsigned long long)(h ? load(&h->gated) - gated : 0),
                (unsigned long long)(h ? load(&h->dropped) - dropped : 0), (unsigned long long)(h ? load(&h->opaque_launches) - opaque : 0));
    std::fflush(stdout);
    if (engine.close) engine.close();
    _exit(0);  // the table is out; do not time the teardown of two runtimes
}
