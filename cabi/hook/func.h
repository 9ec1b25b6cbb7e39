/* Parameter layouts of kernels, by handle. */
#ifndef PENSTOCK_HOOK_FUNC_H
#define PENSTOCK_HOOK_FUNC_H
#include "layout.h"

psk_layout *psk_func_layout(CUfunction f);
void psk_func_release(psk_layout *l); /* after use */
/* Around a call after which handles may mean other functions. */
void psk_func_unload_begins(void);
void psk_func_unload_ended(void);
#endif
