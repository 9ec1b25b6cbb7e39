/* Initialisation, counters, fault injection, the driver's own lock. */
#ifndef PENSTOCK_STUB_BASE_H
#define PENSTOCK_STUB_BASE_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../hook/cuda_abi.h"
#include "stub.h"

#ifndef STUB_VERSION
#define STUB_VERSION 13000
#endif
#define CUDA_ERROR_ECC_UNCORRECTABLE 214

/* CUDA_ERROR_NOT_INITIALIZED in a forked child and before cuInit. */
CUresult stub_ready(void);
#define READY()                                  \
    do {                                         \
        CUresult ready_ = stub_ready();          \
        if (ready_ != CUDA_SUCCESS) return ready_; \
    } while (0)

enum { N_LAUNCHES, N_GRAPH_LAUNCHES, N_FAULTS, N_H2D, N_D2H, N_EVICTIONS, N_PREFETCHES, N_DISCARDS, N_WAITS, N_WRITES, N_COPIES, N_ILLEGAL, N_PARAM_QUERIES, N_COUNTS };
extern atomic_uint_fast64_t stub_counters[N_COUNTS];
#define COUNT(c, n) atomic_fetch_add(&stub_counters[c], (n))
/* Whether this call of a function that can be made to fail does; counts it. */
bool stub_should_fail(const char *name);
uint64_t stub_env_bytes(const char *name, uint64_t otherwise);

/* Held by calls that queue work or change mappings, also while they wait, where STUB_API_LOCK asks for it. */
void stub_api_lock(void);
void stub_api_unlock(void);
#endif
