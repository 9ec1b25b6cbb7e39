/*
 * The file is never made smaller, and what is given back is soon given out again: a job that moves much would
 * otherwise spend its time in having pages cleared.
 */
#define _GNU_SOURCE
#include "physical.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#define FILE_BYTES (1ull << 40) /* it has holes */

static int file = -1;
static char *view; /* of all of it */
static uint32_t *spare, next; /* block numbers: a stack of those that are free again, and the first that nobody has had */
static size_t nspare, cap_spare;

static bool open_file(void) {
    if (view) return true;
    file = memfd_create("stub", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)FILE_BYTES)) return false;
    void *p = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (p == MAP_FAILED) return false;
    view = p;
    return true;
}

static bool scribbles(void) { return stub_env_bytes("STUB_SCRIBBLE", 0); }

uint32_t *stub_take_blocks(size_t n) {
    uint32_t *blocks = malloc(n * sizeof *blocks);
    if (!blocks || !open_file()) {
        free(blocks);
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        blocks[i] = nspare ? spare[--nspare] : next++;
        /* What a new chunk holds is nobody's business: not zeros, which could pass for what should have been copied in. */
        if (scribbles()) memset(view + blocks[i] * STUB_BLOCK, 0xa5, STUB_BLOCK);
    }
    return blocks;
}

void stub_give_blocks(uint32_t *blocks, size_t n) {
    if (nspare + n > cap_spare) {
        cap_spare = nspare + n + 1024;
        spare = realloc(spare, cap_spare * sizeof *spare);
        if (!spare) abort(); /* a test double may */
    }
    for (size_t i = n; i-- > 0;) spare[nspare++] = blocks[i];
    free(blocks);
}

int stub_block_file(void) { return file; }

bool stub_map_blocks(uint64_t at, const uint32_t *blocks, size_t n, int other_file) {
    int from = other_file < 0 ? file : other_file;
    for (size_t i = 0; i < n; i++, at += STUB_BLOCK)
        if (mmap((void *)(uintptr_t)at, STUB_BLOCK, PROT_NONE, MAP_SHARED | MAP_FIXED, from, (off_t)(blocks[i] * STUB_BLOCK)) == MAP_FAILED) return false;
    return true;
}

/* All at once: page by page, as each is touched, costs more than what is done with them. What has not been scribbled on
 * may never be touched, and is no memory yet. */
void stub_reach_blocks(uint64_t at, size_t bytes) {
    if (scribbles()) madvise((void *)(uintptr_t)at, bytes, MADV_POPULATE_READ); /* refused by Linux before 5.14 */
}
