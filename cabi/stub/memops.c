/* Memory operations of streams and graphs: waits, writes, sums. */
#define _GNU_SOURCE
#include "memops.h"
#include "contexts.h"

#include <time.h>

static bool satisfied(uint64_t now, uint64_t value, unsigned flags, bool wide) {
    switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ: return wide ? (int64_t)(now - value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return now == value;
    case CU_STREAM_WAIT_VALUE_AND: return (now & value) != 0;
    default: return (wide ? ~(now | value) : (uint32_t) ~(uint32_t)(now | value)) != 0;
    }
}

static uint64_t load(uint64_t p, bool wide) {
    return wide ? __atomic_load_n((uint64_t *)(uintptr_t)p, __ATOMIC_ACQUIRE) : __atomic_load_n((uint32_t *)(uintptr_t)p, __ATOMIC_ACQUIRE);
}

static void wait_for(const memop *m) {
    for (unsigned spins = 0; !satisfied(load(m->address, m->wide), m->value, m->flags, m->wide) && !stub_ended(); spins++) {
        struct timespec pause = {.tv_nsec = spins < 50 ? 1000 : 50000};
        nanosleep(&pause, NULL);
    }
}

static void put(const memop *m) {
    if (m->wide)
        __atomic_store_n((uint64_t *)(uintptr_t)m->address, m->value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint32_t *)(uintptr_t)m->address, (uint32_t)m->value, __ATOMIC_RELEASE);
}

static void add(const memop *m) {
    if (m->wide)
        __atomic_fetch_add((uint64_t *)(uintptr_t)m->address, m->value, __ATOMIC_ACQ_REL);
    else
        __atomic_fetch_add((uint32_t *)(uintptr_t)m->address, (uint32_t)m->value, __ATOMIC_ACQ_REL);
}

void stub_run_memop(const memop *m) {
    switch (m->kind) {
    case MEMOP_NONE: break;
    case MEMOP_WAIT: wait_for(m); break;
    case MEMOP_WRITE: put(m); break;
    case MEMOP_ADD: add(m); break;
    }
}

memop stub_memop_of(const CUstreamBatchMemOpParams *p) {
    bool wide = p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || p->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    memop m = {.address = p->value.address, .value = wide ? p->value.value64 : p->value.value, .flags = p->value.flags, .wide = wide};
    switch (p->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64: m.kind = MEMOP_WAIT; return m;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64: m.kind = MEMOP_WRITE; return m;
    case CU_STREAM_MEM_OP_ATOMIC_REDUCTION: return (memop){MEMOP_ADD, p->reduction.address, p->reduction.value, 0, p->reduction.type == CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64};
    default: return (memop){0};
    }
}
