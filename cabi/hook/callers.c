/*
 * Which real function the calls of an exported name mean. That is told by the caller,
 * as several runtimes may be loaded, each in a scope of its own; to find it takes the
 * loader from some microseconds to a millisecond (dladdr walks all symbols of the
 * caller's library). And callers ask again and again: CUTLASS looks up a driver
 * function before each tensor map that it encodes, hundreds of times an iteration. So
 * what was found is kept, by return address.
 */
#define _GNU_SOURCE
#include "callers.h"

#include <dlfcn.h>
#include <link.h>

void *psk_caller_real(psk_callers *c, const void *caller) {
    unsigned n = atomic_load_explicit(&c->taken, memory_order_acquire);
    for (unsigned i = 0; i < n && i < PSK_CALLERS; i++)
        if (atomic_load_explicit(&c->of[i].caller, memory_order_acquire) == caller) return c->of[i].real;
    return NULL;
}

bool psk_keep(const void *at) {
    Dl_info info;
    struct link_map *in;
    if (!dladdr1(at, &info, (void **)&in, RTLD_DL_LINKMAP)) return false;
    if (!*in->l_name /* the main program */ || dlopen(in->l_name, RTLD_LAZY | RTLD_NOLOAD)) return true;
    dlerror(); /* not the caller's failure */
    return false;
}

void psk_caller_found(psk_callers *c, const void *caller, void *real) {
    if (atomic_load_explicit(&c->taken, memory_order_relaxed) >= PSK_CALLERS) return;
    /* Or another library might lie there one day, and its calls return to the same address. */
    if (!psk_keep(caller) || !psk_keep(real)) return;
    unsigned i = atomic_fetch_add(&c->taken, 1);
    if (i >= PSK_CALLERS) return;
    c->of[i].real = real;
    atomic_store_explicit(&c->of[i].caller, caller, memory_order_release);
}
