/* What an operation names: the slots of the addresses among its parameters. */
#ifndef PENSTOCK_HOOK_NAMES_H
#define PENSTOCK_HOOK_NAMES_H
#include "address.h"
#include "layout.h"
#include "op.h"

void psk_op_add(psk_op *op, uint32_t slot);

static inline uint32_t psk_op_address(psk_op *op, uint64_t addr) {
    uint32_t slot = psk_slot_of(addr);
    if (slot) psk_op_add(op, slot);
    return slot;
}

/* Calls visit for every aligned word of a launch's parameters, or where they hold lists of which so much is used, for what
 * is used. False when they cannot be read. */
bool psk_visit_params(const psk_layout *l, uint32_t used, void **params, void **extra, void (*visit)(void *, uint64_t), void *arg);
/* Adds what the parameters of a launch name; marks the record opaque when they cannot be read. */
void psk_op_params(psk_op *op, const psk_layout *l, void **params, void **extra);

/* For an operation with PSK_FLAG_INSPECT: notes a parameter word that is an address of published memory, or of other that the driver knows, which it asks. */
void psk_inspect_word(void *op, uint64_t word);
#endif
