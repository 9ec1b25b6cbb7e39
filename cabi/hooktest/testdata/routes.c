/* A launch resolved by one route is recorded. argv[1]: the route. */
#ifdef LINKED
#include <stdint.h>
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
#endif
#include "engine.h"

#ifdef COUNTING
/* Exported, so that the hook's questions pass here. */
static int lookups;
int dladdr(const void *at, Dl_info *info) {
    lookups++;
    return ((int (*)(const void *, Dl_info *))dlsym(RTLD_NEXT, "dladdr"))(at, info);
}
#endif

typedef CUresult (*getproc_v1)(const char *, void **, int, uint64_t);
typedef CUresult (*getproc_v2)(const char *, void **, int, uint64_t, int *);
typedef CUresult (*entry)(const char *, void **, unsigned long long, int *);
typedef CUresult (*entry_version)(const char *, void **, unsigned, unsigned long long, int *);

/* cuGetProcAddress asked for itself gives a wrapper of the ABI that the version names. */
static void check_itself(void) {
    void *v1 = driver("cuGetProcAddress"), *v2 = driver("cuGetProcAddress_v2"), *p;
    int status;
    OK(((getproc_v1)v1)("cuGetProcAddress", &p, 11030, 0));
    CHECK(p == v1);
    OK(((getproc_v1)v1)("cuGetProcAddress", &p, 12000, 0));
    CHECK(p == v2);
    OK(((getproc_v2)v2)("cuGetProcAddress", &p, 11080, 0, &status));
    CHECK(p == v1);
    OK(((getproc_v2)v2)("cuGetProcAddress", &p, 13000, 0, &status));
    CHECK(p == v2);
}

/* One name, three functions: the version and the flag decide, and each is the wrapper that dlsym gives. */
static void check_versions(void) {
    getproc_v2 get = (getproc_v2)driver("cuGetProcAddress_v2");
    static const struct {
        const char *base, *name;
        int version;
        uint64_t flags;
    } cases[] = {
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 13000, 0},
        {"cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds", 13000, 2},
        {"cuLaunchKernel", "cuLaunchKernel", 13000, 1},
        {"cuLaunchKernel", "cuLaunchKernel_ptsz", 13000, 2},
        {"cuLaunchKernel", "cuLaunchKernel", 6000, 2}, /* before there were per-thread streams */
        {"cuLaunchCooperativeKernel", "cuLaunchCooperativeKernel_ptsz", 12000, 2},
        {"cuGraphLaunch", "cuGraphLaunch_ptsz", 12000, 2},
        {"cuMemcpyBatchAsync", "cuMemcpyBatchAsync", 12080, 0},
        {"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", 13000, 0},
        {"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2_ptsz", 13000, 2},
        {"cuGraphInstantiate", "cuGraphInstantiate_v2", 12000, 0},
        {"cuGraphInstantiate", "cuGraphInstantiate", 10000, 0},
        {"cuGraphExecUpdate", "cuGraphExecUpdate", 11000, 0},
        {"cuGraphExecUpdate", "cuGraphExecUpdate_v2", 12000, 0},
        {"cuStreamBeginCapture", "cuStreamBeginCapture_v2_ptsz", 12000, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        void *p = NULL;
        int status = -1;
        OK(get(cases[i].base, &p, cases[i].version, cases[i].flags, &status));
        if (p != driver(cases[i].name)) {
            fprintf(stderr, "%s at %d, flags %d, is not %s\n", cases[i].base, cases[i].version, (int)cases[i].flags, cases[i].name);
            exit(1);
        }
    }
    /* The driver's refusals pass unchanged. */
    void *p = (void *)1;
    int status = -1;
    OK(get("cuNoSuchThing", &p, 13000, 0, &status));
    CHECK(!p && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(get("cuLaunchKernelEx", &p, 11000, 0, &status));
    CHECK(!p && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK_EQ(get("cuNoSuchThing", &p, 13000, 0, NULL), CUDA_ERROR_NOT_FOUND);
    CHECK_EQ(((getproc_v1)driver("cuGetProcAddress"))("cuNoSuchThing", &p, 13000, 0), CUDA_ERROR_NOT_FOUND);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *route = argv[1];
    start();
    attach(PSK_MODE_OBSERVE);
    uint64_t elf = S->route_elf, dl = S->route_dlsym, getproc = S->route_getproc, runtime = S->route_runtime;
    void *launch = NULL;
    int status = 0;
    uint64_t *moved = NULL, before = 0;
    if (!strcmp(route, "elf")) {
#ifdef LINKED
        launch = (void *)cuLaunchKernel;
#endif
        moved = &S->route_elf, before = elf;
    } else if (!strcmp(route, "dlsym")) {
        launch = driver("cuLaunchKernel");
        moved = &S->route_dlsym, before = dl;
    } else if (!strcmp(route, "default")) { /* RTLD_DEFAULT, libcuda in the global scope */
        CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL));
        launch = dlsym(RTLD_DEFAULT, "cuLaunchKernel");
        moved = &S->route_dlsym, before = dl;
    } else if (!strcmp(route, "main")) { /* the handle of the main program */
        CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL));
        launch = dlsym(dlopen(NULL, RTLD_NOW), "cuLaunchKernel");
        moved = &S->route_dlsym, before = dl;
    } else if (!strcmp(route, "getproc1")) {
        OK(((getproc_v1)driver("cuGetProcAddress"))("cuLaunchKernel", &launch, 11030, 0));
        moved = &S->route_getproc, before = getproc;
        check_itself();
    } else if (!strcmp(route, "getproc2")) {
        OK(((getproc_v2)driver("cuGetProcAddress_v2"))("cuLaunchKernel", &launch, 13000, 0, &status));
        moved = &S->route_getproc, before = getproc;
        check_itself();
        check_versions();
    } else if (!strcmp(route, "runtime") || !strcmp(route, "runtime-version")) {
        void *cudart = dlopen("libcudart.so.99", RTLD_NOW | RTLD_LOCAL);
        CHECK(cudart);
        if (!strcmp(route, "runtime"))
            OK(((entry)dlsym(cudart, "cudaGetDriverEntryPoint"))("cuLaunchKernel", &launch, 0, &status));
        else
            OK(((entry_version)dlsym(cudart, "cudaGetDriverEntryPointByVersion"))("cuLaunchKernel", &launch, 12000, 0, &status));
        moved = &S->route_runtime, before = runtime;
    } else if (!strcmp(route, "runtime-linked")) { /* a library that links a runtime loaded in its own scope only */
        void *user = dlopen("libuser.so", RTLD_NOW | RTLD_LOCAL);
        if (!user) fprintf(stderr, "%s\n", dlerror());
        CHECK(user);
        void *(*resolve)(void) = (void *(*)(void))dlsym(user, "user_resolve");
        launch = resolve();
#ifdef COUNTING /* the loader is asked once for each place that calls */
        int first = lookups;
        CHECK(first > 0);
        for (int i = 0; i < 3; i++) CHECK(resolve() == launch);
        CHECK_EQ(lookups, first);
#endif
        moved = &S->route_runtime, before = runtime;
    }
    CHECK(launch);
    /* As ctypes may do: an unknown name is not found, and dlerror says so. */
    CHECK(!dlsym(libcuda, "cuNoSuchThing") && dlerror());

    CUdeviceptr a = managed(4 * MiB);
    own(7, a, 4 * MiB, PSK_SLOT_RESIDENT);
    OK(touch_add_by((launch_fn)launch, NULL, a, 1000, 3));
    SYNC(NULL);
    CHECK_EQ(word_at(a), 3);
    CHECK_EQ(word_at(a + 999 * 4), 3);
    record *r = EXPECT(PSK_REC_LAUNCH, 7);
    CHECK(!strcmp(func_name(r->id), "touch_add"));
    CHECK_EQ(r->stream, 0);
    none_left();
    if (*moved <= before) {
        fprintf(stderr, "%s: its counter stayed at %llu\n", route, (unsigned long long)before);
        return 1;
    }
    return 0;
}
