/* The exported names, for programs linked against libcuda. */
#ifndef PENSTOCK_HOOK_LINKED_H
#define PENSTOCK_HOOK_LINKED_H
#include "shared.h"

bool psk_linked_export(int row, const void *p); /* false for no row */
#endif
