// The engine library as this shim sees it: opened once, late, never closed.
#ifndef PENSTOCK_TORCH_ENGINE_H
#define PENSTOCK_TORCH_ENGINE_H

#include <cstdint>
#include <string>
#include <sys/types.h>

namespace penstock {

struct Engine {
    void *handle;
    int (*init)(int);
    void *(*malloc)(ssize_t, int, void *);
    void (*free)(void *, ssize_t, int, void *);
    void (*record_stream)(void *, void *);
    void (*empty_cache)(void);
    int (*set_memory_fraction)(double, int);
    void (*reset_peak_stats)(void);
    long (*stats)(char *, size_t);
    long (*last_error)(char *, size_t);
    void (*close)(void);
    // Optional: NULL when the engine has no support for CUDA graph pools.
    void (*begin_pool)(int, unsigned long long, unsigned long long);
    void (*end_pool)(int, unsigned long long, unsigned long long);
    void (*release_pool)(int, unsigned long long, unsigned long long);
};

// The engine when it has been opened in this process, else NULL. Never opens
// it, never blocks. NULL in a forked child of a process that opened it.
const Engine *opened();

// The engine, opened if need be and started on the device. Throws
// std::runtime_error saying what is wrong and what to do.
const Engine &started(int device);

// The last error text of the engine; "" when none.
std::string last_error(const Engine &e);
// The engine's statistics as JSON text.
std::string stats(const Engine &e);
// A number of that JSON; missing when it is absent.
int64_t stat(const std::string &json, const char *key, int64_t missing);

} // namespace penstock

#endif
