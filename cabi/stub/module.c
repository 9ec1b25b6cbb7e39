/* Modules, libraries, functions and launches. */
#define _GNU_SOURCE
#include "base.h"
#include "contexts.h"
#include "kernels.h"
#include "streams.h"
#include "work.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- modules and libraries: any image has every kernel ---- */

typedef struct owner {
    function *functions;
} owner;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static function *spare; /* the handles of unloaded functions, given out again first: the driver may do the same */

static CUresult get_function(owner *o, const char *name, uint32_t magic, void *out) {
    READY();
    const kernel_def *d = stub_kernel(name);
    if (!d) return CUDA_ERROR_NOT_FOUND;
    pthread_mutex_lock(&mu);
    function *f = o->functions;
    while (f && !(f->def == d && f->magic == magic)) f = f->next;
    if (!f) {
        if (spare) {
            f = spare;
            spare = f->next;
        } else {
            f = calloc(1, sizeof *f);
        }
        *f = (function){.magic = magic, .def = d, .owner = o, .next = o->functions};
        o->functions = f;
    }
    pthread_mutex_unlock(&mu);
    *(void **)out = f;
    return CUDA_SUCCESS;
}

static CUresult load(void *out) {
    CURRENT();
    if (stub_should_fail("cuModuleLoad")) return 218; /* CUDA_ERROR_INVALID_PTX */
    *(void **)out = calloc(1, sizeof(owner));
    return CUDA_SUCCESS;
}

static CUresult unload(owner *o) {
    CURRENT();
    if (!o) return CUDA_ERROR_INVALID_HANDLE;
    cuCtxSynchronize();
    pthread_mutex_lock(&mu);
    while (o->functions) {
        function *f = o->functions;
        o->functions = f->next;
        f->magic = 0;
        f->next = spare;
        spare = f;
    }
    pthread_mutex_unlock(&mu);
    free(o);
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *m, const void *image) { return (void)image, load(m); }
CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, void *options, void **values) { return (void)image, (void)n, (void)options, (void)values, load(m); }
CUresult cuModuleLoad(CUmodule *m, const char *file) { return (void)file, load(m); }
CUresult cuModuleUnload(CUmodule m) { return unload((owner *)m); }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { return get_function((owner *)m, name, FUNCTION_MAGIC, f); }
CUresult cuLibraryLoadData(CUlibrary *l, const void *code, void *jo, void **jv, unsigned nj, void *lo, void **lv, unsigned nl) { return (void)code, (void)jo, (void)jv, (void)nj, (void)lo, (void)lv, (void)nl, load(l); }
CUresult cuLibraryUnload(CUlibrary l) { return unload((owner *)l); }
CUresult cuLibraryGetKernel(CUkernel *k, CUlibrary l, const char *name) { return get_function((owner *)l, name, KERNEL_MAGIC, k); }
CUresult cuKernelGetFunction(CUfunction *f, CUkernel k) {
    function *kernel = (function *)k;
    if (!k || kernel->magic != KERNEL_MAGIC) return CUDA_ERROR_INVALID_HANDLE;
    return get_function(kernel->owner, kernel->def->name, FUNCTION_MAGIC, f);
}

static CUresult param_info(void *h, uint32_t magic, size_t i, size_t *offset, size_t *size) {
    READY();
    COUNT(N_PARAM_QUERIES, 1);
    function *f = h;
    if (!f || f->magic != magic) return CUDA_ERROR_INVALID_HANDLE;
    if (f->def->opaque) return CUDA_ERROR_NOT_SUPPORTED;
    if (i == 0) usleep((useconds_t)stub_env_bytes("STUB_LOOKUP_US", 0));
    if (i >= f->def->nparams) return CUDA_ERROR_INVALID_VALUE;
    *offset = f->def->offsets[i];
    if (size) *size = f->def->sizes[i];
    return CUDA_SUCCESS;
}
CUresult cuFuncGetParamInfo(CUfunction f, size_t i, size_t *offset, size_t *size) { return param_info(f, FUNCTION_MAGIC, i, offset, size); }
CUresult cuKernelGetParamInfo(CUkernel k, size_t i, size_t *offset, size_t *size) { return param_info(k, KERNEL_MAGIC, i, offset, size); }

static CUresult get_name(const char **name, void *h, uint32_t magic) {
    READY();
    function *f = h;
    if (!f || f->magic != magic) return CUDA_ERROR_INVALID_HANDLE;
    *name = f->def->name;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetName(const char **name, CUfunction f) { return get_name(name, f, FUNCTION_MAGIC); }
CUresult cuKernelGetName(const char **name, CUkernel k) { return get_name(name, k, KERNEL_MAGIC); }
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f) {
    READY();
    *value = attribute == 0 ? 1024 : 0; /* threads per block */
    return ((function *)f)->magic == FUNCTION_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- launches ---- */

static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared, int cooperative, CUstream h, int ptsz, void **params, void **extra) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    if (stub_should_fail("cuLaunchKernel")) return CUDA_ERROR_OUT_OF_MEMORY;
    work w;
    CUresult rc = stub_launch_work(&w, f, grid, block, shared, cooperative, params, extra);
    if (rc != CUDA_SUCCESS) return rc;
    rc = stub_submit(s, &w);
    stub_free_work(&w);
    return rc;
}

#define DIMS unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define GRID (const unsigned[]){gx, gy, gz}
#define BLOCK (const unsigned[]){bx, by, bz}
CUresult cuLaunchKernel(CUfunction f, DIMS, CUstream s, void **p, void **e) { return launch(f, GRID, BLOCK, shared, 0, s, 0, p, e); }
CUresult cuLaunchKernel_ptsz(CUfunction f, DIMS, CUstream s, void **p, void **e) { return launch(f, GRID, BLOCK, shared, 0, s, 1, p, e); }
CUresult cuLaunchCooperativeKernel(CUfunction f, DIMS, CUstream s, void **p) { return launch(f, GRID, BLOCK, shared, 1, s, 0, p, NULL); }
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, DIMS, CUstream s, void **p) { return launch(f, GRID, BLOCK, shared, 1, s, 1, p, NULL); }

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction f, void **p, void **e, int ptsz) {
    int cooperative = 0;
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = c->attrs[i].value.cooperative;
    return launch(f, (const unsigned[]){c->gridDimX, c->gridDimY, c->gridDimZ}, (const unsigned[]){c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes, cooperative, c->hStream, ptsz, p, e);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **p, void **e) { return launch_ex(c, f, p, e, 0); }
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **p, void **e) { return launch_ex(c, f, p, e, 1); }

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags) {
    (void)flags;
    for (unsigned i = 0; i < n; i++) {
        const CUDA_LAUNCH_PARAMS *l = &list[i];
        CUresult rc = launch(l->function, (const unsigned[]){l->gridDimX, l->gridDimY, l->gridDimZ}, (const unsigned[]){l->blockDimX, l->blockDimY, l->blockDimZ}, l->sharedMemBytes, 1, l->hStream, 0, l->kernelParams, NULL);
        if (rc != CUDA_SUCCESS) return rc;
    }
    return CUDA_SUCCESS;
}

static CUresult host_func(CUstream h, void (*fn)(void *), void *arg, int ptsz) {
    CURRENT();
    stream *s = stub_stream(h, ptsz);
    if (!s) return CUDA_ERROR_INVALID_HANDLE;
    work w = {.type = CU_GRAPH_NODE_TYPE_HOST, .host = {fn, arg}};
    return stub_submit(s, &w);
}
CUresult cuLaunchHostFunc(CUstream s, void (*fn)(void *), void *arg) { return host_func(s, fn, arg, 0); }
CUresult cuLaunchHostFunc_ptsz(CUstream s, void (*fn)(void *), void *arg) { return host_func(s, fn, arg, 1); }
