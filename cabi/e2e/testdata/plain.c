/* A CUDA program that knows nothing of Penstock: managed memory, launches, frees. */
#include "../../hooktest/testdata/engine.h"

int main(void) {
    start();
    launch_fn launch = (launch_fn)driver("cuLaunchKernel");
    CUfunction add = function("touch_add");
    CUdeviceptr a, b;
    OK(CALL(cuMemAllocManaged, &a, U64(8 << 20), 1));
    OK(CALL(cuMemAllocManaged, &b, U64(4 << 20), 1));
    uint64_t words = 16;
    uint32_t one = 1;
    void *of_a[] = {&a, &words, &one}, *of_b[] = {&b, &words, &one};
    for (int i = 0; i < 20; i++) {
        OK(launch(add, 1, 1, 1, 32, 1, 1, 0, NULL, of_a, NULL));
        OK(launch(add, 1, 1, 1, 32, 1, 1, 0, NULL, of_b, NULL));
    }
    SYNC(NULL);
    OK(CALL(cuMemFree_v2, b));
    OK(launch(add, 1, 1, 1, 32, 1, 1, 0, NULL, of_a, NULL));
    SYNC(NULL);
    OK(CALL(cuMemFree_v2, a));
    puts("done");
    return 0;
}
