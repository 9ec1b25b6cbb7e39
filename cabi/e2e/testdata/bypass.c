/*
 * A library that stands before the hook and leads programs past it, by one
 * route: -DLINKED by an exported launch, -DDLSYM by a dlsym of its own,
 * -DGETPROC by handing out the driver's own cuGetProcAddress.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

static void *real(const char *name) {
    void *(*f)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(dlopen("libc.so.6", RTLD_NOLOAD | RTLD_LAZY), "dlsym", "GLIBC_2.34");
    void *libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    return f && libcuda ? f(libcuda, name) : NULL;
}

#if defined LINKED
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *s, void **params, void **extra) {
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        (int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))real("cuLaunchKernel");
    return launch(f, gx, gy, gz, bx, by, bz, shared, s, params, extra);
}
#else
void *dlsym(void *handle, const char *name) {
#ifdef DLSYM
    if (!strncmp(name, "cuLaunch", 8)) return real(name);
#else
    if (!strncmp(name, "cuGetProcAddress", 16)) return real(name);
#endif
    void *(*next)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    return next(handle, name);
}
#endif
