/* Parameter layouts of kernels, by handle. */
#ifndef PENSTOCK_HOOK_FUNC_H
#define PENSTOCK_HOOK_FUNC_H
#include "layout.h"

psk_layout *psk_func_layout(CUfunction f);
void psk_func_release(psk_layout *l); /* after use */
/* Where a parameter lies, as the driver says; false where it does not. */
bool psk_func_param(CUfunction f, uint32_t index, size_t *offset, size_t *size);
/* Around a call after which handles may mean other functions. */
void psk_func_unload_begins(void);
void psk_func_unload_ended(void);
#endif
