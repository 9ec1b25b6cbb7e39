/* Virtual memory management: what it counts, under stub_memory_mu. */
#ifndef PENSTOCK_STUB_VMM_H
#define PENSTOCK_STUB_VMM_H
#include "base.h"

uint64_t stub_vmm_count(const char *name);
void stub_reset_vmm_peak(void);
#endif
