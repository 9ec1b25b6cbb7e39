/* Lists of addresses of which a launch uses a part. */
#ifndef PENSTOCK_HOOK_LISTS_H
#define PENSTOCK_HOOK_LISTS_H
#include "layout.h"

/* Finds out, by its function's name, whether a layout has lists of which a launch uses a part. */
void psk_list_recognise(psk_layout *l, const char *name);
/* How many entries of each list are used by a launch with such a grid; 0: there is none, or it is not what it should be. */
uint32_t psk_list_used(const psk_layout *l, void **params, unsigned columns, unsigned rows);
#endif
