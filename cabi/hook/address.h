/* What lies at an address. */
#ifndef PENSTOCK_HOOK_ADDRESS_H
#define PENSTOCK_HOOK_ADDRESS_H
#include "shared.h"

/* What is published where an address lies: a slot, PSK_SLOT_PLAIN, or 0 for nothing of ours. */
static inline uint32_t psk_published(uint64_t addr) {
    uint64_t block = addr >> PSK_BLOCK_SHIFT;
    return block < PSK_TABLE_BLOCKS ? __atomic_load_n(&psk_S.block_slot[block], __ATOMIC_ACQUIRE) : 0;
}

/* Fewer address bits than this name no memory that a kernel reads: sizes and counts. */
#define PSK_LOWEST_ADDRESS (1ull << 32)

static inline bool psk_may_be_address(uint64_t word) { return word >= PSK_LOWEST_ADDRESS && word >> PSK_BLOCK_SHIFT < PSK_TABLE_BLOCKS; }

/* The live allocation that an address lies in, 0 when none of ours. */
static inline uint32_t psk_slot_of(uint64_t addr) {
    uint32_t slot = psk_published(addr);
    if (PSK_LIKELY(slot == 0) || slot >= PSK_MAX_SLOTS) return 0;
    return __atomic_load_n(&psk_S.slot_state[slot], __ATOMIC_ACQUIRE) == PSK_SLOT_FREE ? 0 : slot;
}

/* CUmemorytype of what the driver knows at an address; 0: nothing, or pageable memory. It asks the driver. */
uint32_t psk_memory_type(uint64_t addr);
#endif
