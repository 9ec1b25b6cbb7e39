/* Shares memory and opens what is shared as PyTorch's storages do: by the virtual functions of the installed allocator. */
#include <cstddef>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#define CLASS "_ZN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocator"

struct ShareableHandle {
    ptrdiff_t offset;
    std::string handle;
};

static void *symbol(const char *lib, const char *name) {
    void *handle = dlopen(lib, RTLD_NOW | RTLD_NOLOAD);
    return handle ? dlsym(handle, name) : nullptr;
}

/* What the object has where PyTorch's table has the function of that name. */
template <typename F> static F *entry(const char *name, void *&object) {
    object = *static_cast<void **>(symbol("libc10_cuda.so", "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
    void **stock = static_cast<void **>(symbol("libtorch_cuda.so", "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE")) + 2;
    void *function = symbol("libtorch_cuda.so", name);
    size_t i = 0;
    while (stock[i] != function) i++;
    return reinterpret_cast<F *>((*static_cast<void ***>(object))[i]);
}

static std::vector<std::shared_ptr<void>> opened;

/* The lengths of what is written; negative with the text of the error. */
extern "C" long share_memory(void *p, char *out, long *offset) {
    try {
        void *object;
        auto *share = entry<ShareableHandle(void *, void *)>(CLASS "14shareIpcHandleEPv", object);
        ShareableHandle h = share(object, p);
        *offset = h.offset;
        std::memcpy(out, h.handle.data(), h.handle.size());
        return static_cast<long>(h.handle.size());
    } catch (const std::runtime_error &e) {
        std::strcpy(out, e.what());
        return -1;
    }
}

extern "C" void *open_memory(const char *handle, long n, char *out) {
    try {
        void *object;
        auto *open = entry<std::shared_ptr<void>(void *, std::string)>(CLASS "12getIpcDevPtrENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", object);
        opened.push_back(open(object, std::string(handle, static_cast<size_t>(n))));
        return opened.back().get();
    } catch (const std::runtime_error &e) {
        std::strcpy(out, e.what());
        return nullptr;
    }
}

extern "C" void close_memory() { opened.clear(); }
