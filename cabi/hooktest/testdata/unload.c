/* Handles that are given out again after their module went: old layouts must not be used. */
#include "engine.h"

static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }
static uint64_t count(const char *name) { return ((uint64_t(*)(const char *))driver("stub_count"))(name); }

static void no_op(const stub_launch *l) { (void)l; }

static CUfunction get(CUmodule m, const char *name) {
    CUfunction f;
    OK(CALL(cuModuleGetFunction, &f, m, name));
    return f;
}

int main(void) {
    start();
    attach(PSK_MODE_OBSERVE);
    base = managed(10 * 2 * MiB);
    for (uint32_t i = 1; i <= 10; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT);
    ((void (*)(const char *, stub_kernel_fn, void *, unsigned, const size_t *))driver("stub_register_kernel"))("narrow", no_op, NULL, 2, (const size_t[]){4, 8});
    launch_fn launch = (launch_fn)driver("cuLaunchKernel");

    CUmodule keep, m;
    OK(CALL(cuModuleLoadData, &keep, "image"));
    OK(CALL(cuModuleLoadData, &m, "image"));
    CUfunction kept = get(keep, "vec_add"), f = get(m, "touch_add");
    uint64_t v[4] = {at(1), at(2), at(3), 0};
    void *kept_params[] = {&v[0], &v[1], &v[2], &v[3]};
    uint64_t p = at(4), n = 0;
    uint32_t inc = 0;
    void *params[] = {&p, &n, &inc};
    OK(launch(kept, 1, 1, 1, 1, 1, 1, 0, NULL, kept_params, NULL));
    uint32_t kept_id = EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->id;
    OK(launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    uint32_t id = EXPECT(PSK_REC_LAUNCH, 4)->id;
    CHECK(!strcmp(func_name(id), "touch_add"));

    /* Asked for once a handle. */
    uint64_t queries = count("param_queries");
    OK(launch(f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 4)->id, id);
    CHECK_EQ(count("param_queries"), queries);

    SYNC(NULL);
    S->funcs[kept_id].inspect = PSK_INSPECT_CLEARED, S->funcs[kept_id].launches = 100;
    OK(CALL(cuModuleUnload, m));
    OK(CALL(cuModuleLoadData, &m, "image"));
    CUfunction g = get(m, "narrow");
    CHECK(g == f); /* the point of this test */
    uint32_t small = 1;
    uint64_t q = at(5);
    /* Two parameters: with the old layout of three, the third pointer would be followed. */
    void *narrow_params[] = {&small, &q, (void *)8};
    OK(launch(g, 1, 1, 1, 1, 1, 1, 0, NULL, narrow_params, NULL));
    record *r = EXPECT(PSK_REC_LAUNCH, 5);
    CHECK(r->id != id && !strcmp(func_name(r->id), "narrow"));
    CHECK(!strcmp(func_name(id), "touch_add")); /* rows are for ever */
    CHECK_EQ(S->funcs[r->id].nparams, 2);

    /* What stayed is asked again, once, and keeps its id. */
    queries = count("param_queries");
    for (int i = 0; i < 3; i++) {
        OK(launch(kept, 1, 1, 1, 1, 1, 1, 0, NULL, kept_params, NULL));
        CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->id, kept_id);
    }
    CHECK_EQ(count("param_queries"), queries + 5); /* four parameters and the end */
    CHECK_EQ(S->nfuncs, 3);
    CHECK_EQ(S->funcs[kept_id].inspect, PSK_INSPECT_NEW); /* other code may have its name and layout now */
    CHECK_EQ(S->funcs[kept_id].launches, 0);
    S->funcs[kept_id].inspect = PSK_INSPECT_ALWAYS;

    /* A failing unload changes nothing that matters. */
    CHECK(CALL(cuModuleUnload, NULL) != CUDA_SUCCESS);
    OK(launch(kept, 1, 1, 1, 1, 1, 1, 0, NULL, kept_params, NULL));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->id, kept_id);
    CHECK_EQ(S->funcs[kept_id].inspect, PSK_INSPECT_ALWAYS); /* to inspect is always safe */
    S->funcs[kept_id].inspect = PSK_INSPECT_FOLLOWS;
    CHECK(CALL(cuModuleUnload, NULL) != CUDA_SUCCESS);
    OK(launch(kept, 1, 1, 1, 1, 1, 1, 0, NULL, kept_params, NULL));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->id, kept_id);
    CHECK_EQ(S->funcs[kept_id].inspect, PSK_INSPECT_ALWAYS); /* what it was trusted for may be another's */

    /* Names of the launch, copy and graph families without a wrapper leave a trail; known ones do not. */
    CHECK_EQ(S->unhooked, 0);
    void *fake = dlopen("libfuture.so", RTLD_NOW);
    CHECK(fake);
    CHECK(dlsym(fake, "cuLaunchKernelEx_v2") && dlsym(fake, "cuMemcpyBatchAsync_v9") && dlsym(fake, "cuCtxNewThing"));
    CHECK(dlsym(fake, "cuMulticastBindAddr_v3") && dlsym(fake, "cuLaunchKernelEx_v2"));
    driver("cuMemAlloc_v2"), driver("cuMemAllocManaged"), driver("cuLaunchHostFunc"), driver("cuMemFree_v2"), driver("cuMemPrefetchAsync_v2"), driver("cuMemDiscardBatchAsync");
    CHECK_EQ(S->unhooked, 3);
    if (strcmp(S->unhooked_names, "cuLaunchKernelEx_v2\ncuMemcpyBatchAsync_v9\ncuMulticastBindAddr_v3")) {
        fprintf(stderr, "unhooked: %s\n", S->unhooked_names);
        return 1;
    }
    SYNC(NULL);
    return 0;
}
