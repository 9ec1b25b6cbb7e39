/* Launches that are recorded whole, so that the engine can make them again. */
#ifndef PENSTOCK_HOOK_RECORD_H
#define PENSTOCK_HOOK_RECORD_H
#include "layout.h"

typedef struct psk_dimensions {
    uint32_t grid[3], block[3], shared;
    uint32_t cluster[3], policy;
} psk_dimensions;

/* Those of a launch. False when one of its attributes matters that cannot be recorded. That a kernel may begin before the one
 * before it has ended (programmatic serialization) does not matter: it is not made so again. */
bool psk_record_dimensions(psk_dimensions *d, const CUlaunchConfig *c);

/* Records a launch whose function has `record`. Answers what its psk_entry says of it; 0 when it cannot be recorded. */
uint32_t psk_record_launch(const psk_layout *l, CUfunction f, const psk_dimensions *d, void **params, void **extra);
/* The word at an offset of the parameters of a launch that was recorded; 0 when there is none. */
uint64_t psk_record_word(const psk_layout *l, uint32_t offset, void **params, void **extra);
#endif
