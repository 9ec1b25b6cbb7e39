// An allocation lies in pieces of physical memory. Each has a file descriptor,
// by which another process maps it at addresses of its own. Descriptors are
// sent over a socket of this process, to processes of the same user: it is named
// in the handle that PyTorch carries from one to the other.
#include "share.h"
#include "descriptors.h"
#include "engine.h"

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace penstock {

std::atomic<size_t> shared_count{0};

namespace {

constexpr uint64_t granule = 2 << 20; // of physical memory, at least
constexpr int file_descriptors = 1;   // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

struct Location { // CUmemLocation
    int type, id;
};
struct Access { // CUmemAccessDesc
    Location location;
    int flags;
};

// Functions of the driver, which PyTorch has loaded.
struct Driver {
    int (*retain)(uint64_t *, void *);       // the launch hook sees it: what is there stays on the device
    int (*look)(uint64_t *, void *);         // the same, past the hook
    int (*release)(uint64_t);
    int (*export_handle)(void *, uint64_t, int, unsigned long long);
    int (*import_handle)(uint64_t *, void *, int);
    int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
    int (*free)(uint64_t, size_t);
    int (*map)(uint64_t, size_t, size_t, uint64_t, unsigned long long);
    int (*unmap)(uint64_t, size_t);
    int (*set_access)(uint64_t, size_t, const Access *, size_t);
    int (*device)(int *);
    int (*context)(void **);
    int (*enter)(void *);
    int (*leave)(void **);
    int (*synchronize)();

    Driver() {
        find(retain, "cuMemRetainAllocationHandle");
        find(release, "cuMemRelease");
        find(export_handle, "cuMemExportToShareableHandle");
        find(import_handle, "cuMemImportFromShareableHandle");
        find(reserve, "cuMemAddressReserve");
        find(free, "cuMemAddressFree");
        find(map, "cuMemMap");
        find(unmap, "cuMemUnmap");
        find(set_access, "cuMemSetAccess");
        find(device, "cuCtxGetDevice");
        find(context, "cuCtxGetCurrent");
        find(enter, "cuCtxPushCurrent_v2");
        find(leave, "cuCtxPopCurrent_v2");
        find(synchronize, "cuCtxSynchronize");
        auto past_hook = reinterpret_cast<void *(*)(const char *)>(dlsym(RTLD_DEFAULT, "penstock_hook_real"));
        look = past_hook ? reinterpret_cast<decltype(look)>(past_hook("cuMemRetainAllocationHandle")) : retain;
        if (!look) look = retain;
    }
    template <typename F> static void find(F *&f, const char *name) {
        f = reinterpret_cast<F *>(find_symbol("libcuda.so.1", name));
        if (!f) throw std::runtime_error(std::string("penstock: this driver has no ") + name + ": CUDA tensors cannot be shared");
    }
    static const Driver &get() {
        static const Driver d;
        return d;
    }
};

// The physical memory at an address, retained: only of what is retained a handle is sure to be no other's.
class Held {
public:
    Held(const Driver &d, uint64_t address) : d_(d) {
        if (d_.look(&handle_, reinterpret_cast<void *>(address))) handle_ = 0;
    }
    ~Held() {
        if (handle_) d_.release(handle_);
    }
    Held(const Held &) = delete;
    Held &operator=(const Held &) = delete;
    uint64_t handle() const { return handle_; } // 0: there is none
    // Whether the same piece is at another address.
    bool is_at(uint64_t address) const { return handle_ && Held(d_, address).handle_ == handle_; }

private:
    const Driver &d_;
    uint64_t handle_ = 0;
};

const char *const not_mapped = "it is managed memory, or not in memory that the driver maps; use --engine explicit";

[[noreturn]] void cannot_share(const char *why) { throw std::runtime_error(std::string("penstock: this CUDA tensor cannot be shared: ") + why); }

struct Shared {
    uint64_t id;
    ptrdiff_t offset;
};

std::mutex mutex;                // guards the list; the socket's own lock is taken under it
std::map<void *, Shared> shared; // by address

std::mutex opening;                                        // guards that of other processes, which are asked under it
std::map<std::string, std::weak_ptr<void>> opened_handles;

// The pieces that an allocation lies in, from the beginning of the first on. What is there must stay meanwhile.
std::vector<Descriptor> pieces_of(const Driver &d, uint64_t p, size_t bytes, uint64_t &begin) {
    begin = p / granule * granule;
    const Held first(d, begin);
    while (first.is_at(begin - granule)) begin -= granule;
    std::vector<Descriptor> pieces;
    for (uint64_t at = begin; at < p + bytes;) {
        const Held piece(d, at);
        if (!piece.handle()) cannot_share(not_mapped);
        if (!piece.is_at(at)) cannot_share("this driver does not tell which physical memory lies where");
        uint64_t end = at + granule;
        while (piece.is_at(end)) end += granule;
        int fd = -1;
        if (d.export_handle(&fd, piece.handle(), file_descriptors, 0)) cannot_share("its memory was not made for that; start with PENSTOCK_IPC=1 or `penstock run --ipc`");
        pieces.emplace_back(fd, end - at);
        at = end;
    }
    return pieces;
}

// Pieces of another process, mapped one after the other.
class Mapped {
public:
    Mapped(const Driver &d, const std::vector<Descriptor> &pieces) : d_(d) {
        for (const Descriptor &x : pieces) bytes_ += x.bytes;
        check(d_.context(&context_), "cuCtxGetCurrent");
        check(d_.reserve(&base_, bytes_, 0, 0, 0), "cuMemAddressReserve");
        try {
            for (const Descriptor &x : pieces) add(x);
            Access access{{1, 0}, 3};
            check(d_.device(&access.location.id), "cuCtxGetDevice");
            check(d_.set_access(base_, bytes_, &access, 1), "cuMemSetAccess");
        } catch (...) {
            undo();
            throw;
        }
    }
    ~Mapped() { // on a thread that may have no context
        if (d_.enter(context_)) return; // it is gone, with its memory
        d_.synchronize();               // what is queued may use it
        undo();
        void *left;
        d_.leave(&left);
    }
    Mapped(const Mapped &) = delete;
    Mapped &operator=(const Mapped &) = delete;
    void *base() const { return reinterpret_cast<void *>(base_); }

private:
    static void check(int rc, const char *call) {
        if (rc) throw std::runtime_error(std::string("penstock: cannot map a CUDA tensor of another process: ") + call + " failed with error " + std::to_string(rc));
    }
    void add(const Descriptor &x) {
        uint64_t h = 0;
        check(d_.import_handle(&h, reinterpret_cast<void *>(static_cast<intptr_t>(x.fd())), file_descriptors), "cuMemImportFromShareableHandle");
        const int rc = d_.map(base_ + mapped_, x.bytes, 0, h, 0);
        d_.release(h); // its mapping holds it
        check(rc, "cuMemMap");
        mapped_ += x.bytes;
    }
    void undo() {
        if (mapped_) d_.unmap(base_, mapped_);
        d_.free(base_, bytes_);
    }
    const Driver &d_;
    void *context_ = nullptr;
    uint64_t base_ = 0, bytes_ = 0, mapped_ = 0;
};

} // namespace

ShareableHandle share(Allocator *, void *p) {
    std::unique_lock<std::mutex> lock(mutex);
    auto known = shared.find(p);
    if (known == shared.end()) {
        lock.unlock(); // until it is on the device others free
        const Engine *e = opened();
        const size_t bytes = e ? e->size_of(p) : 0;
        if (!bytes) cannot_share("no allocation begins at its address");
        const Driver &d = Driver::get();
        uint64_t kept = 0, begin = 0;
        if (d.retain(&kept, p)) cannot_share(not_mapped);
        d.release(kept);
        const auto address = reinterpret_cast<uint64_t>(p);
        std::vector<Descriptor> pieces = pieces_of(d, address, bytes, begin);
        lock.lock();
        known = shared.find(p); // another thread may have shared it
        if (known == shared.end()) known = shared.emplace(p, Shared{offer_descriptors(std::move(pieces)), static_cast<ptrdiff_t>(address - begin)}).first;
        shared_count.store(shared.size());
    }
    return {known->second.offset, descriptors_handle(known->second.id)};
}

void end_sharing(void *p) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto at = shared.find(p);
    if (at == shared.end()) return;
    withdraw_descriptors(at->second.id);
    shared.erase(at);
    shared_count.store(shared.size());
}

std::shared_ptr<void> open_shared(Allocator *, std::string handle) {
    std::lock_guard<std::mutex> lock(opening);
    for (auto at = opened_handles.begin(); at != opened_handles.end();) at = at->second.expired() ? opened_handles.erase(at) : std::next(at);
    const auto known = opened_handles.find(handle);
    if (known != opened_handles.end())
        if (std::shared_ptr<void> p = known->second.lock()) return p;
    auto mapped = std::make_shared<Mapped>(Driver::get(), ask_for_descriptors(handle));
    std::shared_ptr<void> p(mapped, mapped->base());
    opened_handles[handle] = p;
    return p;
}

} // namespace penstock
