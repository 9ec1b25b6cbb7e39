/* What a test asks the stub: its counters, and the peaks. */
#define _GNU_SOURCE
#include "base.h"
#include "memory.h"
#include "ranges.h"
#include "streams.h"
#include "vmm.h"

#include <pthread.h>
#include <string.h>

static const char *const counter_names[N_COUNTS] = {"launches", "graph_launches", "faults", "h2d_bytes", "d2h_bytes", "evictions", "prefetches", "discards", "wait_values", "write_values", "copies", "illegal", "param_queries"};

static uint64_t memory_count(const char *name) {
    pthread_mutex_lock(&stub_memory_mu);
    uint64_t n = !strcmp(name, "registered_bytes") ? stub_registered_bytes() : stub_range_count(name) + stub_vmm_count(name);
    pthread_mutex_unlock(&stub_memory_mu);
    return n;
}

uint64_t stub_count(const char *name) {
    if (!strcmp(name, "queued")) return stub_queued();
    for (int i = 0; i < N_COUNTS; i++)
        if (!strcmp(name, counter_names[i])) return atomic_load(&stub_counters[i]);
    return memory_count(name);
}

void stub_reset_counts(void) {
    for (int i = 0; i < N_COUNTS; i++) atomic_store(&stub_counters[i], 0);
    pthread_mutex_lock(&stub_memory_mu);
    stub_reset_range_peak();
    stub_reset_vmm_peak();
    pthread_mutex_unlock(&stub_memory_mu);
}
