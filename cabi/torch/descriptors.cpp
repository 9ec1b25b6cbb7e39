// One question a connection: the number of a list. The answer is how many
// descriptors it has, then the descriptors with their bytes, a few at a time.
#include "descriptors.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <pthread.h>
#include <random>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>

namespace penstock {
namespace {

constexpr size_t batch = 128; // a message carries at most 253 descriptors
constexpr long patience_s = 10;
const char *const magic = "penstock-memory-1";

std::mutex mutex; // what follows
std::map<uint64_t, std::vector<Descriptor>> offered;
uint64_t last_id = 0;
int listener = -1;
std::string name; // of the socket, without the zero that it begins with

[[noreturn]] void fail(const std::string &what) { throw std::runtime_error("penstock: " + what); }
[[noreturn]] void fail_with_error(const std::string &what) { fail(what + ": " + std::strerror(errno)); }

// An address that is no file: it goes with its process, and has the network namespace's bounds.
socklen_t address_of(const std::string &of, sockaddr_un &a) {
    a = {};
    a.sun_family = AF_UNIX;
    const size_t n = std::min(of.size(), sizeof a.sun_path - 1);
    std::memcpy(a.sun_path + 1, of.data(), n);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
}

bool same_user(int connection) {
    ucred peer{};
    socklen_t n = sizeof peer;
    return !getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &n) && peer.uid == geteuid();
}

void be_patient(int connection) {
    const timeval t{patience_s, 0};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

bool send_all(int to, const void *data, size_t n) { return send(to, data, n, MSG_NOSIGNAL) == static_cast<ssize_t>(n); }
bool receive_all(int from, void *data, size_t n) { return recv(from, data, n, MSG_WAITALL) == static_cast<ssize_t>(n); }

// A message of some bytes that carries descriptors.
struct Message {
    iovec data;
    alignas(cmsghdr) char control[CMSG_SPACE(batch * sizeof(int))] = {};
    msghdr header{};

    Message(void *bytes, size_t n) : data{bytes, n} {
        header.msg_iov = &data;
        header.msg_iovlen = 1;
        header.msg_control = control;
        header.msg_controllen = sizeof control;
    }
};

bool send_batch(int to, const Descriptor *from, size_t n) {
    uint64_t bytes[batch];
    int fds[batch];
    for (size_t i = 0; i < n; i++) bytes[i] = from[i].bytes, fds[i] = from[i].fd();
    Message m(bytes, n * sizeof *bytes);
    m.header.msg_controllen = CMSG_SPACE(n * sizeof *fds);
    cmsghdr *c = CMSG_FIRSTHDR(&m.header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(n * sizeof *fds);
    std::memcpy(CMSG_DATA(c), fds, n * sizeof *fds);
    return sendmsg(to, &m.header, MSG_NOSIGNAL) == static_cast<ssize_t>(n * sizeof *bytes);
}

bool receive_batch(int from, std::vector<Descriptor> &into, size_t n) {
    uint64_t bytes[batch];
    Message m(bytes, n * sizeof *bytes);
    const ssize_t got = recvmsg(from, &m.header, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    size_t fds = 0;
    for (cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m.header) : nullptr; c; c = CMSG_NXTHDR(&m.header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= c->cmsg_len; at += sizeof(int), fds++) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
            into.emplace_back(fd, fds < n ? bytes[fds] : 0);
        }
    }
    return got == static_cast<ssize_t>(n * sizeof *bytes) && fds == n;
}

void answer(int connection) {
    be_patient(connection);
    uint64_t id = 0;
    if (!same_user(connection) || !receive_all(connection, &id, sizeof id)) return;
    std::lock_guard<std::mutex> lock(mutex); // or they might be closed meanwhile
    const auto at = offered.find(id);
    const uint64_t n = at == offered.end() ? 0 : at->second.size();
    if (!send_all(connection, &n, sizeof n)) return;
    for (size_t i = 0; i < n; i += batch)
        if (!send_batch(connection, &at->second[i], std::min<size_t>(batch, n - i))) return;
}

void serve(int on) {
    for (;;) {
        const int connection = accept4(on, nullptr, nullptr, SOCK_CLOEXEC);
        if (connection >= 0) {
            answer(connection);
            close(connection);
        } else if (errno != EINTR && errno != ECONNABORTED && errno != EMFILE && errno != ENFILE)
            return;
        else
            std::this_thread::yield();
    }
}

// Its parent's descriptors are not the child's to give, and who asks the parent when it has gone would wait for the child.
void in_child() {
    if (listener >= 0) close(listener);
    listener = -1;
}

// Under the lock.
void listen_once() {
    if (listener >= 0) return;
    static bool watching = !pthread_atfork(nullptr, nullptr, in_child);
    (void)watching;
    std::random_device random;
    name = magic + std::string("-") + std::to_string(getpid()) + "-" + std::to_string(random()) + std::to_string(random());
    sockaddr_un a;
    const socklen_t n = address_of(name, a);
    const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || bind(s, reinterpret_cast<sockaddr *>(&a), n) || listen(s, 64)) {
        const int why = errno;
        if (s >= 0) close(s);
        errno = why;
        fail_with_error("CUDA tensors cannot be shared, as there is no socket to hand them out on");
    }
    // Signals are the program's threads'.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    std::thread(serve, s).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    listener = s;
}

} // namespace

uint64_t offer_descriptors(std::vector<Descriptor> all) {
    std::lock_guard<std::mutex> lock(mutex);
    listen_once();
    offered.emplace(++last_id, std::move(all));
    return last_id;
}

void withdraw_descriptors(uint64_t id) {
    std::lock_guard<std::mutex> lock(mutex);
    offered.erase(id);
}

std::string descriptors_handle(uint64_t id) {
    std::lock_guard<std::mutex> lock(mutex);
    return name + " " + std::to_string(id);
}

std::vector<Descriptor> ask_for_descriptors(const std::string &handle) {
    const size_t space = handle.find(' ');
    unsigned long long id = 0;
    char end;
    if (handle.compare(0, std::strlen(magic), magic) || space == std::string::npos || space > sizeof(sockaddr_un::sun_path) - 1 ||
        std::sscanf(handle.c_str() + space, " %llu%c", &id, &end) != 1)
        fail("this handle of a CUDA tensor is not Penstock's: the process that sent it has to run under Penstock, too");
    sockaddr_un a;
    const socklen_t n = address_of(handle.substr(0, space), a);
    const Descriptor s(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), 0);
    if (s.fd() < 0 || connect(s.fd(), reinterpret_cast<sockaddr *>(&a), n)) fail_with_error("the process that sent a CUDA tensor cannot be asked for it");
    be_patient(s.fd());
    const uint64_t question = id;
    uint64_t count = 0;
    if (!send_all(s.fd(), &question, sizeof question) || !receive_all(s.fd(), &count, sizeof count))
        fail_with_error("the process that sent a CUDA tensor does not answer");
    if (!count) fail("a CUDA tensor of another process is no longer there: it has to be kept until it was received");
    std::vector<Descriptor> all;
    while (all.size() < count)
        if (!receive_batch(s.fd(), all, std::min<uint64_t>(batch, count - all.size()))) fail("the process that sent a CUDA tensor broke off");
    return all;
}

} // namespace penstock
