/*
 * Enough of the CUDA runtime, preloaded, that PyTorch's allocator calls run
 * without a GPU: one device, no streams. Only what the allocator path asks for.
 */
int cudaGetDevice(int *device) {
    *device = 0;
    return 0;
}
int cudaGetDeviceCount(int *count) {
    *count = 1;
    return 0;
}
int cudaSetDevice(int device) {
    (void)device;
    return 0;
}
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
}
