/* Contexts beside the engine's. */
#ifndef PENSTOCK_HOOK_CONTEXTS_H
#define PENSTOCK_HOOK_CONTEXTS_H
#include "shared.h"

/* Contexts that the process has, the engine's included once it is known. */
extern atomic_uint psk_contexts;
/* The thread's context when it is another than the engine's; 0 also while none is known to be. */
uint64_t psk_other_context_slow(void);
static inline uint64_t psk_other_context(void) { return PSK_LIKELY(atomic_load_explicit(&psk_contexts, memory_order_acquire) <= 1) ? 0 : psk_other_context_slow(); }
/* A stream's context when that is another than the engine's, as psk_other_context. */
#define PSK_CONTEXT_UNKNOWN UINT64_MAX /* another, but the driver does not say which: the stream is of a green one */
uint64_t psk_stream_other_context(CUstream stream);
void psk_serve(void); /* the thread's context is the engine's */
void psk_context_heard_of(uint64_t context);
void psk_context_forget(uint64_t context);
bool psk_contexts_too_many(void); /* to know them all */
uint64_t psk_other_context_at(unsigned i); /* of psk_contexts; 0: the engine's */
#endif
