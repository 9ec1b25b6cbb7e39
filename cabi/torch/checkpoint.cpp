// A graph that runs writes its outputs to where they were when it was captured.
// Before another is captured behind it, in the same pool, those places have to
// be allocated again: PyTorch restores the pool to the state that it kept at the
// end of the capture, and gets an owner for each allocation of that state.
#include "checkpoint.h"
#include "pools.h"

#include <stdexcept>

namespace penstock {

std::atomic<unsigned> restoring{0};

namespace {

struct Kept : State {
    PoolId id;
    std::vector<penstock_block> blocks;
};

thread_local void *to_restore;

// PyTorch's own functions of its pluggable allocator. It keeps a table of what is allocated and makes the owners, which
// are of a type that only it has.
struct Functions {
    DataPtr (*allocate)(Allocator *, size_t);
    void (*raw_delete)(Allocator *, void *);

    static const Functions &get() {
        static const Functions f{reinterpret_cast<DataPtr (*)(Allocator *, size_t)>(find_symbol("libtorch_cuda.so", PLUGGABLE "8allocateEm")),
                                 reinterpret_cast<void (*)(Allocator *, void *)>(find_symbol("libtorch_cuda.so", PLUGGABLE "10raw_deleteEPv"))};
        if (!f.allocate || !f.raw_delete) throw std::runtime_error("penstock: this PyTorch's allocator cannot be given memory back: its graph trees do not work here");
        return f;
    }
};

// While it lives, this thread's next allocation is at an address: not a later one, should there be none.
struct Restoring {
    explicit Restoring(void *p) {
        to_restore = p;
        restoring++;
    }
    ~Restoring() {
        to_restore = nullptr;
        restoring--;
    }
};

// An owner of what is allocated already.
DataPtr own(Allocator *a, const penstock_block &b) {
    const Restoring here(b.ptr);
    const DataPtr p = Functions::get().allocate(a, b.size);
    if (p.address != b.ptr || p.owner[1] != b.ptr) throw std::runtime_error("penstock: this PyTorch's data pointers are not as expected: its graph trees do not work here");
    return p;
}

} // namespace

State::~State() = default;

void *take_restored() {
    void *p = to_restore;
    to_restore = nullptr;
    return p;
}

std::shared_ptr<State> checkpoint(Allocator *, DeviceIndex device, PoolId id) {
    auto kept = std::make_shared<Kept>();
    kept->id = id;
    kept->blocks = blocks_of(started(device), device, id);
    return kept;
}

Delta restore(Allocator *a, DeviceIndex device, std::shared_ptr<State> state) {
    const Kept &kept = static_cast<const Kept &>(*state); // PyTorch hands back what checkpoint gave it
    const Engine &e = started(device);
    Delta d;
    for (const penstock_block &b : blocks_of(e, device, kept.id)) {
        Functions::get().raw_delete(a, b.ptr);
        d.freed.push_back(b.ptr);
    }
    for (const penstock_block &b : kept.blocks) {
        check(e, "cannot restore the memory pool of a CUDA graph", e.restore_in_pool(b.ptr, static_cast<ssize_t>(b.size), device, kept.id.first, kept.id.second));
        d.allocated.push_back(own(a, b));
    }
    return d;
}

bool live_are(Allocator *, DeviceIndex device, PoolId id, const std::unordered_set<void *> &expected) {
    const std::vector<penstock_block> blocks = blocks_of(started(device), device, id);
    if (blocks.size() != expected.size()) return false;
    for (const penstock_block &b : blocks)
        if (!expected.count(b.ptr)) return false;
    return true;
}

} // namespace penstock
