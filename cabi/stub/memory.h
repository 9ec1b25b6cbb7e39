/* What memory.c and vmm.c share. Everything here but the counts is under stub_memory_mu. */
#ifndef PENSTOCK_STUB_MEMORY_H
#define PENSTOCK_STUB_MEMORY_H
#include "internal.h"

enum kind { DEVICE, MANAGED, PINNED, REGISTERED, RESERVED };
enum { ABSENT, ON_HOST, ON_DEVICE }; /* ABSENT: never populated, or discarded and dropped */

typedef struct block {
    uint8_t where;
    bool discarded;
    uint64_t arrived; /* on the device */
} block;

typedef struct mapping { /* in a RESERVED range */
    uint64_t at, bytes;
    CUmemGenericAllocationHandle handle;
    bool accessible;
    struct mapping *next;
} mapping;

typedef struct range {
    uint64_t base, bytes;
    enum kind kind;
    void *map; /* what was mmapped */
    size_t map_bytes;
    block *blocks; /* MANAGED */
    mapping *mappings;
    int advice[7], advice_location[7];
} range;

extern pthread_mutex_t stub_memory_mu;

static inline uint64_t round_block(uint64_t n) { return (n + STUB_BLOCK - 1) & ~(uint64_t)(STUB_BLOCK - 1); }

range *stub_find(uint64_t p);
bool stub_insert(range *r);
void stub_take_out(range *r);
range *stub_map_range(uint64_t bytes, enum kind kind, int prot);
void stub_free_range(range *r);
/* Evicts managed blocks until bytes more of other memory fit; false when they cannot. */
bool stub_make_room(uint64_t bytes);
/* Counts device memory that is not managed. */
void stub_add_plain(int64_t bytes);

/* Of a RESERVED range: whether all of [p, p+n) is mapped and accessible, and how much of it is device memory. */
bool stub_mapped(const range *r, uint64_t p, size_t n);
bool stub_backed(const range *r, uint64_t p); /* mapped, whether or not the device may reach it */
uint64_t stub_mapped_on_device(const range *r, uint64_t p, size_t n);
uint64_t stub_vmm_count(const char *name);
void stub_reset_vmm_peak(void);
#endif
