/* What NCCL does inside a real call of its own. */
#ifndef PENSTOCK_HOOK_WITHIN_H
#define PENSTOCK_HOOK_WITHIN_H
#include "op.h"

/* The issued operations inside whose real call this thread is, one of NCCL's, in which NCCL calls the driver. */
typedef struct psk_outer {
    psk_op *ops;
    uint32_t n;
} psk_outer;
extern __thread const psk_outer *psk_within __attribute__((tls_model("initial-exec"), visibility("hidden")));
psk_op *psk_within_locked(void); /* the first of them that holds the lock of its stream, NULL when all are captured */
/* A launch there, which names what its parameters do. */
CUresult psk_within_launch(psk_op *op);
#endif
