/* Memory that no launch shows, and that is to stay on the device. */
#ifndef PENSTOCK_HOOK_STAY_H
#define PENSTOCK_HOOK_STAY_H
#include "shared.h"

/* What a memory operation of a stream or a graph reads or writes, 0 for none. */
uint64_t psk_memop_address(const CUstreamBatchMemOpParams *op);
/* In strict mode, has what addresses lie in stay on the device, also where NCCL calls the driver (psk_within). Not
 * CUDA_SUCCESS when the engine has failed. */
CUresult psk_stay(const uint64_t *addrs, size_t n);
CUresult psk_stay_range(uint64_t addr, uint64_t bytes);
#endif
