/*
 * The self-test of the launch hook: a launch by each way in which a program may
 * come by the driver's functions, each counted by the hook or missed.
 */
#ifndef PENSTOCK_SELFTEST_H
#define PENSTOCK_SELFTEST_H
#include "penstock_hook.h"

typedef struct psk_selftest_route {
    char name[64];
    int made;          /* calls */
    int seen;          /* of them, by the hook */
    int refused;       /* of them, by the runtime before they came to the driver: they say nothing */
    char missed[512];  /* names of the functions whose calls were not seen, separated by spaces */
} psk_selftest_route;

/* Tries every route that this process has and returns how many those are, at most max. word is
 * device-accessible memory for a fill of four bytes, 0 to leave the runtime's own calls out. */
int psk_selftest(psk_shared *hook, uint64_t word, psk_selftest_route *routes, int max);

/* Whether a CUDA runtime of its own file is loaded. */
int psk_selftest_runtime_loaded(void);
#endif
