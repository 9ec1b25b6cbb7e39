/*
 * Observing a program that knows nothing of Penstock (`penstock faults record --
 * command`). The first managed allocation loads libpenstock.so from
 * $PENSTOCK_LIB and tells it; that records what the program does, and moves
 * nothing. Without PENSTOCK_OBSERVE these wrappers only forward.
 */
#define _GNU_SOURCE
#include "real.h"
#include "shared.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void (*on_alloc)(uint64_t, size_t); /* NULL: nobody observes */
static void (*on_free)(uint64_t);

static void load(void) {
    const char *wanted = getenv("PENSTOCK_OBSERVE"), *folder = getenv("PENSTOCK_LIB");
    if (!wanted || strcmp(wanted, "1") || !folder || atomic_load(&psk_child)) return;
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/libpenstock.so", folder);
    if (n < 0 || (size_t)n >= sizeof path) return;
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        const char *why = dlerror();
        fprintf(stderr, "penstock: nothing is recorded: %s\n", why ? why : path);
        return;
    }
    void *alloc = psk_real_dlsym(lib, "penstock_observe_alloc"), *release = psk_real_dlsym(lib, "penstock_observe_free");
    if (!alloc || !release) {
        fprintf(stderr, "penstock: nothing is recorded: %s is of another version\n", path);
        return;
    }
    *(void **)&on_free = release;
    *(void **)&on_alloc = alloc;
}

/* Whatever the observer does in the driver is its own business. */
static bool enter(void) {
    if (psk_in_hook || atomic_load(&psk_child)) return false;
    psk_in_hook = 1;
    pthread_once(&once, load);
    if (on_alloc) return true;
    psk_in_hook = 0;
    return false;
}

CUresult psk_w_cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned flags) {
    CUresult r = PSK_REAL(cuMemAllocManaged)(p, bytes, flags);
    if (r == CUDA_SUCCESS && p && psk_have_dlsym() && enter()) {
        on_alloc(*p, bytes);
        psk_in_hook = 0;
    }
    return r;
}

/* Told before, so that the address cannot have another owner yet. */
CUresult psk_w_cuMemFree_v2(CUdeviceptr p) {
    if (on_free && p && enter()) {
        on_free(p);
        psk_in_hook = 0;
    }
    return PSK_REAL(cuMemFree_v2)(p);
}
