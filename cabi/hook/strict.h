/* Strict mode's steps of an operation. */
#ifndef PENSTOCK_HOOK_STRICT_H
#define PENSTOCK_HOOK_STRICT_H
#include "layout.h"
#include "op.h"

CUresult psk_strict_issue(psk_op *op);
void psk_strict_done(psk_op *op);
/* Before the parameters are read: counts a launch of a function, and makes it ask for a grant when that is due. */
void psk_strict_function(psk_op *op, const psk_layout *l, void **params, void **extra);
void psk_strict_inspect(psk_op *op); /* makes it ask */
bool psk_power_of_64(uint64_t n);
/* An operation inside the real call of another, which is issued and whose stream's lock this thread holds: it is waited for
 * without asking, and is over when the other is. */
CUresult psk_strict_within(psk_op *op, psk_op *outer);
/* Has what an operation of no stream names on the device until psk_strict_done. */
CUresult psk_strict_hold(psk_op *op);
/* And has it stay there. */
CUresult psk_strict_stay(psk_op *op);
#endif
