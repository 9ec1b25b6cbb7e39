/* Captures of streams into graphs, and waits that they survive. */
#ifndef PENSTOCK_HOOK_CAPTURES_H
#define PENSTOCK_HOOK_CAPTURES_H
#include "shared.h"

extern atomic_int psk_captures; /* captures in progress; may be too high, never too low */
/* True also where the driver does not say: of the legacy stream during another's capture. */
bool psk_stream_capturing(CUstream stream, int ptsz);
/* CUDA_SUCCESS and the driver's answer. */
CUresult psk_capture_status(CUstream stream, int ptsz, int *status);
/* The driver's cuStreamSynchronize, which other streams' captures survive. */
CUresult psk_stream_synchronize(CUstream stream, int ptsz);
CUresult psk_event_query(CUevent event); /* likewise */
CUresult psk_relaxed(CUresult (*wait)(void)); /* a call that waits, likewise */
#endif
