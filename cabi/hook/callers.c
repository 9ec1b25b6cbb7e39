/*
 * Which real function the calls of an exported name mean. That is told by the caller,
 * as several runtimes may be loaded, each in a scope of its own; to find it takes the
 * loader from some microseconds to a millisecond (dladdr walks all symbols of the
 * caller's library). And callers ask again and again: CUTLASS looks up a driver
 * function before each tensor map that it encodes, hundreds of times an iteration. So
 * what was found is kept, by return address.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>

void *psk_caller_real(psk_callers *c, const void *caller) {
    unsigned n = atomic_load_explicit(&c->taken, memory_order_acquire);
    for (unsigned i = 0; i < n && i < PSK_CALLERS; i++)
        if (atomic_load_explicit(&c->of[i].caller, memory_order_acquire) == caller) return c->of[i].real;
    return NULL;
}

void psk_caller_found(psk_callers *c, const void *caller, void *real) {
    Dl_info info;
    /* The library that has it stays from now on, or another might lie at its address one day. The main program does. */
    if (!dladdr(real, &info) || !info.dli_fname || !dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) return;
    if (atomic_load_explicit(&c->taken, memory_order_relaxed) >= PSK_CALLERS) return;
    unsigned i = atomic_fetch_add(&c->taken, 1);
    if (i >= PSK_CALLERS) return;
    c->of[i].real = real;
    atomic_store_explicit(&c->of[i].caller, caller, memory_order_release);
}
