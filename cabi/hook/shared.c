/* The state that the hook shares with the engine, and whose a call is. */
#define _GNU_SOURCE
#include "shared.h"

#include <sys/syscall.h>
#include <unistd.h>

/* Static, so that the counters of resolutions work before an engine attaches. Its arrays come with attach.c. */
psk_shared psk_S;
atomic_int psk_child;
__thread int psk_in_hook __attribute__((tls_model("initial-exec"), visibility("hidden")));

bool psk_probe(void) {
    uint32_t prober = PSK_LOAD(psk_S.probing);
    if (PSK_LIKELY(prober == 0) || prober != (uint32_t)syscall(SYS_gettid)) return false;
    PSK_COUNT(psk_S.probes);
    return true;
}
