/*
 * The C interface: an allocator that gives out more memory than the budget. Needs a GPU; no CUDA toolkit.
 *
 *   gcc -O1 -I cabi -o allocator examples/allocator.c -L lib -lpenstock -l:libcuda.so.1 -Wl,-rpath,$PWD/lib
 *   penstock run --engine explicit --budget 64MiB --host-budget 512MiB -- ./allocator
 *
 * The kernels are ordinary ones. The launch hook, which `penstock run` preloads, sees what each of them touches.
 */
#include "driver.h"
#include "penstock.h"

#define TENSORS 32
#define WORDS (2ul << 20) /* 8 MiB each, 256 MiB in all */

int main(void) {
    void *kernel = start(), *tensor[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        tensor[i] = penstock_malloc(WORDS * 4, 0, NULL); /* device 0, the default stream */
        if (!tensor[i]) {
            char why[1024];
            penstock_last_error(why, sizeof why);
            fprintf(stderr, "tensor %d: %s\n", i, why);
            return 1;
        }
        CU(cuMemsetD32_v2((uint64_t)tensor[i], (unsigned)i, WORDS));
    }

    for (int step = 0; step < 4; step++) /* the same again and again: what comes next is foreseen from the second on */
        for (int i = 0; i < TENSORS; i++) touch_add(kernel, (uint64_t)tensor[i], WORDS, 1);
    CU(cuCtxSynchronize());

    uint64_t wrong = 0;
    uint32_t *copy = malloc(WORDS * 4);
    for (int i = 0; i < TENSORS; i++) {
        CU(cuMemcpyDtoH_v2(copy, (uint64_t)tensor[i], WORDS * 4));
        for (uint64_t w = 0; w < WORDS; w++) wrong += copy[w] != (uint32_t)i + 4;
        penstock_free(tensor[i], WORDS * 4, 0, NULL);
    }
    free(copy);
    printf("%llu words are wrong\n", (unsigned long long)wrong);

    static char statistics[16384];
    penstock_stats(statistics, sizeof statistics);
    puts(statistics);
    penstock_close(); /* prints the verdict */
    return wrong != 0;
}
