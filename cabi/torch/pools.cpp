// Which pool an allocation comes from. PyTorch says, when it begins to allocate
// to a pool, whose allocations those are: of a thread, or of the streams that a
// graph captures. Several may be begun at once, by several threads.
#include "pools.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace penstock {
namespace {

struct Begun {
    int device;
    PoolId id;
    std::function<bool(CudaStream)> takes;
};
using Pools = std::vector<Begun>;

std::mutex mutex; // for changes of the two lists; taken by nothing else, and nothing is called under it
std::atomic<bool> any{false};
std::shared_ptr<const Pools> begun = std::make_shared<const Pools>(); // atomic; oldest first
std::shared_ptr<const Pools> spare = std::make_shared<const Pools>(); // atomic; those that serve when all else is full

Pools::const_iterator find(const Pools &all, int device, PoolId id) {
    return std::find_if(all.begin(), all.end(), [&](const Begun &b) { return b.device == device && b.id == id; });
}

void add(std::shared_ptr<const Pools> &to, Begun b) {
    auto next = std::make_shared<Pools>(*to);
    next->push_back(std::move(b));
    std::atomic_store(&to, std::shared_ptr<const Pools>(std::move(next)));
}

bool remove(std::shared_ptr<const Pools> &from, int device, PoolId id) {
    const auto at = find(*from, device, id);
    if (at == from->end()) return false;
    auto next = std::make_shared<Pools>(*from);
    next->erase(next->begin() + (at - from->begin()));
    std::atomic_store(&from, std::shared_ptr<const Pools>(std::move(next)));
    return true;
}

void *allocate_in(const Engine &e, ssize_t size, CudaStream stream, const Begun &pool) {
    return e.malloc_in_pool(size, pool.device, stream, pool.id.first, pool.id.second);
}

} // namespace

void *allocate(const Engine &e, ssize_t size, int device, CudaStream stream) {
    if (any.load(std::memory_order_acquire)) {
        const auto pools = std::atomic_load(&begun);
        for (auto b = pools->rbegin(); b != pools->rend(); ++b)
            if (b->device == device && b->takes(stream)) return allocate_in(e, size, stream, *b);
    }
    if (void *p = e.malloc(size, device, stream)) return p;
    const auto pools = std::atomic_load(&spare);
    for (const Begun &b : *pools)
        if (b.device == device)
            if (void *p = allocate_in(e, size, stream, b)) return p;
    return nullptr;
}

std::vector<penstock_block> blocks_of(const Engine &e, int device, PoolId id) {
    std::vector<penstock_block> blocks;
    for (;;) {
        const long n = e.pool_blocks(device, id.first, id.second, blocks.data(), blocks.size());
        check(e, "cannot list the allocations of a memory pool", n);
        const bool all = static_cast<size_t>(n) <= blocks.size(); // else it has grown meanwhile
        blocks.resize(static_cast<size_t>(n));
        if (all) return blocks;
    }
}

void retain_pool(int device, PoolId id) {
    const Engine &e = started(device);
    check(e, "cannot make a memory pool", e.retain_pool(device, id.first, id.second));
}

int pool_users(int device, PoolId id) {
    const Engine *e = opened();
    return e ? std::max(e->pool_users(device, id.first, id.second), 0) : 0;
}

void serve_when_full(int device, PoolId id, bool on) {
    std::lock_guard<std::mutex> lock(mutex);
    remove(spare, device, id);
    if (on) add(spare, {device, id, nullptr});
}

} // namespace penstock

using namespace penstock;

extern "C" {

void penstock_torch_begin_pool(int device, PoolId id, std::function<bool(CudaStream)> filter) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (find(*begun, device, id) != begun->end())
            throw std::runtime_error("penstock: allocations go to this memory pool already: end that before it is begun again");
        add(begun, {device, id, std::move(filter)}); // at once, or two threads might begin it
        any.store(true, std::memory_order_release);
    }
    try {
        retain_pool(device, id);
    } catch (...) {
        penstock_torch_end_pool(device, id);
        throw;
    }
}

void penstock_torch_end_pool(int device, PoolId id) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!remove(begun, device, id)) throw std::runtime_error("penstock: no allocations go to this memory pool: it was not begun");
    any.store(!begun->empty(), std::memory_order_release);
}

// Called by the destructor of a CUDA graph or a MemPool, possibly at exit: must not throw.
void penstock_torch_release_pool(int device, PoolId id) {
    const Engine *e = opened();
    if (!e) return;
    e->release_pool(device, id.first, id.second);
    if (pool_users(device, id) == 0) serve_when_full(device, id, false);
}
}
