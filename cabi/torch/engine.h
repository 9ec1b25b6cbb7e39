// The engine library as this shim sees it: opened once, late, never closed.
#ifndef PENSTOCK_TORCH_ENGINE_H
#define PENSTOCK_TORCH_ENGINE_H

#include "../penstock.h"

#include <cstdint>
#include <string>
#include <sys/types.h>

namespace penstock {

struct Engine {
    void *handle;
    decltype(&penstock_init) init;
    decltype(&penstock_malloc) malloc;
    decltype(&penstock_free) free;
    decltype(&penstock_record_stream) record_stream;
    decltype(&penstock_empty_cache) empty_cache;
    decltype(&penstock_set_memory_fraction) set_memory_fraction;
    decltype(&penstock_reset_peak_stats) reset_peak_stats;
    decltype(&penstock_stats) stats;
    decltype(&penstock_last_error) last_error;
    decltype(&penstock_retain_pool) retain_pool;
    decltype(&penstock_release_pool) release_pool;
    decltype(&penstock_pool_users) pool_users;
    decltype(&penstock_malloc_in_pool) malloc_in_pool;
    decltype(&penstock_pool_blocks) pool_blocks;
    decltype(&penstock_restore_in_pool) restore_in_pool;
    decltype(&penstock_size_of) size_of;
    decltype(&penstock_close) close;
};

// The engine when it has been opened in this process, else NULL. Never opens
// it, never blocks. NULL in a forked child of a process that opened it.
const Engine *opened();

// The engine, opened if need be and started on the device. Throws
// std::runtime_error saying what is wrong and what to do.
const Engine &started(int device);

// The last error text of the engine; "" when none.
std::string last_error(const Engine &e);
// Throws a std::runtime_error when rc is negative: what the engine says, or else that `what` failed.
void check(const Engine &e, const char *what, long rc);
// The engine's statistics as JSON text.
std::string stats(const Engine &e);
// A number of that JSON; missing when it is absent.
int64_t stat(const std::string &json, const char *key, int64_t missing);

} // namespace penstock

#endif
