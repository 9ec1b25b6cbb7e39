#ifndef PENSTOCK_EXPORTS_H
#define PENSTOCK_EXPORTS_H

/* The exported calls use a struct front (pool/front/front.h) from now on. */
void exports_use_front(void *f);

#endif
