#include "engine.h"
#include "oom.h"
#include "penstock_torch.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <pthread.h>
#include <stdexcept>
#include <unistd.h>

namespace penstock {
namespace {

constexpr int max_devices = 64;

std::mutex setup_mutex; // guards path and the opening; taken by nothing else
std::string path;
std::string setup_error;
Engine engine;
std::atomic<const Engine *> current{nullptr};
std::atomic<bool> opening{false}; // from the first dlopen on
std::atomic<bool> forked{false};  // a child of a process that had opened the engine
std::atomic<bool> closed{false};
std::atomic<bool> ready[max_devices];
std::atomic<int> first_device{-1};

// A Go runtime does not survive fork: the child keeps away from it. A child of
// a process that had not opened the engine may open its own.
void in_child() {
    if (opening.load()) {
        forked.store(true);
        current.store(nullptr);
    }
}

[[noreturn]] void fail(const std::string &text) {
    throw std::runtime_error(text.compare(0, 8, "penstock") == 0 ? text : "penstock: " + text);
}

template <typename F> void resolve(void *handle, const char *name, F *&out) {
    out = reinterpret_cast<F *>(dlsym(handle, name));
    if (!out)
        fail(path + " does not export " + name + ": it is not the libpenstock.so of this version; rebuild with `make build`");
}

// The engine's Go threads take the mask of the thread that loads it. Handlers that are installed
// later need not run on an alternate stack, and would run on Go's small ones: so these threads get
// no signals of others, but those of faults, and the two that the Go runtime sends itself.
class SignalsHeld {
public:
    SignalsHeld() {
        sigset_t held;
        sigfillset(&held);
        for (int mine : {SIGURG, SIGPROF, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&held, mine);
        pthread_sigmask(SIG_BLOCK, &held, &before_);
    }
    ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

void *load_engine() {
    SignalsHeld held;
    return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

const Engine &open_engine() {
    std::lock_guard<std::mutex> lock(setup_mutex);
    if (const Engine *e = current.load()) return *e;
    if (path.empty()) fail("no engine library was named; call penstock.enable() or use `penstock run`");
    opening.store(true);
    void *handle = load_engine();
    if (!handle) {
        const char *why = dlerror();
        fail(std::string("cannot load the engine: ") + (why ? why : path.c_str()));
    }
    Engine e{};
    decltype(&penstock_abi_version) version = nullptr;
    e.handle = handle;
    resolve(handle, "penstock_abi_version", version);
    if (version() != PENSTOCK_ABI_VERSION)
        fail(path + " has ABI version " + std::to_string(version()) + ", this is for version " + std::to_string(PENSTOCK_ABI_VERSION) +
             ": use libraries of one build");
    resolve(handle, "penstock_init", e.init);
    resolve(handle, "penstock_malloc", e.malloc);
    resolve(handle, "penstock_free", e.free);
    resolve(handle, "penstock_record_stream", e.record_stream);
    resolve(handle, "penstock_empty_cache", e.empty_cache);
    resolve(handle, "penstock_set_memory_fraction", e.set_memory_fraction);
    resolve(handle, "penstock_reset_peak_stats", e.reset_peak_stats);
    resolve(handle, "penstock_stats", e.stats);
    resolve(handle, "penstock_last_error", e.last_error);
    resolve(handle, "penstock_size_of", e.size_of);
    resolve(handle, "penstock_close", e.close);
    resolve(handle, "penstock_retain_pool", e.retain_pool);
    resolve(handle, "penstock_release_pool", e.release_pool);
    resolve(handle, "penstock_pool_users", e.pool_users);
    resolve(handle, "penstock_malloc_in_pool", e.malloc_in_pool);
    resolve(handle, "penstock_pool_blocks", e.pool_blocks);
    resolve(handle, "penstock_restore_in_pool", e.restore_in_pool);
    engine = e;
    // Python's atexit comes first and is the usual way; this is for programs
    // that end by exit() from C.
    std::atexit(penstock_torch_close);
    current.store(&engine);
    return engine;
}

std::string text_of(long (*get)(char *, size_t)) {
    std::string text(4096, '\0');
    for (;;) {
        long n = get(&text[0], text.size());
        if (n < 0) return "";
        if (static_cast<size_t>(n) < text.size()) {
            text.resize(static_cast<size_t>(n));
            return text;
        }
        text.assign(static_cast<size_t>(n) + 1, '\0'); // what it holds may have grown since: ask again
    }
}

} // namespace

const Engine *opened() { return current.load(std::memory_order_acquire); }

const Engine &started(int device) {
    if (forked.load()) fail("CUDA memory cannot be allocated in a forked child; start workers with the 'spawn' method");
    if (device < 0 || device >= max_devices) fail("device " + std::to_string(device) + " is out of range");
    const Engine *e = opened();
    if (!e) e = &open_engine();
    if (!ready[device].load(std::memory_order_acquire)) {
        if (int rc = e->init(device)) {
            std::string why = last_error(*e);
            fail(why.empty() ? std::string("the engine did not start: ") + std::strerror(-rc) : why);
        }
        int none = -1;
        first_device.compare_exchange_strong(none, device);
        ready[device].store(true, std::memory_order_release);
    }
    return *e;
}

std::string last_error(const Engine &e) { return text_of(e.last_error); }

void check(const Engine &e, const char *what, long rc) {
    if (rc >= 0) return;
    const std::string why = last_error(e);
    fail(why.empty() ? std::string(what) + " (" + std::strerror(static_cast<int>(-rc)) + ")" : why);
}

std::string stats(const Engine &e) { return text_of(e.stats); }

int64_t stat(const std::string &json, const char *key, int64_t missing) {
    const std::string quoted = std::string("\"") + key + "\"";
    size_t at = json.find(quoted);
    if (at == std::string::npos) return missing;
    at = json.find_first_not_of(" \t\n:", at + quoted.size());
    if (at == std::string::npos) return missing;
    char *end = nullptr;
    long long v = std::strtoll(json.c_str() + at, &end, 10);
    return end == json.c_str() + at ? missing : v;
}

} // namespace penstock

using namespace penstock;

extern "C" {

const char *penstock_torch_setup(const char *engine_path, int known_exceptions) {
    know_exceptions(known_exceptions != 0);
    std::lock_guard<std::mutex> lock(setup_mutex);
    static bool watching_fork = false;
    if (!watching_fork) {
        pthread_atfork(nullptr, nullptr, in_child);
        watching_fork = true;
    }
    if (access(engine_path, R_OK) != 0) {
        setup_error = std::string(engine_path) + ": " + std::strerror(errno);
        return setup_error.c_str();
    }
    if (opening.load() && path != engine_path) {
        setup_error = "the engine is already loaded from " + path;
        return setup_error.c_str();
    }
    path = engine_path;
    return nullptr;
}

const char *penstock_torch_start(int device) {
    static thread_local std::string error;
    try {
        started(device);
        return nullptr;
    } catch (const std::exception &e) {
        error = e.what();
        return error.c_str();
    }
}

int penstock_torch_started(void) { return opened() != nullptr; }

void *penstock_torch_engine(void) {
    const Engine *e = opened();
    return e ? e->handle : nullptr;
}

int penstock_torch_device(void) { return first_device.load(); }

void penstock_torch_close(void) {
    const Engine *e = opened();
    if (e && first_device.load() >= 0 && !closed.exchange(true)) e->close();
}
}
