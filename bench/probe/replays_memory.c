/* replays_memory.c - PyTorch's blocks, each of its own driver allocation, and sums of memory. */
#define _GNU_SOURCE
#include "replays.h"

#include <stdlib.h>
#include <string.h>

pthread_mutex_t replays_mu = PTHREAD_MUTEX_INITIALIZER;
block **replays_live;
unsigned replays_nlive;
static unsigned room_live;

#define SIZES 4096 /* power of two */
static block *unused[SIZES];
#define SIZE_CLASS(room) ((unsigned)(((room) >> 9) * 0x9e3779b1u >> 16) & (SIZES - 1))

/* The first live block beyond addr. */
static unsigned beyond(uint64_t addr) {
    unsigned low = 0, high = replays_nlive;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (replays_live[middle]->base <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

block *replays_block_at(uint64_t addr) {
    unsigned i = beyond(addr);
    block *b = i ? replays_live[i - 1] : NULL;
    return b && addr - b->base < b->bytes ? b : NULL;
}

static void enter(block *b) {
    if (replays_nlive == room_live) {
        room_live = room_live ? 2 * room_live : 4096;
        replays_live = realloc(replays_live, room_live * sizeof *replays_live);
        if (!replays_live) abort();
    }
    unsigned i = beyond(b->base);
    memmove(replays_live + i + 1, replays_live + i, (replays_nlive++ - i) * sizeof *replays_live);
    replays_live[i] = b;
}

/* Gives what nobody uses back to the driver. */
static void trim(void) {
    D.cuCtxSynchronize();
    for (unsigned i = 0; i < SIZES; i++)
        for (block *b; (b = unused[i]); free(b)) {
            unused[i] = b->next;
            D.cuMemFree_v2(b->base);
        }
}

/* One that was freed on the same stream and has the same size; else a new one. */
static block *take(uint64_t room, CUstream stream) {
    for (block **at = &unused[SIZE_CLASS(room)]; *at; at = &(*at)->next)
        if ((*at)->room == room && (*at)->stream == stream) {
            block *b = *at;
            *at = b->next;
            return b;
        }
    CUdeviceptr p;
    CUresult r = D.cuMemAlloc_v2(&p, room);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        trim();
        r = D.cuMemAlloc_v2(&p, room);
    }
    if (r != CUDA_SUCCESS) return NULL;
    block *b = calloc(1, sizeof *b);
    if (!b) abort();
    *b = (block){.base = p, .room = room, .stream = stream};
    return b;
}

static summer births;

/* The allocator that PyTorch is given. */
EXPORT void *replays_alloc(size_t bytes, int device, void *stream) {
    (void)device;
    if (!bytes) return NULL;
    replays_open();
    pthread_mutex_lock(&replays_mu);
    block *b = take((bytes + 511) & ~511ull, stream);
    if (b) {
        b->bytes = bytes;
        b->named = b->born = false;
        enter(b);
        if (atomic_load(&replays_armed)) {
            b->born = true;
            OK(D.cuCtxSynchronize());
            replays_sum(&births, replays_stream, &(span){b->base, b->bytes}, 1);
            OK(replays_wait(replays_stream));
            b->contents = births.sums[0];
        }
    } else {
        fprintf(stderr, "replays: no memory for %zu bytes\n", bytes);
    }
    pthread_mutex_unlock(&replays_mu);
    return b ? (void *)b->base : NULL;
}

EXPORT void replays_free(void *p, size_t bytes, int device, void *stream) {
    (void)bytes, (void)device, (void)stream;
    if (!p) return;
    pthread_mutex_lock(&replays_mu);
    unsigned i = beyond((uint64_t)p);
    if (i && replays_live[i - 1]->base == (uint64_t)p) {
        block *b = replays_live[i - 1];
        memmove(replays_live + i - 1, replays_live + i, (replays_nlive-- - i) * sizeof *replays_live);
        b->next = unused[SIZE_CLASS(b->room)];
        unused[SIZE_CLASS(b->room)] = b;
    }
    pthread_mutex_unlock(&replays_mu);
}

/* ---- sums ---- */

struct piece {
    uint64_t base, bytes, first, span;
};
#define PIECE (4ull << 20)
static CUfunction sums;

void replays_sums_load(const char *path) {
    CUmodule m;
    if (sums) return;
    OK(D.cuModuleLoad(&m, path));
    OK(D.cuModuleGetFunction(&sums, m, "replays_sums"));
}

static void *pinned(void *old, size_t bytes) {
    void *p;
    if (old) OK(D.cuMemFreeHost(old));
    OK(D.cuMemHostAlloc(&p, bytes, 0));
    return p;
}

void replays_sum(summer *s, CUstream stream, const span *spans, unsigned n) {
    unsigned pieces = 0;
    for (unsigned i = 0; i < n; i++) pieces += (spans[i].bytes + PIECE - 1) / PIECE;
    if (pieces > s->npieces) s->pieces = pinned(s->pieces, (s->npieces = 2 * pieces) * sizeof *s->pieces);
    if (n > s->nspans) {
        if (s->out) OK(D.cuMemFree_v2(s->out));
        s->nspans = 2 * n;
        OK(D.cuMemAlloc_v2(&s->out, s->nspans * sizeof(sum)));
        s->sums = pinned(s->sums, s->nspans * sizeof(sum));
    }
    unsigned k = 0;
    for (unsigned i = 0; i < n; i++)
        for (uint64_t o = 0; o < spans[i].bytes; o += PIECE) {
            uint64_t left = spans[i].bytes - o;
            s->pieces[k++] = (struct piece){spans[i].base + o, left < PIECE ? left : PIECE, o / 8, i};
        }
    OK(D.cuMemsetD8Async(s->out, 0, n * sizeof(sum), stream));
    CUlaunchConfig c = {pieces, 1, 1, 512, 1, 1, 0, stream, NULL, 0};
    if (pieces) OK(D.cuLaunchKernelEx(&c, sums, (void *[]){&s->pieces, &s->out}, NULL));
    OK(D.cuMemcpyDtoHAsync_v2(s->sums, s->out, n * sizeof(sum), stream));
}
