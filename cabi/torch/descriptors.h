// File descriptors that other processes of the same user may ask for, over a socket.
#ifndef PENSTOCK_TORCH_DESCRIPTORS_H
#define PENSTOCK_TORCH_DESCRIPTORS_H

#include <cstdint>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace penstock {

// A descriptor that is closed with its owner, and how many bytes it stands for.
class Descriptor {
public:
    Descriptor(int fd, uint64_t bytes) : bytes(bytes), fd_(fd) {}
    Descriptor(Descriptor &&o) noexcept : bytes(o.bytes), fd_(std::exchange(o.fd_, -1)) {}
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    ~Descriptor() {
        if (fd_ >= 0) close(fd_);
    }
    int fd() const { return fd_; }
    const uint64_t bytes;

private:
    int fd_;
};

// Who has the handle gets a list of descriptors, until it is withdrawn. The socket is opened by the first.
// Throws std::runtime_error when that is not possible. A forked child offers nothing of its parent's.
uint64_t offer_descriptors(std::vector<Descriptor> all);
void withdraw_descriptors(uint64_t id);
std::string descriptors_handle(uint64_t id);

// The descriptors behind a handle. Throws std::runtime_error when it is none, or when its process does not answer.
std::vector<Descriptor> ask_for_descriptors(const std::string &handle);

} // namespace penstock

#endif
