/* The arrays of the shared state, attach, and what a forked child sees. */
#define _GNU_SOURCE
#include "context_calls.h"
#include "contexts.h"
#include "map.h"
#include "progress.h"
#include "real.h"
#include "shared.h"

#include <pthread.h>
#include <sys/mman.h>

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

/* The arrays are not mapped in the child (MADV_DONTFORK) and the engine's
 * threads do not exist there, so the child forwards every call untouched. Other
 * threads of the parent may have held any lock: nothing that the child can
 * reach takes one. */
static void in_child(void) {
    atomic_store(&psk_child, 1);
    __atomic_store_n(&psk_S.mode, PSK_MODE_OFF, __ATOMIC_RELEASE);
    psk_in_hook = 0;
    psk_S.block_slot = NULL;
    psk_S.slot_state = NULL;
    psk_S.slot_last_seq = NULL;
    psk_S.ring = NULL;
    psk_S.funcs = NULL;
    psk_S.streams = NULL;
    psk_S.gate = NULL;
    psk_S.progress = NULL;
    psk_S.slot_ticket = NULL;
    psk_S.launch_area = NULL;
    psk_S.arrived = NULL;
    psk_S.probing = 0;
}

static size_t round_page(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }

/* A large page. The ring begins with one: its records would touch a new small page every 32 launches. */
#define LARGE_PAGE ((size_t)2 << 20)

static bool map_arrays(void) {
    const size_t bytes[] = {
        round_page(sizeof(psk_entry) * PSK_RING_ENTRIES), round_page(sizeof(uint32_t) * PSK_TABLE_BLOCKS), round_page(PSK_MAX_SLOTS),
        round_page(sizeof(uint64_t) * PSK_MAX_SLOTS), round_page(sizeof(psk_func) * PSK_MAX_FUNCS), round_page(sizeof(uint64_t) * PSK_MAX_STREAMS),
        round_page(sizeof(uint32_t) * PSK_MAX_SLOTS), (size_t)PSK_LAUNCH_UNITS * PSK_LAUNCH_UNIT,
    };
    size_t total = LARGE_PAGE;
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) total += bytes[i];
    char *p = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return false;
    madvise(p, total, MADV_DONTFORK); /* a child must not touch it anyhow; failing is harmless */
    p += -(uintptr_t)p & (LARGE_PAGE - 1);
    madvise(p, bytes[0], MADV_HUGEPAGE); /* likewise */
    psk_S.ring = (psk_entry *)p, p += bytes[0];
    psk_S.block_slot = (uint32_t *)p, p += bytes[1];
    psk_S.slot_state = (uint8_t *)p, p += bytes[2];
    psk_S.slot_last_seq = (uint64_t *)p, p += bytes[3];
    psk_S.funcs = (psk_func *)p, p += bytes[4];
    psk_S.streams = (uint64_t *)p, p += bytes[5];
    psk_S.slot_ticket = (uint32_t *)p, p += bytes[6];
    psk_S.launch_area = (uint8_t *)p;
    return true;
}

PSK_EXPORT psk_shared *penstock_hook_attach(uint32_t abi_version) {
    if (abi_version != PSK_HOOK_ABI || atomic_load(&psk_child)) return NULL;
    pthread_mutex_lock(&mu);
    psk_shared *s = &psk_S;
    if (!psk_S.ring) {
        if (pthread_atfork(NULL, NULL, in_child) || !map_arrays()) {
            s = NULL;
        } else {
            psk_S.abi_version = PSK_HOOK_ABI;
            psk_S.size = sizeof psk_S;
            psk_S.report_all = psk_report_all;
            psk_S.serve = psk_serve;
            psk_S.unhooked_names = psk_unhooked_names();
            psk_S.synchronize_others = psk_synchronize_others;
            __atomic_store_n(&psk_S.nstreams, 1, __ATOMIC_RELEASE); /* index 0: the legacy default stream */
        }
    }
    pthread_mutex_unlock(&mu);
    return s;
}

PSK_EXPORT void *penstock_hook_real(const char *symbol) { return psk_driver_symbol(symbol); }
