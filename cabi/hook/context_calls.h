/* The contexts beside the engine's, waited for. */
#ifndef PENSTOCK_HOOK_CONTEXT_CALLS_H
#define PENSTOCK_HOOK_CONTEXT_CALLS_H
#include "shared.h"

uint32_t psk_synchronize_others(void);
#endif
