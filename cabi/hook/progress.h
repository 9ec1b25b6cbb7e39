/* How the engine hears that operations are finished. */
#ifndef PENSTOCK_HOOK_PROGRESS_H
#define PENSTOCK_HOOK_PROGRESS_H
#include "shared.h"

bool psk_have_memops(void);
/* False, said once on stderr, when the driver refuses: psk_have_memops is false from then on. */
bool psk_memop_wait(CUstream stream, int ptsz, uint32_t *word, uint32_t value);
bool psk_memop_write(CUstream stream, int ptsz, uint32_t *word, uint32_t value);
/* Has a stream that is about to be destroyed report its last operation. idle: all of it is done. */
void psk_stream_report(CUstream stream, uint32_t index, bool idle);
/* Has every stream report its last operation, but those that a thread is at work on. For the engine. */
void psk_report_all(void);
void psk_report_quiet(uint64_t seq); /* now and then, of the streams that nothing is launched on; seq: of the latest operation */
#endif
