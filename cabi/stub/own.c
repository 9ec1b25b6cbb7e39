/* The device code of cuda/kernels, as C functions: what its Go reference computes, with its launch parameters. */
#include "own.h"

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

/* scan(table of (address, words) for each block, two counts, two lists of room words, room, and for each list lo and span) */
static void k_scan(const stub_launch *l) {
    uint64_t table = STUB_PARAM(l, uint64_t, 0), counts = STUB_PARAM(l, uint64_t, 1), lists = STUB_PARAM(l, uint64_t, 2), room = STUB_PARAM(l, uint64_t, 3);
    if (stub_touch(table, l->grid[0] * 16ul) || stub_touch(counts, 16) || stub_touch(lists, 2 * room * 8)) return;
    for (unsigned b = 0; b < l->grid[0]; b++) {
        const uint64_t *piece = (const uint64_t *)(uintptr_t)table + 2 * b;
        if (stub_touch(piece[0], piece[1] * 8)) return;
        const uint64_t *w = (const uint64_t *)(uintptr_t)piece[0];
        for (unsigned k = 0; k < 2; k++) {
            uint64_t *count = (uint64_t *)(uintptr_t)counts + k, *list = (uint64_t *)(uintptr_t)lists + k * room;
            uint64_t lo = STUB_PARAM(l, uint64_t, 4 + 2 * k), span = STUB_PARAM(l, uint64_t, 5 + 2 * k);
            for (uint64_t i = 0; i < piece[1]; i++) {
                if (w[i] - lo >= span) continue;
                if (*count < room) list[*count] = w[i];
                ++*count;
            }
        }
    }
}

/* collect(two counts, where they are copied to) */
static void k_collect(const stub_launch *l) {
    uint64_t counts = STUB_PARAM(l, uint64_t, 0), to = STUB_PARAM(l, uint64_t, 1);
    if (stub_touch(counts, 16) || stub_touch(to, 16)) return;
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)counts, 16);
    memset((void *)(uintptr_t)counts, 0, 16);
}

void stub_register_own_kernels(struct kernel_def *(*add)(const char *name, stub_kernel_fn fn, void *user, unsigned nparams, const size_t *sizes)) {
    add("penstock_checksum", k_checksum, NULL, 4, (const size_t[]){8, 8, 8, 8});
    add("penstock_scan", k_scan, NULL, 8, (const size_t[]){8, 8, 8, 8, 8, 8, 8, 8});
    add("penstock_collect", k_collect, NULL, 2, (const size_t[]){8, 8});
}
