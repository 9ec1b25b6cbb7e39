/*
 * A CUDA program in C that knows nothing of Penstock, and faults. Needs a GPU to show faults; no CUDA toolkit.
 *
 *   gcc -O1 -o faults examples/faults.c -l:libcuda.so.1
 *   penstock faults record -- ./faults
 *   penstock faults explain faults.pstrace
 *
 * Its managed memory goes to and fro: the CPU writes it, the GPU faults for it, the CPU takes half of it back.
 */
#include "driver.h"

#define WORDS (16ul << 20) /* 64 MiB */

int main(void) {
    void *kernel = start();
    uint64_t memory;
    CU(cuMemAllocManaged(&memory, WORDS * 4, 1));
    volatile uint32_t *word = (volatile uint32_t *)memory; /* one address for the CPU and the GPU */

    for (uint64_t i = 0; i < WORDS; i++) word[i] = (uint32_t)i;
    for (int step = 0; step < 3; step++) {
        touch_add(kernel, memory, WORDS, 1); /* faults for every page that is not there */
        CU(cuCtxSynchronize());
        for (uint64_t i = 0; i < WORDS / 2; i++) word[i] += 1; /* the CPU takes the first half back */
    }

    uint64_t wrong = 0;
    for (uint64_t i = 0; i < WORDS; i++) wrong += word[i] != i + (i < WORDS / 2 ? 6 : 3);
    printf("%llu words are wrong\n", (unsigned long long)wrong);
    CU(cuMemFree_v2(memory));
    return wrong != 0;
}
