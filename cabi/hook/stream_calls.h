/* Streams that go away. */
#ifndef PENSTOCK_HOOK_STREAM_CALLS_H
#define PENSTOCK_HOOK_STREAM_CALLS_H
#include "shared.h"

/* Gives the streams of a context that has been destroyed up. ended: its work has, too. */
void psk_streams_gone(uint64_t context, bool ended);
#endif
