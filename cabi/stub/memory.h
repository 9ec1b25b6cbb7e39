/* Calls that allocate and free: what they count. */
#ifndef PENSTOCK_STUB_MEMORY_H
#define PENSTOCK_STUB_MEMORY_H
#include "base.h"

uint64_t stub_registered_bytes(void); /* under stub_memory_mu */
#endif
