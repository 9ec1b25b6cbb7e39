/* Addresses in what is copied from the host. */
#ifndef PENSTOCK_HOOK_WORDS_H
#define PENSTOCK_HOOK_WORDS_H
#include "op.h"

/* The most that is searched for addresses when it is copied from the host; __constant__ memory has as much. */
#define PSK_WORDS_BYTES (64u << 10)
/* Whether a copy of so much from an address is one from the host that may be a table of addresses. It asks the driver. */
bool psk_from_host(uint64_t src, uint64_t bytes);
/* Adds what the words that such a copy reads name, and says whether there is any. readable: they
 * can be read, as the driver will anyhow; else what cannot is the driver's to say. Marks the
 * operation opaque where nothing can tell what can be read. */
bool psk_op_words(psk_op *op, uint64_t src, uint64_t bytes, bool readable);
#endif
