/*
 * The hook without an engine, and drivers that lack things. argv[1]:
 *   forward   results as without the hook, nothing counted
 *   nodriver  no libcuda anywhere: no name is offered
 *   old       a driver of CUDA 11.8: what it lacks is not offered by any route
 */
#include "engine.h"

static void forward(void) {
    start();
    CUdeviceptr a = managed(4 * MiB), b;
    OK(CALL(cuMemAlloc_v2, &b, U64(MiB)));
    OK(touch_add(NULL, a, 100, 5));
    OK(CALL(cuMemcpyDtoD_v2, b, a, U64(400)));
    uint32_t out[100];
    OK(CALL(cuMemcpyDtoH_v2, out, b, U64(400)));
    for (int i = 0; i < 100; i++) CHECK_EQ(out[i], 5);
    /* Errors pass unchanged. */
    CHECK_EQ(CALL(cuLaunchKernel, NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);

    psk_shared *(*attach_fn)(uint32_t) = (psk_shared * (*)(uint32_t)) dlsym(RTLD_DEFAULT, "penstock_hook_attach");
    CHECK(!attach_fn(PSK_HOOK_ABI + 1));
    CHECK(!attach_fn(0));
    psk_shared *s = attach_fn(PSK_HOOK_ABI);
    CHECK(s && s == attach_fn(PSK_HOOK_ABI));
    CHECK_EQ(s->launches + s->copies, 0);
    OK(touch_add(NULL, a, 100, 5)); /* attached, mode off: the same */
    SYNC(NULL);
    CHECK_EQ(word_at(a), 10);
    CHECK_EQ(s->launches, 0);
    CHECK_EQ(s->head, 0);

    /* The real functions, for the engine's own calls. */
    void *(*real)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "penstock_hook_real");
    CHECK(real("cuLaunchKernel") && real("cuLaunchKernel") != driver("cuLaunchKernel"));
    CHECK(real("cuMemGetInfo_v2") == driver("cuMemGetInfo_v2"));
    CHECK(!real("cuNoSuchThing"));
}

static void nodriver(void) {
    CHECK(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
    CHECK(!dlsym(RTLD_DEFAULT, "cuLaunchKernel") && dlerror());
    CHECK(!dlsym(dlopen(NULL, RTLD_NOW), "cuMemcpyAsync") && dlerror());
    CHECK(!dlsym(RTLD_DEFAULT, "cudaGetDriverEntryPoint") && dlerror());
    void *(*real)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "penstock_hook_real");
    CHECK(!real("cuLaunchKernel") && !real("cuInit"));
    CHECK(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)); /* nor did asking load it */
    CHECK(dlsym(RTLD_DEFAULT, "printf"));
}

typedef CUresult (*getproc_v1)(const char *, void **, int, uint64_t);

static void old(void) {
    start();
    attach(PSK_MODE_GATED);
    static const char *const lacking[] = {"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", "cuLibraryUnload", "cuGetProcAddress_v2", "cuGraphExecUpdate_v2"};
    CHECK(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL));
    for (size_t i = 0; i < sizeof lacking / sizeof lacking[0]; i++) {
        CHECK(!dlsym(libcuda, lacking[i]));
        CHECK(!dlsym(RTLD_DEFAULT, lacking[i]) && dlerror());
        CHECK(!dlsym(dlopen(NULL, RTLD_NOW), lacking[i]) && dlerror());
    }
    void *p = NULL;
    CHECK_EQ(((getproc_v1)driver("cuGetProcAddress"))("cuMemcpyBatchAsync", &p, 13000, 0), CUDA_ERROR_NOT_FOUND);
    OK(((getproc_v1)driver("cuGetProcAddress"))("cuLaunchKernel", &p, 11030, 0));
    CHECK(p == driver("cuLaunchKernel"));
    /* No cuFuncGetParamInfo: launches are recorded, and said to be opaque. */
    CUdeviceptr a = managed(2 * MiB);
    own(1, a, 2 * MiB, PSK_SLOT_RESIDENT);
    OK(touch_add(NULL, a, 10, 1));
    record *r = must_take();
    CHECK_EQ(r->n, 0);
    CHECK(r->flags & PSK_FLAG_OPAQUE);
    CHECK_EQ(S->opaque_launches, 1);
    CHECK(!func_name(r->id)[0] && S->funcs[r->id].opaque);
    SYNC(NULL);
    CHECK_EQ(word_at(a), 1);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    if (!strcmp(argv[1], "forward")) forward();
    else if (!strcmp(argv[1], "nodriver")) nodriver();
    else if (!strcmp(argv[1], "old")) old();
    else return 2;
    return 0;
}
