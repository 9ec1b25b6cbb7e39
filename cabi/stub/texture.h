/* Textures over linear memory. */
#ifndef PENSTOCK_STUB_TEXTURE_H
#define PENSTOCK_STUB_TEXTURE_H
#include "base.h"

uint64_t stub_texture_address(uint64_t object); /* 0: there is no such object */
#endif
