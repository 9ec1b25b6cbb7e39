/* Which real function the calls of an exported name mean. */
#ifndef PENSTOCK_HOOK_CALLERS_H
#define PENSTOCK_HOOK_CALLERS_H
#include "shared.h"

#define PSK_CALLERS 64 /* of one name; calls from further places are looked up each time */
typedef struct psk_callers {
    atomic_uint taken; /* may be more */
    struct {
        const void *_Atomic caller; /* return address; stored last */
        void *real;
    } of[PSK_CALLERS];
} psk_callers;
/* What a call that returns to caller means, NULL when it is not known yet. */
void *psk_caller_real(psk_callers *c, const void *caller);
void psk_caller_found(psk_callers *c, const void *caller, void *real);
/* Has the library that an address lies in stay from now on. False when it is none, or cannot be kept. */
bool psk_keep(const void *at);
#endif
