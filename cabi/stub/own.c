/* The device code of cuda/kernels, as C functions: what its Go reference computes, with its launch parameters. */
#include "internal.h"

#include <string.h>

static uint64_t mix(uint64_t x, uint64_t m, uint64_t n) {
    x = (x ^ x >> 32) * m;
    x = (x ^ x >> 32) * n;
    return x ^ x >> 32;
}

/* checksum(base, units of 16 bytes, bytes after them, out): block 0 has all of the sums, the other blocks none. */
static void k_checksum(const stub_launch *l) {
    uint64_t base = STUB_PARAM(l, uint64_t, 0), bytes = STUB_PARAM(l, uint64_t, 1) * 16 + STUB_PARAM(l, uint64_t, 2), out = STUB_PARAM(l, uint64_t, 3);
    if (stub_touch(base, bytes) || stub_touch(out, l->grid[0] * 16ul)) return;
    uint64_t sums[2] = {0, 0};
    const unsigned char *p = (const unsigned char *)(uintptr_t)base;
    for (uint64_t at = 0, key = 0; at < bytes; at += 8) {
        uint64_t w = 0;
        memcpy(&w, p + at, bytes - at < 8 ? bytes - at : 8);
        key += 0x9e3779b97f4a7c15u;
        uint64_t h = mix(w + key, 0x6a09e667f3bcc909u, 0xbb67ae8584caa73bu);
        sums[0] += h;
        sums[1] += mix(h, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u);
    }
    memset((void *)(uintptr_t)out, 0, l->grid[0] * 16ul);
    memcpy((void *)(uintptr_t)out, sums, sizeof sums);
}

/* scan(base, words, lo, span, list, room) */
static void k_scan(const stub_launch *l) {
    uint64_t base = STUB_PARAM(l, uint64_t, 0), words = STUB_PARAM(l, uint64_t, 1), lo = STUB_PARAM(l, uint64_t, 2), span = STUB_PARAM(l, uint64_t, 3);
    uint64_t list = STUB_PARAM(l, uint64_t, 4), room = STUB_PARAM(l, uint64_t, 5);
    if (stub_touch(base, words * 8) || stub_touch(list, (room + 1) * 8)) return;
    uint64_t *out = (uint64_t *)(uintptr_t)list;
    const uint64_t *w = (const uint64_t *)(uintptr_t)base;
    for (uint64_t i = 0; i < words; i++) {
        if (w[i] - lo >= span) continue;
        if (out[0] < room) out[1 + out[0]] = w[i];
        out[0]++;
    }
}

void stub_register_own_kernels(kernel_def *(*add)(const char *name, stub_kernel_fn fn, void *user, unsigned nparams, const size_t *sizes)) {
    add("penstock_checksum", k_checksum, NULL, 4, (const size_t[]){8, 8, 8, 8});
    add("penstock_scan", k_scan, NULL, 6, (const size_t[]){8, 8, 8, 8, 8, 8});
}
