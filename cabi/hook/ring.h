/* The record of an operation in the ring. */
#ifndef PENSTOCK_HOOK_RING_H
#define PENSTOCK_HOOK_RING_H
#include "op.h"

bool psk_record_reserve(psk_op *op); /* a seq, with slot_last_seq stored; false when the ring is full */
void psk_record_publish(const psk_op *op);
void psk_record_dropped(void);
uint64_t psk_now_ns(void); /* CLOCK_MONOTONIC */
void psk_nap(long ns);     /* no cancellation point: who naps may hold a stream */
#endif
