/* How long operations take on the device. */
#ifndef PENSTOCK_HOOK_TIMING_H
#define PENSTOCK_HOOK_TIMING_H
#include "op.h"

/* Around the driver's call, after what it waits for: it may be timed. */
void psk_time_begin(psk_op *op);
void psk_time_end(psk_op *op); /* of one that is */
#endif
