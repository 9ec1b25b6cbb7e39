/* The device code of cuda/kernels. */
#ifndef PENSTOCK_STUB_OWN_H
#define PENSTOCK_STUB_OWN_H
#include "base.h"

/* Registers it. */
struct kernel_def;
void stub_register_own_kernels(struct kernel_def *(*add)(const char *name, stub_kernel_fn fn, void *user, unsigned nparams, const size_t *sizes));
#endif
