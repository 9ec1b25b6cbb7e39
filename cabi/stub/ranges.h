/* Ranges of memory, what is where of them, and whether the device reaches it. All but the last part is under stub_memory_mu. */
#ifndef PENSTOCK_STUB_RANGES_H
#define PENSTOCK_STUB_RANGES_H
#include <pthread.h>

#include "base.h"

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
    bool accessible, on_device;
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
bool stub_overlaps(uint64_t p, uint64_t bytes); /* whether a range lies there */
bool stub_insert(range *r);
void stub_take_out(range *r);
range *stub_map_range(uint64_t bytes, enum kind kind, int prot);
void stub_free_range(range *r);
/* Evicts managed blocks until bytes more of other memory fit; false when they cannot. */
bool stub_make_room(uint64_t bytes);
/* Counts device memory that is not managed. */
void stub_add_plain(int64_t bytes);
uint64_t stub_used_bytes(void);
uint64_t stub_range_count(const char *name); /* 0 for those that are not of ranges */
void stub_reset_range_peak(void);

bool stub_to_device(block *b); /* false: there is no room */
void stub_to_host(block *b);

/* The blocks of a managed range that [p, p+n) reaches into. */
#define FOR_BLOCKS(b, r, p, n)                                                                                       \
    for (block *b = &(r)->blocks[((p) - (r)->base) / STUB_BLOCK],                                                    \
               *b##_end = &(r)->blocks[((p) - (r)->base + (n) + STUB_BLOCK - 1) / STUB_BLOCK]; b < b##_end; b++)

/* Of a RESERVED range: whether all of [p, p+n) is mapped and accessible, and how much of it is device memory. */
bool stub_mapped(const range *r, uint64_t p, size_t n);
bool stub_backed(const range *r, uint64_t p); /* mapped, whether or not the device may reach it */
uint64_t stub_mapped_on_device(const range *r, uint64_t p, size_t n);

uint64_t stub_total_bytes(void);
extern __thread bool stub_touched_illegal; /* set by stub_touch */
/* Whether the driver knows what lies at an address: of a reserved one, when the device may reach it. */
bool stub_known(uint64_t p);
bool stub_has_type(uint64_t p); /* device or host memory, whether or not the device may reach it */
/* Counts an access to memory that the device cannot reach, and ends the process where STUB_ABORT asks for it. */
void stub_illegal(const char *who, uint64_t p, size_t n);
#endif
