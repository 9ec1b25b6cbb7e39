/*
 * A library that is handed a pointer and launches on its own, with a module of its
 * own: -DLINKED by a symbol of libcuda, else by what cuGetProcAddress gives.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*launch_fn)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

#ifdef LINKED
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static launch_fn find(void *cuda) { return (void)cuda, cuLaunchKernel; }
#else
static launch_fn find(void *cuda) {
    launch_fn f = NULL;
    int status, (*get)(const char *, launch_fn *, int, uint64_t, int *) = (int (*)(const char *, launch_fn *, int, uint64_t, int *))dlsym(cuda, "cuGetProcAddress_v2");
    return get && !get("cuLaunchKernel", &f, 12000, 0, &status) ? f : NULL;
}
#endif

int library_add(void *p, unsigned long words, unsigned inc, void *stream) {
    static void *f;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *module;
    if (!f) {
        int (*load)(void **, const void *) = (int (*)(void **, const void *))dlsym(cuda, "cuModuleLoadData");
        int (*get)(void **, void *, const char *) = (int (*)(void **, void *, const char *))dlsym(cuda, "cuModuleGetFunction");
        if (load(&module, "image") || get(&f, module, "touch_add")) return 500;
    }
    launch_fn launch = find(cuda);
    return launch ? launch(f, 1, 1, 1, 32, 1, 1, 0, stream, (void *[]){&p, &words, &inc}, NULL) : 500;
}
