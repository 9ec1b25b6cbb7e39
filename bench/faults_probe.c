/*
 * A plain CUDA driver program that knows nothing of Penstock, for bench/faults.py:
 * 64 MiB of managed memory that go to and fro in a known way.
 *
 *   cc -O1 -o faults_probe faults_probe.c -ldl        (no CUDA needed to build)
 *   ./faults_probe [wait]      wait: print a line and go on when one comes in on stdin
 *
 * Prints one JSON line: where the memory is, and for each step how many times
 * each half and quarter of it must have moved each way.
 *
 *   1 the CPU writes all of it                 nothing moves
 *   2 a kernel touches every page              64 MiB to the GPU, by faults
 *   3 the CPU reads the first half             32 MiB to the host, by CPU faults
 *   4 the kernel touches the first half        32 MiB to the GPU, by faults
 *   5 the last quarter is prefetched away      16 MiB to the host, by request
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOTAL (64u << 20)
#define PAGE 4096u

static void *lib;

static void fail(const char *what, int rc) {
    fprintf(stderr, "faults_probe: %s failed (%d)\n", what, rc);
    exit(1);
}

static void *find(const char *name) {
    void *p = dlsym(lib, name);
    if (!p) fail(name, -1);
    return p;
}

#define CU(name, types, ...)                                  \
    do {                                                      \
        int rc_ = ((int(*) types)find(#name))(__VA_ARGS__);   \
        if (rc_) fail(#name, rc_);                            \
    } while (0)

/* One thread a page adds 1 to the page's first word. */
static const char ptx_body[] =
    ".address_size 64\n"
    ".visible .entry touch_pages(.param .u64 base, .param .u32 pages)\n"
    "{\n"
    "  .reg .pred %p<2>;\n"
    "  .reg .b32 %r<7>;\n"
    "  .reg .b64 %d<4>;\n"
    "  ld.param.u64 %d1, [base];\n"
    "  ld.param.u32 %r1, [pages];\n"
    "  mov.u32 %r2, %ctaid.x;\n"
    "  mov.u32 %r3, %ntid.x;\n"
    "  mov.u32 %r4, %tid.x;\n"
    "  mad.lo.s32 %r5, %r2, %r3, %r4;\n"
    "  setp.ge.u32 %p1, %r5, %r1;\n"
    "  @%p1 bra done;\n"
    "  mul.wide.u32 %d2, %r5, 4096;\n"
    "  add.s64 %d3, %d1, %d2;\n"
    "  ld.global.u32 %r6, [%d3];\n"
    "  add.s32 %r6, %r6, 1;\n"
    "  st.global.u32 [%d3], %r6;\n"
    "done:\n"
    "  ret;\n"
    "}\n";

static void load(void **module) {
    static const char *const heads[] = {".version 7.0\n.target sm_80\n", ".version 6.0\n.target sm_60\n", ".version 8.0\n.target sm_90\n"};
    int rc = 0;
    for (unsigned i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        char text[2048];
        snprintf(text, sizeof text, "%s%s", heads[i], ptx_body);
        rc = ((int (*)(void **, const void *))find("cuModuleLoadData"))(module, text);
        if (!rc) return;
    }
    fail("cuModuleLoadData", rc);
}

static void touch(void *function, uint64_t base, uint32_t pages) {
    void *params[] = {&base, &pages};
    CU(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), function, (pages + 127) / 128, 1,
       1, 128, 1, 1, 0, NULL, params, NULL);
    CU(cuCtxSynchronize, (void));
}

int main(int argc, char **argv) {
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "faults_probe: %s\n", dlerror());
        return 1;
    }
    int device;
    void *context, *module, *function;
    uint64_t base;
    CU(cuInit, (unsigned), 0);
    CU(cuDeviceGet, (int *, int), &device, 0);
    CU(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
    CU(cuCtxSetCurrent, (void *), context);
    size_t available, total;
    CU(cuMemGetInfo_v2, (size_t *, size_t *), &available, &total);
    if (available < (1ull << 30)) {
        fprintf(stderr, "faults_probe: less than 1 GiB free on the card: nothing is tried\n");
        return 2;
    }
    load(&module);
    CU(cuModuleGetFunction, (void **, void *, const char *), &function, module, "touch_pages");
    CU(cuMemAllocManaged, (uint64_t *, size_t, unsigned), &base, TOTAL, 1);
    if (argc > 1 && !strcmp(argv[1], "wait")) {
        printf("ready %d\n", (int)getpid());
        fflush(stdout);
        char line[16];
        if (!fgets(line, sizeof line, stdin)) return 1;
    }
    volatile uint32_t *word = (volatile uint32_t *)(uintptr_t)base;
    for (uint32_t i = 0; i < TOTAL / 4; i++) word[i] = i;
    touch(function, base, TOTAL / PAGE);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < TOTAL / 2; i += PAGE) sum += word[i / 4];
    touch(function, base, TOTAL / 2 / PAGE);
    /* The unversioned symbol keeps its signature: a device, or -1 for the host. */
    CU(cuMemPrefetchAsync, (uint64_t, size_t, int, void *), base + TOTAL / 4 * 3, TOTAL / 4, -1, NULL);
    CU(cuCtxSynchronize, (void));
    uint32_t want = 0;
    for (uint32_t i = 0; i < TOTAL / 2; i += PAGE) want += i / 4 + 1;
    printf("{\"base\": %llu, \"bytes\": %u, \"right\": %s, \"pid\": %d}\n", (unsigned long long)base, TOTAL, sum == want ? "true" : "false", (int)getpid());
    fflush(stdout);
    CU(cuMemFree_v2, (uint64_t), base);
    return 0;
}
