/*
 * Inside a real call of NCCL's. There it calls the driver, where nothing is recorded but two things: memory
 * whose handle it takes stays, and the kernels of a group name what their parameters do, in case that a call
 * was in it which nccl.def does not list.
 */
#include "within.h"
#include "streams.h"
#include "strict.h"

__thread const psk_outer *psk_within;

psk_op *psk_within_locked(void) {
    for (uint32_t i = 0; i < psk_within->n; i++)
        if (psk_within->ops[i].locked) return &psk_within->ops[i];
    return NULL;
}

CUresult psk_within_launch(psk_op *op) {
    op->flags &= (uint16_t)~PSK_FLAG_OPAQUE; /* nobody may ask here; NCCL's own can be read */
    if (!op->n || (op->flags & PSK_FLAG_CAPTURED)) return CUDA_SUCCESS; /* a graph names its kernels itself */
    uint32_t index = psk_stream_index(op->stream, op->ptsz);
    for (uint32_t i = 0; i < psk_within->n; i++)
        if (psk_within->ops[i].stream_index == index && psk_within->ops[i].locked) return psk_strict_within(op, &psk_within->ops[i]);
    psk_op *outer = psk_within_locked();
    op->flags |= PSK_FLAG_KEEP; /* on a stream that no listed call has: nothing reports it */
    return outer ? psk_strict_within(op, outer) : CUDA_SUCCESS;
}
