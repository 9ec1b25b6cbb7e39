// CPU time of launching an empty kernel with four pointers: the driver's own
// cuLaunchKernel against the hook's wrapper of it, in short turns of one thread.
//
//   launch_overhead [--rounds N] [--batch N] [--engine lib/libpenstock.so] [--modes off,observe,gated]
//
// Without the hook preloaded there is one variant, `stock`: the driver's function
// in a process that has nothing of Penstock. With it, `real` is the driver's
// function, called past the hook, and `off`, `observe`, `gated` are the wrapper
// with the hook in that mode. Observe and gated need --engine: two of the four
// pointers then come from penstock_malloc.
//
// A round launches one batch of each variant, in an order that rotates, each
// followed by a synchronisation that is not timed: otherwise the launch queue
// fills up and what is measured is the GPU's rate. The thread stays on one core,
// the one it began on. The kernels touch none of their pointers.
//
// Prints one JSON line: per variant the percentiles of all launches, and the
// median of each round's batch.
//
// build: nvcc -O2 -o launch_overhead launch_overhead.cu -ldl
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <sched.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "../cabi/hook/penstock_hook.h"

__global__ void empty4(void *, void *, void *, void *) {}

namespace {

constexpr int warm_up_rounds = 40;  // the engine learns, the driver loads
constexpr size_t bytes = 4u << 20;  // large enough to be managed by the engine under a budget

using launch_fn = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);

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

void *symbol(void *library, const char *name) {
    void *p = dlsym(library, name);
    if (!p) die(name, dlerror());
    return p;
}

struct Engine {
    void *(*malloc)(ssize_t, int, void *) = nullptr;
    void (*close)(void) = nullptr;
};

Engine open_engine(const char *path) {
    const char *limit = std::getenv("PENSTOCK_MANAGED_LIMIT");
    if (!limit || std::strcmp(limit, "8GiB") != 0) die("refused", "PENSTOCK_MANAGED_LIMIT must be 8GiB");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) die("dlopen", dlerror());
    Engine e;
    e.malloc = reinterpret_cast<void *(*)(ssize_t, int, void *)>(symbol(library, "penstock_malloc"));
    e.close = reinterpret_cast<void (*)(void)>(symbol(library, "penstock_close"));
    return e;
}

uint64_t load(uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

struct Variant {
    std::string name;
    launch_fn launch;
    uint32_t mode;  // of the hook while it is launched
    std::vector<int32_t> ns, medians;
    uint64_t seen = 0;  // launches that the hook saw
};

int32_t percentile(std::vector<int32_t> &v, double p) {
    auto at = v.begin() + ptrdiff_t(std::min(v.size() - 1, size_t(p * double(v.size()))));
    std::nth_element(v.begin(), at, v.end());
    return *at;
}

void stay_on_this_core() {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    if (sched_setaffinity(0, sizeof set, &set)) die("sched_setaffinity", "the thread could not be pinned");
}

}  // namespace

int main(int argc, char **argv) {
    int rounds = 1000, batch = 200;  // a batch stays below the launch queue's 1024 entries
    const char *path = nullptr;
    std::string modes = "off";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!std::strcmp(argv[i], "--rounds")) rounds = std::atoi(argv[i + 1]);
        else if (!std::strcmp(argv[i], "--batch")) batch = std::atoi(argv[i + 1]);
        else if (!std::strcmp(argv[i], "--engine")) path = argv[i + 1];
        else if (!std::strcmp(argv[i], "--modes")) modes = argv[i + 1];
        else die("unknown option", argv[i]);
    }
    if (rounds < 1 || batch < 1 || batch > 800) die("usage", "at least one round of 1 to 800 launches");

    check(cudaSetDevice(0), "cudaSetDevice");
    check(cudaFree(nullptr), "cudaFree(0)");

    void *p[4] = {};
    for (void *&q : p) check(cudaMalloc(&q, bytes), "cudaMalloc");
    Engine engine;
    if (path) {
        engine = open_engine(path);
        for (int i = 0; i < 2; i++)
            if (!(p[i] = engine.malloc(bytes, 0, nullptr))) die("penstock_malloc", "no memory, or the engine did not start (see above)");
    }

    psk_shared *hook = nullptr;
    uint32_t chosen = PSK_MODE_OFF;  // by the engine
    std::vector<Variant> variants;
    auto exported = reinterpret_cast<launch_fn>(symbol(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel"));
    if (void *attach = dlsym(RTLD_DEFAULT, "penstock_hook_attach")) {
        hook = reinterpret_cast<psk_shared *(*)(uint32_t)>(attach)(PSK_HOOK_ABI);  // again gives the same
        if (!hook) die("penstock_hook_attach", "another ABI version, or a forked child");
        chosen = __atomic_load_n(&hook->mode, __ATOMIC_ACQUIRE);
        auto real = reinterpret_cast<launch_fn>(reinterpret_cast<void *(*)(const char *)>(symbol(RTLD_DEFAULT, "penstock_hook_real"))("cuLaunchKernel"));
        if (!real || real == exported) die("penstock_hook_real", "the driver's function is not behind the wrapper");
        variants.push_back({"real", real, PSK_MODE_OFF, {}, {}});
        for (const auto &[name, mode] : {std::pair<std::string, uint32_t>("off", PSK_MODE_OFF), {"observe", PSK_MODE_OBSERVE}, {"gated", PSK_MODE_GATED}})
            if (("," + modes + ",").find("," + name + ",") != std::string::npos) variants.push_back({name, exported, mode, {}, {}});
        if (modes.find("gated") != std::string::npos && chosen != PSK_MODE_GATED)
            die("gated", "the engine did not choose gated mode: is PENSTOCK_BUDGET set, and does the driver have stream memory operations?");
        if (modes.find("observe") != std::string::npos && !path) die("observe", "needs --engine: somebody has to read the records");
    } else {
        variants.push_back({"stock", exported, PSK_MODE_OFF, {}, {}});
    }

    cudaFunction_t kernel;
    check(cudaGetFuncBySymbol(&kernel, reinterpret_cast<const void *>(&empty4)), "cudaGetFuncBySymbol");
    void *args[4] = {&p[0], &p[1], &p[2], &p[3]};
    const uint64_t dropped = hook ? load(&hook->dropped) : 0, gated = hook ? load(&hook->gated) : 0, opaque = hook ? load(&hook->opaque_launches) : 0;
    stay_on_this_core();
    std::vector<int32_t> ns(static_cast<size_t>(batch));
    for (int round = -warm_up_rounds; round < rounds; round++) {
        for (size_t k = 0; k < variants.size(); k++) {
            Variant &v = variants[(k + size_t(round + warm_up_rounds)) % variants.size()];
            if (hook) __atomic_store_n(&hook->mode, v.mode, __ATOMIC_RELEASE);
            const uint64_t seen = hook ? load(&hook->launches) : 0;
            for (int i = 0; i < batch; i++) {
                const int64_t began = now_ns();
                const CUresult r = v.launch(kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, args, nullptr);
                const int64_t ended = now_ns();
                if (r != CUDA_SUCCESS) die("cuLaunchKernel", "failed");
                ns[size_t(i)] = int32_t(std::min<int64_t>(ended - began, INT32_MAX));
            }
            check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
            if (round < 0) continue;
            v.seen += hook ? load(&hook->launches) - seen : 0;
            v.ns.insert(v.ns.end(), ns.begin(), ns.end());
            v.medians.push_back(percentile(ns, .5));
        }
    }
    if (hook) __atomic_store_n(&hook->mode, chosen, __ATOMIC_RELEASE);

    std::vector<int32_t> timer;
    for (int i = 0; i < 100000; i++) {
        const int64_t began = now_ns();
        timer.push_back(int32_t(now_ns() - began));
    }
    std::printf("{\"rounds\":%d,\"batch\":%d,\"timer_ns\":%d,\"engine_mode\":%u,\"gated\":%llu,\"dropped\":%llu,\"opaque\":%llu,\"variants\":[", rounds, batch, percentile(timer, .5), chosen,
                (unsigned long long)(hook ? load(&hook->gated) - gated : 0), (unsigned long long)(hook ? load(&hook->dropped) - dropped : 0),
                (unsigned long long)(hook ? load(&hook->opaque_launches) - opaque : 0));
    const char *separator = "";
    for (Variant &v : variants) {
        std::printf("%s{\"name\":\"%s\",\"seen\":%llu,\"median_ns\":%d,\"p99_ns\":%d,\"p999_ns\":%d,\"round_median_ns\":[", separator, v.name.c_str(), (unsigned long long)v.seen,
                    percentile(v.ns, .5), percentile(v.ns, .99), percentile(v.ns, .999));
        for (size_t i = 0; i < v.medians.size(); i++) std::printf("%s%d", i ? "," : "", v.medians[i]);
        std::printf("]}");
        separator = ",";
    }
    std::printf("]}\n");
    std::fflush(stdout);
    if (engine.close) engine.close();
    _exit(0);  // the table is out; do not time the teardown of two runtimes
}
