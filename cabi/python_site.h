#ifndef PENSTOCK_PYTHON_SITE_H
#define PENSTOCK_PYTHON_SITE_H
#include <stddef.h>

/* Writes the calling thread's Python frames, innermost first, as
 * "file.py:LINE function < ...", NUL-terminated. "" without an interpreter, or
 * where the thread does not hold its lock. Returns the length. */
size_t penstock_python_site(char *out, size_t capacity);

#endif
