/* Launches that are recorded whole, so that the engine can make them again. */
#ifndef PENSTOCK_HOOK_RECORD_H
#define PENSTOCK_HOOK_RECORD_H
#include "layout.h"

typedef struct psk_dimensions {
    uint32_t grid[3], block[3], shared;
} psk_dimensions;

/* Records a launch whose function has `record`. Answers what its psk_entry says of it; 0 when it cannot be recorded. */
uint32_t psk_record_launch(const psk_layout *l, CUfunction f, const psk_dimensions *d, void **params);
/* The first word of a parameter of a launch that was recorded; 0 when it has none. */
uint64_t psk_record_word(const psk_layout *l, uint32_t param, void **params);
#endif
