/* Physical memory: blocks of one file, mapped where the device may reach them. All of it is under stub_memory_mu. */
#ifndef PENSTOCK_STUB_PHYSICAL_H
#define PENSTOCK_STUB_PHYSICAL_H
#include "base.h"

/* So many blocks, or NULL. Those that were given back last come first, and hold what they held. */
uint32_t *stub_take_blocks(size_t n);
void stub_give_blocks(uint32_t *blocks, size_t n);

/* Maps them one after the other, at first out of reach; of another process's file when that is not negative. */
bool stub_map_blocks(uint64_t at, const uint32_t *blocks, size_t n, int other_file);
/* The file that they are blocks of, or -1. */
int stub_block_file(void);
/* Mapped ones can be reached from now on. */
void stub_reach_blocks(uint64_t at, size_t bytes);
#endif
