/* Addresses in what is copied from the host. */
#define _GNU_SOURCE
#include "words.h"
#include "address.h"
#include "names.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define AT_ONCE ((size_t)4096) /* a pipe takes as much, whatever it is limited to */

/* Reads memory that may not be there: how much, or -1, errno being EFAULT where nobody can. What is written from is
 * read as the program itself reads it, memory of a device too. Some sandboxes refuse that call. A pipe reads as well:
 * one of its own each time, as a program may close what it has not opened, and the number is then another file's. */
static ssize_t read_at(uint64_t src, void *to, size_t bytes) {
    struct iovec from = {(void *)(uintptr_t)src, bytes}, there = {to, bytes};
    ssize_t n = process_vm_writev(getpid(), &from, 1, &there, 1, 0);
    int ends[2];
    if (n >= 0 || errno == EFAULT || pipe2(ends, O_CLOEXEC | O_NONBLOCK)) return n;
    n = write(ends[1], from.iov_base, bytes);
    if (n > 0) n = read(ends[0], to, (size_t)n);
    int e = errno;
    close(ends[0]), close(ends[1]);
    errno = e;
    return n;
}

bool psk_from_host(uint64_t src, uint64_t bytes) { return src && bytes <= PSK_WORDS_BYTES && !psk_published(src) && psk_memory_type(src) != CU_MEMORYTYPE_DEVICE; }

bool psk_op_words(psk_op *op, uint64_t src, uint64_t bytes, bool readable) {
    uint64_t words[AT_ONCE / 8];
    bool any = false;
    for (size_t n; bytes >= 8; src += n, bytes -= n) {
        n = bytes < AT_ONCE ? bytes & ~(size_t)7 : AT_ONCE;
        if (readable) {
            memcpy(words, (const void *)(uintptr_t)src, n);
        } else {
            ssize_t got = read_at(src, words, n);
            if (got < 0 && errno != EFAULT) op->flags |= PSK_FLAG_OPAQUE;
            if (got != (ssize_t)n) break;
        }
        for (size_t i = 0; i < n / 8; i++)
            if (psk_op_address(op, words[i])) any = true;
    }
    return any;
}
