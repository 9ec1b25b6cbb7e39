/* Links the runtime; loaded with RTLD_LOCAL, so that the runtime is in its own scope only. */
#include <stddef.h>
int cudaGetDriverEntryPoint(const char *, void **, unsigned long long, int *);
void *user_resolve(void) {
    void *p = NULL;
    int status;
    return cudaGetDriverEntryPoint("cuLaunchKernel", &p, 0, &status) == 0 ? p : NULL;
}
