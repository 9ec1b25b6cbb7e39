/* Copies and fills, run by the workers. */
#ifndef PENSTOCK_STUB_TRANSFER_H
#define PENSTOCK_STUB_TRANSFER_H
#include "base.h"

CUresult stub_copy_3d(const CUDA_MEMCPY3D *c);
CUresult stub_fill(const CUDA_MEMSET_NODE_PARAMS *f);
#endif
