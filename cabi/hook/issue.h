/* The three steps of an operation around the real call. */
#ifndef PENSTOCK_HOOK_ISSUE_H
#define PENSTOCK_HOOK_ISSUE_H
#include "op.h"
#include "shared.h"

/* Between begin and done this thread's driver calls are not recorded. */
void psk_op_begin(psk_op *op, int kind, uint32_t id, CUstream stream, int ptsz);
CUresult psk_op_issue(psk_op *op); /* reserves the seq, publishes the record, waits; the real call is made only on success */
void psk_op_done(psk_op *op);      /* writes progress; always called */
#define PSK_OP_CALL(op, call)                          \
    ({                                                 \
        CUresult result_ = psk_op_issue(op);           \
        if (PSK_LIKELY(result_ == CUDA_SUCCESS)) result_ = (call); \
        psk_op_done(op);                               \
        result_;                                       \
    })
#endif
