/* The builtin kernels, those that are registered, and the handles of functions. */
#ifndef PENSTOCK_STUB_KERNELS_H
#define PENSTOCK_STUB_KERNELS_H
#include "base.h"

typedef struct kernel_def {
    const char *name;
    stub_kernel_fn fn;
    void *user;
    unsigned nparams;
    bool opaque;
    size_t *sizes, *offsets, bytes;
} kernel_def;
const kernel_def *stub_kernel(const char *name); /* NULL: there is none */

/* A CUfunction or a CUkernel. */
typedef struct function {
    uint32_t magic;
    const kernel_def *def;
    void *owner; /* module or library */
    struct function *next;
} function;
#define FUNCTION_MAGIC 0x46554e43u
#define KERNEL_MAGIC 0x4b45524eu
#endif
