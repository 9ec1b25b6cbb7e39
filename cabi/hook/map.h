/* The map from a real entry point to its wrapper. */
#ifndef PENSTOCK_HOOK_MAP_H
#define PENSTOCK_HOOK_MAP_H
#include "shared.h"

enum { PSK_ROUTE_DLSYM, PSK_ROUTE_GETPROC, PSK_ROUTE_RUNTIME };
/* The wrapper when real is an entry point of the table, else real itself. Counts either. */
void *psk_substitute(void *real, const char *name, int route);
const char *psk_unhooked_names(void);
#endif
