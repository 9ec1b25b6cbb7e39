/* Gated mode's steps of an operation, in this order. */
#ifndef PENSTOCK_HOOK_GATE_H
#define PENSTOCK_HOOK_GATE_H
#include "op.h"

void psk_gate_lock(psk_op *op);
void psk_gate_decide(psk_op *op);
void psk_gate_wait(psk_op *op);
void psk_gate_done(psk_op *op);
#endif
