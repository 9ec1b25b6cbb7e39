/* Modules, libraries, functions, the builtin kernels and launches. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the builtin kernels ---- */

static void k_empty(const stub_launch *l) { (void)l; }

static void add(uint64_t p, uint64_t n, uint32_t inc) {
    if (stub_touch(p, n * 4)) return;
    uint32_t *v = (uint32_t *)(uintptr_t)p;
    for (uint64_t i = 0; i < n; i++) v[i] += inc;
}

static void k_touch_add(const stub_launch *l) { add(STUB_PARAM(l, uint64_t, 0), STUB_PARAM(l, uint64_t, 1), STUB_PARAM(l, uint32_t, 2)); }

static void k_vec_add(const stub_launch *l) {
    uint64_t n = STUB_PARAM(l, uint64_t, 3);
    uint64_t d = STUB_PARAM(l, uint64_t, 0), a = STUB_PARAM(l, uint64_t, 1), b = STUB_PARAM(l, uint64_t, 2);
    if (stub_touch(d, n * 4) || stub_touch(a, n * 4) || stub_touch(b, n * 4)) return;
    for (uint64_t i = 0; i < n; i++) ((uint32_t *)(uintptr_t)d)[i] = ((uint32_t *)(uintptr_t)a)[i] + ((uint32_t *)(uintptr_t)b)[i];
}

typedef struct multi {
    uint32_t count, inc;
    uint64_t p[48], n[48];
} multi;

static void k_multi_add(const stub_launch *l) {
    const multi *m = &STUB_PARAM(l, multi, 0);
    for (uint32_t i = 0; i < m->count && i < 48; i++) add(m->p[i], m->n[i], m->inc);
}

/* As touch_add, with a rest in the middle: memory that moves meanwhile shows. */
static void k_slow_add(const stub_launch *l) {
    uint64_t p = STUB_PARAM(l, uint64_t, 0), n = STUB_PARAM(l, uint64_t, 1), half = n / 2;
    uint32_t inc = STUB_PARAM(l, uint32_t, 2);
    add(p, half, inc);
    usleep((useconds_t)STUB_PARAM(l, uint64_t, 3));
    add(p + half * 4, n - half, inc);
}

/* Pointers in memory: what a batched GEMM reads, and what the kernel before a grouped one writes. */
static void k_table_add(const stub_launch *l) {
    uint64_t table = STUB_PARAM(l, uint64_t, 0), count = STUB_PARAM(l, uint64_t, 1);
    if (stub_touch(table, count * 8)) return;
    for (uint64_t i = 0; i < count; i++) add(((uint64_t *)(uintptr_t)table)[i], STUB_PARAM(l, uint64_t, 2), STUB_PARAM(l, uint32_t, 3));
}

static void k_make_table(const stub_launch *l) {
    uint64_t table = STUB_PARAM(l, uint64_t, 0), count = STUB_PARAM(l, uint64_t, 1);
    if (stub_touch(table, count * 8)) return;
    for (uint64_t i = 0; i < count; i++) ((uint64_t *)(uintptr_t)table)[i] = STUB_PARAM(l, uint64_t, 2) + i * STUB_PARAM(l, uint64_t, 3);
}

static void k_texture_add(const stub_launch *l) {
    uint64_t from = stub_texture_address(STUB_PARAM(l, uint64_t, 0)), to = STUB_PARAM(l, uint64_t, 1), n = STUB_PARAM(l, uint64_t, 2);
    if (stub_touch(from, n * 4) || stub_touch(to, n * 4)) return;
    for (uint64_t i = 0; i < n; i++) ((uint32_t *)(uintptr_t)to)[i] += ((uint32_t *)(uintptr_t)from)[i];
}

static void k_spin(const stub_launch *l) { usleep((useconds_t)STUB_PARAM(l, uint64_t, 0)); }

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static kernel_def **defs;
static size_t ndefs;

static kernel_def *register_kernel(const char *name, stub_kernel_fn fn, void *user, unsigned nparams, const size_t *sizes) {
    kernel_def *d = calloc(1, sizeof *d);
    *d = (kernel_def){.name = strdup(name), .fn = fn, .user = user, .nparams = nparams};
    d->sizes = calloc(nparams + 1, sizeof *d->sizes);
    d->offsets = calloc(nparams + 1, sizeof *d->offsets);
    for (unsigned i = 0; i < nparams; i++) {
        size_t align = sizes[i] & -sizes[i];
        if (align > 8) align = 8;
        d->bytes = (d->bytes + align - 1) & ~(align - 1);
        d->sizes[i] = sizes[i];
        d->offsets[i] = d->bytes;
        d->bytes += sizes[i];
    }
    pthread_mutex_lock(&mu);
    defs = realloc(defs, (ndefs + 1) * sizeof *defs);
    defs[ndefs++] = d;
    pthread_mutex_unlock(&mu);
    return d;
}

static void builtins(void) {
    register_kernel("empty", k_empty, NULL, 0, NULL);
    register_kernel("touch_add", k_touch_add, NULL, 3, (const size_t[]){8, 8, 4});
    register_kernel("opaque_add", k_touch_add, NULL, 3, (const size_t[]){8, 8, 4})->opaque = true;
    register_kernel("vec_add", k_vec_add, NULL, 4, (const size_t[]){8, 8, 8, 8});
    register_kernel("multi_add", k_multi_add, NULL, 1, (const size_t[]){sizeof(multi)});
    register_kernel("spin", k_spin, NULL, 1, (const size_t[]){8});
    register_kernel("slow_add", k_slow_add, NULL, 4, (const size_t[]){8, 8, 4, 8});
    register_kernel("table_add", k_table_add, NULL, 4, (const size_t[]){8, 8, 8, 4});
    register_kernel("texture_add", k_texture_add, NULL, 3, (const size_t[]){8, 8, 8});
    register_kernel("make_table", k_make_table, NULL, 4, (const size_t[]){8, 8, 8, 8});
    stub_register_own_kernels(register_kernel);
}

static const kernel_def *find_def(const char *name) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, builtins);
    const kernel_def *d = NULL;
    pthread_mutex_lock(&mu);
    for (size_t i = ndefs; i-- > 0 && !d;) /* a later registration hides an earlier one */
        if (!strcmp(defs[i]->name, name)) d = defs[i];
    pthread_mutex_unlock(&mu);
    return d;
}

void stub_register_kernel(const char *name, stub_kernel_fn fn, void *user, unsigned nparams, const size_t *sizes) {
    find_def("");
    register_kernel(name, fn, user, nparams, sizes);
}

/* ---- modules and libraries: any image has every kernel ---- */

typedef struct owner {
    function *functions;
} owner;
static function *spare; /* the handles of unloaded functions, given out again first: the driver may do the same */

static CUresult get_function(owner *o, const char *name, uint32_t magic, void *out) {
    READY();
    const kernel_def *d = find_def(name);
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
    CUresult cuCtxSynchronize(void);
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

CUresult stub_launch_work(work *w, CUfunction h, const unsigned grid[3], const unsigned block[3], unsigned shared, int cooperative, void **params, void **extra) {
    function *f = (function *)h;
    if (!f || (f->magic != FUNCTION_MAGIC && f->magic != KERNEL_MAGIC)) return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < 3; i++)
        if (!grid[i] || !block[i]) return CUDA_ERROR_INVALID_VALUE;
    const kernel_def *d = f->def;
    *w = (work){.type = CU_GRAPH_NODE_TYPE_KERNEL};
    launch_work *l = &w->launch;
    *l = (launch_work){.f = f, .shared = shared, .cooperative = cooperative};
    memcpy(l->grid, grid, sizeof l->grid);
    memcpy(l->block, block, sizeof l->block);
    l->params = calloc(1, d->bytes + 1);
    l->param_ptrs = calloc(d->nparams + 1, sizeof *l->param_ptrs);
    for (unsigned i = 0; i < d->nparams; i++) l->param_ptrs[i] = l->params + d->offsets[i];
    CUresult rc = CUDA_SUCCESS;
    if (params) {
        for (unsigned i = 0; i < d->nparams; i++) memcpy(l->param_ptrs[i], params[i], d->sizes[i]);
    } else if (extra) {
        const void *buffer = NULL;
        size_t bytes = 0;
        for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
            if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = extra[1];
            if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *(size_t *)extra[1];
        }
        if (bytes < d->bytes || !buffer)
            rc = CUDA_ERROR_INVALID_VALUE;
        else
            memcpy(l->params, buffer, d->bytes);
    } else if (d->nparams) {
        rc = CUDA_ERROR_INVALID_VALUE;
    }
    if (rc != CUDA_SUCCESS) stub_free_work(w);
    return rc;
}

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

/* ---- work ---- */

void stub_free_work(work *w) {
    if (w->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) free(w->memops.ops), w->type = CU_GRAPH_NODE_TYPE_EMPTY;
    if (w->type != CU_GRAPH_NODE_TYPE_KERNEL) return;
    free(w->launch.params);
    free(w->launch.param_ptrs);
    w->type = CU_GRAPH_NODE_TYPE_EMPTY;
}

bool stub_copy_work(work *to, const work *from) {
    if (from->type != CU_GRAPH_NODE_TYPE_KERNEL) {
        *to = *from;
        if (from->type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) return true;
        size_t bytes = from->memops.n * sizeof *from->memops.ops;
        if (!(to->memops.ops = malloc(bytes))) return false;
        memcpy(to->memops.ops, from->memops.ops, bytes);
        return true;
    }
    const launch_work *l = &from->launch;
    return stub_launch_work(to, (CUfunction)l->f, l->grid, l->block, l->shared, l->cooperative, l->param_ptrs, NULL) == CUDA_SUCCESS;
}

CUresult stub_run_work(stream *s, const work *w) {
    switch (w->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        const launch_work *l = &w->launch;
        const kernel_def *d = l->f->def;
        stub_launch run = {.cooperative = l->cooperative, .nparams = d->nparams, .params = l->params, .offsets = d->offsets, .user = d->user};
        memcpy(run.grid, l->grid, sizeof run.grid);
        memcpy(run.block, l->block, sizeof run.block);
        COUNT(N_LAUNCHES, 1);
        stub_touched_illegal = false;
        d->fn(&run);
        return stub_touched_illegal ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: COUNT(N_COPIES, 1); return stub_copy_3d(&w->copy);
    case CU_GRAPH_NODE_TYPE_MEMSET: COUNT(N_COPIES, 1); return stub_fill(&w->fill);
    case CU_GRAPH_NODE_TYPE_HOST: w->host.fn(w->host.arg); return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH: return stub_run_graph_nodes(s, w->child);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        for (unsigned i = 0; i < w->memops.n; i++) stub_run_memop(&w->memops.ops[i]);
        return CUDA_SUCCESS;
    default: return CUDA_SUCCESS;
    }
}
