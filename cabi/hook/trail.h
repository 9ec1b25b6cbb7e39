/* What the launch before on a stream named. */
#ifndef PENSTOCK_HOOK_TRAIL_H
#define PENSTOCK_HOOK_TRAIL_H
#include "layout.h"
#include "op.h"
#include "streams.h"

/* Notes which plain memory the parameters of a launch name. */
void psk_trail_read(psk_op *op, const psk_layout *l, void **params, void **extra);
/* Has a launch that has been read name what the one before it on its stream names, if it follows that. */
bool psk_trail_follow(psk_op *op, uint32_t function);
/* Leaves what an operation names for the next one; under the lock of its stream. */
void psk_trail_leave(const psk_op *op, psk_trail *t);
#endif
