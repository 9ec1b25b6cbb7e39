#include "oom.h"
#include "symbols.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <cxxabi.h>
#include <mutex>
#include <new>
#include <stdexcept>
#include <typeinfo>
#include <vector>

namespace penstock {
namespace {

// c10::SourceLocation: function, file, line. Passed by value, so its layout and
// triviality are all that matters.
struct SourceLocation {
    const char *function;
    const char *file;
    uint32_t line;
};

// c10::Error is about 200 bytes in torch 2.11 and only ever constructed in place: room to grow.
constexpr size_t exception_bytes = 4096;

void *find(const char *symbol) {
    for (const char *lib : {"libc10.so", "libc10_cuda.so", "libtorch_python.so"})
        if (void *p = find_symbol(lib, symbol)) return p;
    return dlsym(RTLD_DEFAULT, symbol);
}

struct OutOfMemoryType {
    std::type_info *type;
    void **vtable; // the address point: [0] is the complete-object destructor
    void (*construct)(void *, SourceLocation, std::string);

    static OutOfMemoryType resolve() {
        OutOfMemoryType t{};
        t.type = static_cast<std::type_info *>(find("_ZTIN3c1016OutOfMemoryErrorE"));
        void **table = static_cast<void **>(find("_ZTVN3c1016OutOfMemoryErrorE"));
        t.vtable = table ? table + 2 : nullptr; // after offset-to-top and the type
        // c10::Error::Error(c10::SourceLocation, std::string): the base class's constructor is
        // the derived class's too (it adds no members).
        t.construct = reinterpret_cast<void (*)(void *, SourceLocation, std::string)>(
            find("_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"));
        return t;
    }
    bool complete() const { return type && vtable && construct; }
};

std::string bytes_text(int64_t bytes) {
    static const char *units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = static_cast<double>(static_cast<uint64_t>(bytes));
    int u = 0;
    while (v >= 1024 && u < 6) v /= 1024, u++;
    char out[96];
    if (u == 0)
        std::snprintf(out, sizeof out, "%llu bytes", static_cast<unsigned long long>(bytes));
    else
        std::snprintf(out, sizeof out, "%.2f %s (%llu bytes)", v, units[u], static_cast<unsigned long long>(bytes));
    return out;
}

std::string budget_text(int64_t bytes) { return bytes > 0 ? bytes_text(bytes) : "unlimited"; }

bool mentions(const std::string &text, int64_t number) { return text.find(std::to_string(number)) != std::string::npos; }

std::string message(const Engine &e, size_t bytes, int device) {
    const std::string json = stats(e), why = last_error(e);
    const int64_t budget = stat(json, "budget_bytes", 0), host_budget = stat(json, "host_budget_bytes", 0);
    // "CUDA out of memory." is what programs that retry with a smaller batch look for.
    std::string m = "CUDA out of memory. Penstock could not allocate " + bytes_text(static_cast<int64_t>(bytes)) + " on device " +
                    std::to_string(device);
    // Both budgets are always named: by the engine, or else here.
    if (mentions(why, budget) && mentions(why, host_budget)) return m + ": " + why + ", or use a smaller batch.";
    m += ": device budget " + budget_text(budget) + ", host budget " + budget_text(host_budget);
    int64_t live = stat(json, "allocated_bytes", -1);
    if (live >= 0) m += ", " + bytes_text(live) + " already allocated";
    if (!why.empty()) m += " (" + why + ")";
    return m + ". Raise the host budget or the device budget (--host-budget, --budget), or use a smaller batch.";
}

std::atomic<bool> known{false};

std::mutex observers_mutex;
std::vector<OutOfMemoryObserver> observers;

void tell_observers(const Engine &e, size_t bytes, int device) {
    std::vector<OutOfMemoryObserver> all;
    {
        std::lock_guard<std::mutex> lock(observers_mutex);
        all = observers;
    }
    if (all.empty()) return;
    const std::string json = stats(e);
    const auto total = static_cast<size_t>(stat(json, "budget_bytes", 0)), free = static_cast<size_t>(stat(json, "device_free_bytes", 0));
    for (const auto &observe : all) observe(device, bytes, total, free);
}

} // namespace

void observe_out_of_memory(OutOfMemoryObserver observer) {
    std::lock_guard<std::mutex> lock(observers_mutex);
    observers.push_back(std::move(observer));
}

void know_exceptions(bool yes) { known.store(yes); }

void throw_out_of_memory(const Engine &e, size_t bytes, int device) {
    std::string text = message(e, bytes, device);
    tell_observers(e, bytes, device);
    // Names stay when layouts change. Resolved on each use: it is rare, and torch may have been loaded since the last.
    const OutOfMemoryType t = known.load() ? OutOfMemoryType::resolve() : OutOfMemoryType{};
    if (!t.complete()) throw std::runtime_error(text);
    void *object = abi::__cxa_allocate_exception(exception_bytes);
    std::memset(object, 0, exception_bytes);
    try {
        t.construct(object, SourceLocation{"penstock_malloc", "libpenstock_torch", 0}, std::move(text));
    } catch (...) {
        abi::__cxa_free_exception(object);
        throw;
    }
    *static_cast<void ***>(object) = t.vtable;
    abi::__cxa_throw(object, t.type, reinterpret_cast<void (*)(void *)>(t.vtable[0]));
}

} // namespace penstock
