#ifndef PENSTOCK_EXPORTS_H
#define PENSTOCK_EXPORTS_H

/* The exported calls use a struct front (pool/front/front.h) of the pool and one of
 * what can leave the device from now on. */
void exports_use_fronts(void *pool, void *tensors);

/* And note allocations and frees in a struct alloc_log (alloc_log.h), or with NULL no more. */
void exports_use_alloc_log(void *l);

#endif
