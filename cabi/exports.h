#ifndef PENSTOCK_EXPORTS_H
#define PENSTOCK_EXPORTS_H

/* The exported calls use a struct front (pool/front/front.h) of the pool and one of
 * what can leave the device from now on. */
void exports_use_fronts(void *pool, void *tensors);

/* And note allocations and frees in the log (alloc_log.h), which has its units and tail from then
 * on, or with NULL no more. */
struct alloc_log;
struct alloc_log *exports_alloc_log(void);
void exports_use_alloc_log(void *units);

/* A forked child closes this descriptor, on which its parent is asked; -1: none. */
void exports_listener(int fd);

#endif
