/* Contexts: a stack of them for each thread. */
#ifndef PENSTOCK_STUB_CONTEXTS_H
#define PENSTOCK_STUB_CONTEXTS_H
#include "base.h"

struct CUctx_st {
    struct stream *legacy; /* its default stream, once used */
    uint64_t id;           /* no other has had it, while handles come back */
    struct CUctx_st *next;
};

/* For calls that need the thread's context: CUDA_ERROR_INVALID_CONTEXT where it has none, and the
 * error that has ended the context, which every call answers from then on. */
CUresult stub_current(void);
#define CURRENT()                                \
    do {                                         \
        CUresult current_ = stub_current();      \
        if (current_ != CUDA_SUCCESS) return current_; \
    } while (0)
/* Ends the context, where an error of work on the device is one that does. */
void stub_failed(CUresult rc);
/* What has ended the context. */
CUresult stub_ended(void);

/* The thread's context, and a number of it that no other has had. */
CUcontext stub_context(void);
uint64_t stub_context_id(void);
/* The one whose legacy default stream the thread's calls mean: the primary one where it has none. */
CUcontext stub_legacy_context(void);
bool stub_is_primary(CUcontext c);
void stub_context_drop(CUcontext c); /* it is over; its handle will be given out again */
#endif
