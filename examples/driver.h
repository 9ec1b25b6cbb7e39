/* The few functions of the CUDA driver that the examples in C call, so that they build without the CUDA toolkit. */
#ifndef EXAMPLES_DRIVER_H
#define EXAMPLES_DRIVER_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared_bytes, void *stream, void **parameters, void **extra);
int cuMemAllocManaged(uint64_t *memory, size_t bytes, unsigned flags);
int cuMemFree_v2(uint64_t memory);
int cuMemsetD32_v2(uint64_t memory, unsigned value, size_t words);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);

/* Each call of the driver: 0, or the program ends. */
#define CU(call)                                                \
    do {                                                        \
        int error_ = (call);                                    \
        if (error_) {                                           \
            fprintf(stderr, "%s: CUDA error %d\n", #call, error_); \
            exit(1);                                            \
        }                                                       \
    } while (0)

/* A kernel as text, which the driver compiles: thread i adds a number to word i. For cards from the A100 on. */
static const char touch_add_text[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry touch_add(.param .u64 memory, .param .u64 words, .param .u32 added)\n"
    "{\n"
    "  .reg .pred %p;\n"
    "  .reg .b32 %r<5>;\n"
    "  .reg .b64 %d<5>;\n"
    "  mov.u32 %r1, %ctaid.x;\n"
    "  mov.u32 %r2, %ntid.x;\n"
    "  mov.u32 %r3, %tid.x;\n"
    "  mad.lo.u32 %r1, %r1, %r2, %r3;\n"
    "  cvt.u64.u32 %d1, %r1;\n"
    "  ld.param.u64 %d2, [words];\n"
    "  setp.ge.u64 %p, %d1, %d2;\n"
    "  @%p bra done;\n"
    "  ld.param.u64 %d3, [memory];\n"
    "  shl.b64 %d1, %d1, 2;\n"
    "  add.s64 %d3, %d3, %d1;\n"
    "  ld.param.u32 %r4, [added];\n"
    "  ld.global.u32 %r2, [%d3];\n"
    "  add.s32 %r2, %r2, %r4;\n"
    "  st.global.u32 [%d3], %r2;\n"
    "done:\n"
    "  ret;\n"
    "}\n";

/* Gets the device ready, and the kernel. */
static inline void *start(void) {
    int device;
    void *context, *module, *kernel;
    CU(cuInit(0));
    CU(cuDeviceGet(&device, 0));
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
    CU(cuModuleLoadData(&module, touch_add_text));
    CU(cuModuleGetFunction(&kernel, module, "touch_add"));
    return kernel;
}

/* Has the GPU add to each word of a piece of memory. The launch returns at once. */
static inline void touch_add(void *kernel, uint64_t memory, uint64_t words, uint32_t added) {
    void *parameters[] = {&memory, &words, &added};
    CU(cuLaunchKernel(kernel, (unsigned)((words + 255) / 256), 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
}
#endif
