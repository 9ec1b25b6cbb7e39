// Counts of what PyTorch asked for, exact to the byte. The engine counts what
// it gave, which may be rounded up.
#ifndef PENSTOCK_TORCH_COUNTERS_H
#define PENSTOCK_TORCH_COUNTERS_H

#include <sys/types.h>

namespace penstock {

void count_malloc(ssize_t bytes);
void count_free(ssize_t bytes);

} // namespace penstock

#endif
