/* Memory operations of streams and graphs: waits, writes, sums. */
#ifndef PENSTOCK_STUB_MEMOPS_H
#define PENSTOCK_STUB_MEMOPS_H
#include "base.h"

typedef struct memop {
    enum { MEMOP_NONE, MEMOP_WAIT, MEMOP_WRITE, MEMOP_ADD } kind;
    uint64_t address, value;
    unsigned flags; /* of a wait */
    bool wide;      /* 64 bits */
} memop;

memop stub_memop_of(const CUstreamBatchMemOpParams *p);
void stub_run_memop(const memop *m);
#endif
