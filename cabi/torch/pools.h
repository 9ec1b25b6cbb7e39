// Private pools of memory: those of CUDA graphs, and torch.cuda.MemPool.
#ifndef PENSTOCK_TORCH_POOLS_H
#define PENSTOCK_TORCH_POOLS_H

#include "engine.h"
#include "penstock_torch.h"

#include <vector>

namespace penstock {

// Memory for work on a stream: from the pool that was begun last and takes the calling thread's or the stream's
// allocations, else from the usual places, and when those are full from a pool that may serve then. NULL when there is none.
void *allocate(const Engine &e, ssize_t size, int device, CudaStream stream);

// The live allocations of a pool, by address.
std::vector<penstock_block> blocks_of(const Engine &e, int device, PoolId id);

// What torch.cuda.MemPool asks of an allocator.
void retain_pool(int device, PoolId id);
int pool_users(int device, PoolId id);
void serve_when_full(int device, PoolId id, bool on);

} // namespace penstock

#endif
