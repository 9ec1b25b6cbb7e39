/* NCCL's names, for the resolvers. */
#ifndef PENSTOCK_HOOK_NCCL_H
#define PENSTOCK_HOOK_NCCL_H
#include "shared.h"

bool psk_nccl_name(const char *name);
bool psk_nccl_export(const void *p);
void *psk_nccl_wrapper(const char *name, void *real);
#endif
