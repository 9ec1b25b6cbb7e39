/*
 * A probe is a launch of no function: the hook counts it and answers for the
 * driver, so nothing runs. A route that the hook does not stand on takes it to
 * the driver, which refuses it without a context or a function; it is then
 * missing from the count. The runtime refuses launches of what was not
 * registered with it, so through its own table of the driver a fill is sent.
 *
 * This file is no part of the hook, on purpose: it has to be an ordinary caller.
 */
#define _GNU_SOURCE
#include "selftest.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda_abi.h"

typedef CUresult (*launch_fn)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
typedef CUresult (*launch_ex_fn)(const CUlaunchConfig *, CUfunction, void **, void **);
typedef CUresult (*cooperative_fn)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **);
typedef CUresult (*getproc_v1)(const char *, void **, int, uint64_t);
typedef CUresult (*getproc_v2)(const char *, void **, int, uint64_t, int *);
typedef int (*entry_fn)(const char *, void **, unsigned long long, int *);
typedef int (*entry_version_fn)(const char *, void **, unsigned, unsigned long long, int *);

/* What a linker binds for this library: the first definition in the process, NULL without any. */
#define LINKED(type, name) extern __typeof__(*(type)0) name __attribute__((weak))
LINKED(launch_fn, cuLaunchKernel);
LINKED(launch_fn, cuLaunchKernel_ptsz);
LINKED(launch_ex_fn, cuLaunchKernelEx);
LINKED(launch_ex_fn, cuLaunchKernelEx_ptsz);
LINKED(cooperative_fn, cuLaunchCooperativeKernel);
LINKED(cooperative_fn, cuLaunchCooperativeKernel_ptsz);

/* Programs built on systems before glibc 2.34 are bound to the older version of dlsym. */
extern void *older_dlsym(void *, const char *);
asm(".symver older_dlsym, dlsym@GLIBC_2.2.5");

enum kind { LAUNCH, LAUNCH_EX, COOPERATIVE };
static const struct launch {
    const char *name, *base;
    int since; /* the CUDA version of this signature */
    int ptsz;
    enum kind kind;
} launches[] = {
    {"cuLaunchKernel", "cuLaunchKernel", 4000, 0, LAUNCH},
    {"cuLaunchKernel_ptsz", "cuLaunchKernel", 7000, 1, LAUNCH},
    {"cuLaunchKernelEx", "cuLaunchKernelEx", 11060, 0, LAUNCH_EX},
    {"cuLaunchKernelEx_ptsz", "cuLaunchKernelEx", 11060, 1, LAUNCH_EX},
    {"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel", 9000, 0, COOPERATIVE},
    {"cuLaunchCooperativeKernel_ptsz", "cuLaunchCooperativeKernel", 9000, 1, COOPERATIVE},
};
#define LAUNCHES ((int)(sizeof launches / sizeof launches[0]))

struct test {
    psk_shared *hook;
    psk_selftest_route *routes, *route; /* all, and the one under test */
    int n, max;
};

static uint64_t probes(const struct test *t) { return __atomic_load_n(&t->hook->probes, __ATOMIC_ACQUIRE); }

static void begin(struct test *t, const char *name) {
    static psk_selftest_route spill;
    t->route = t->n < t->max ? &t->routes[t->n] : &spill;
    memset(t->route, 0, sizeof *t->route);
    snprintf(t->route->name, sizeof t->route->name, "%s", name);
}

/* Keeps the route if it was there to be tried. */
static void end(struct test *t) {
    if (t->route->made && t->n < t->max) t->n++;
}

static void count(struct test *t, const char *what, uint64_t before) {
    psk_selftest_route *r = t->route;
    r->made++;
    if (probes(t) > before) {
        r->seen++;
        return;
    }
    size_t used = strlen(r->missed);
    snprintf(r->missed + used, sizeof r->missed - used, "%s%s", used ? " " : "", what);
}

/* Launches no function through an entry point that some route gave. */
static void probe(struct test *t, const struct launch *l, void *entry) {
    if (!entry) return; /* this driver is older than the function */
    static const CUlaunchConfig one = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    uint64_t before = probes(t);
    switch (l->kind) {
    case LAUNCH: ((launch_fn)entry)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); break;
    case LAUNCH_EX: ((launch_ex_fn)entry)(&one, NULL, NULL, NULL); break;
    case COOPERATIVE: ((cooperative_fn)entry)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL); break;
    }
    count(t, l->name, before);
}

static void by_link(struct test *t, void *libcuda) {
    void *const entries[LAUNCHES] = {cuLaunchKernel, cuLaunchKernel_ptsz, cuLaunchKernelEx, cuLaunchKernelEx_ptsz, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz};
    begin(t, "linked symbol");
    for (int i = 0; i < LAUNCHES; i++) {
        if (!dlsym(libcuda, launches[i].name)) continue; /* the hook exports what this driver lacks, too */
        if (entries[i])
            probe(t, &launches[i], entries[i]);
        else
            count(t, launches[i].name, probes(t)); /* the hook is not in the global scope: a program would bind past it */
    }
    end(t);
}

static void by_dlsym(struct test *t, void *libcuda, const char *name, void *(*lookup)(void *, const char *)) {
    begin(t, name);
    for (int i = 0; i < LAUNCHES; i++) probe(t, &launches[i], lookup(libcuda, launches[i].name));
    end(t);
}

static void by_getproc(struct test *t, void *libcuda) {
    getproc_v1 v1 = (getproc_v1)dlsym(libcuda, "cuGetProcAddress");
    getproc_v2 v2 = (getproc_v2)dlsym(libcuda, "cuGetProcAddress_v2");
    for (int v = 1; v <= 2; v++) {
        if (v == 1 ? !v1 : !v2) continue;
        begin(t, v == 1 ? "cuGetProcAddress" : "cuGetProcAddress_v2");
        for (int i = 0; i < LAUNCHES; i++) {
            const struct launch *l = &launches[i];
            uint64_t flags = l->ptsz ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
            void *entry = NULL;
            int status;
            CUresult r = v == 1 ? v1(l->base, &entry, l->since, flags) : v2(l->base, &entry, l->since, flags, &status);
            if (r == CUDA_SUCCESS) probe(t, l, entry);
        }
        end(t);
    }
}

/* ---- the CUDA runtime ---- */

struct runtimes {
    char path[4][512];
    int n;
};

static int find_runtime(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)size;
    struct runtimes *r = arg;
    const char *base = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    if (base && !strncmp(base + 1, "libcudart.so", 12) && strlen(info->dlpi_name) < sizeof r->path[0])
        strcpy(r->path[r->n++], info->dlpi_name);
    return r->n == 4;
}

int psk_selftest_runtime_loaded(void) {
    struct runtimes r = {0};
    dl_iterate_phdr(find_runtime, &r);
    return r.n;
}

static void by_runtime(struct test *t, const char *path, uint64_t word) {
    void *runtime = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!runtime) return;
    char name[64];
    snprintf(name, sizeof name, "%s", strrchr(path, '/') + 1);
    begin(t, name);
    entry_version_fn by_version = (entry_version_fn)dlsym(runtime, "cudaGetDriverEntryPointByVersion");
    entry_fn plain = (entry_fn)dlsym(runtime, "cudaGetDriverEntryPoint");
    for (int i = 0; i < LAUNCHES; i++) {
        const struct launch *l = &launches[i];
        unsigned long long flags = l->ptsz ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
        void *entry = NULL;
        int status, r = by_version ? by_version(l->base, &entry, (unsigned)l->since, flags, &status) : plain ? plain(l->base, &entry, flags, &status) : 1;
        if (r == 0) probe(t, l, entry);
    }
    /* Its own table, which it filled when it started: maybe before the hook could see that. */
    int (*fill)(uint64_t, int, size_t, CUstream) = (int (*)(uint64_t, int, size_t, CUstream))dlsym(runtime, "cudaMemsetAsync");
    int (*last_error)(void) = (int (*)(void))dlsym(runtime, "cudaGetLastError");
    if (fill && last_error && word) {
        __atomic_store_n(&t->hook->probe_word, word, __ATOMIC_RELEASE);
        uint64_t before = probes(t);
        if (fill(word, 0, 4, CU_STREAM_PER_THREAD) == 0 || probes(t) > before) {
            count(t, "cudaMemsetAsync", before);
        } else {
            last_error(); /* what it remembers is not the job's failure */
            t->route->made++, t->route->refused++;
        }
        __atomic_store_n(&t->hook->probe_word, 0, __ATOMIC_RELEASE);
    }
    end(t);
    dlclose(runtime);
}

int psk_selftest(psk_shared *hook, uint64_t word, psk_selftest_route *routes, int max) {
    void *libcuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!libcuda) return 0;
    struct test t = {.hook = hook, .routes = routes, .max = max};
    __atomic_store_n(&hook->probing, (uint32_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    by_link(&t, libcuda);
    by_dlsym(&t, libcuda, "dlsym", dlsym);
    by_dlsym(&t, libcuda, "dlsym@GLIBC_2.2.5", older_dlsym);
    by_getproc(&t, libcuda);
    struct runtimes loaded = {0};
    dl_iterate_phdr(find_runtime, &loaded);
    for (int i = 0; i < loaded.n; i++) by_runtime(&t, loaded.path[i], word);
    __atomic_store_n(&hook->probing, 0, __ATOMIC_RELEASE);
    dlclose(libcuda);
    return t.n;
}
