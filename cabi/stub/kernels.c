/* The builtin kernels, and those that are registered. */
#define _GNU_SOURCE
#include "kernels.h"
#include "own.h"
#include "texture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* As PyTorch's elementwise kernels are: (n, functor, addresses of the output and of two inputs). The functor is a factor and, in its
 * upper half, how many words the second input has, 0 for as many as the others. */
static void k_elementwise(const stub_launch *l) {
    uint64_t n = STUB_PARAM(l, uint32_t, 0), functor = STUB_PARAM(l, uint64_t, 1), period = functor >> 32 ? functor >> 32 : n;
    const uint64_t *p = &STUB_PARAM(l, uint64_t, 2);
    if (stub_touch(p[0], n * 4) || stub_touch(p[1], n * 4) || stub_touch(p[2], period * 4)) return;
    const uint32_t *a = (const uint32_t *)(uintptr_t)p[1], *b = (const uint32_t *)(uintptr_t)p[2];
    for (uint64_t i = 0; i < n; i++) ((uint32_t *)(uintptr_t)p[0])[i] = (a[i] + b[i % period]) * (uint32_t)functor;
}

/* As a matrix library's kernels are, with all in one parameter: out = 3 a + b. It counts in a workspace that has to be zero, and leaves it
 * as it is then; with `scribbles` it adds to b as well. */
typedef struct gemm {
    uint64_t out, a, b, workspace;
    uint32_t n, scribbles;
} gemm;

static void k_gemm(const stub_launch *l) {
    const gemm *g = &STUB_PARAM(l, gemm, 0);
    if (stub_touch(g->out, g->n * 4) || stub_touch(g->a, g->n * 4) || stub_touch(g->b, g->n * 4) || stub_touch(g->workspace, 4)) return;
    uint32_t *out = (uint32_t *)(uintptr_t)g->out, *b = (uint32_t *)(uintptr_t)g->b, *count = (uint32_t *)(uintptr_t)g->workspace;
    const uint32_t *a = (const uint32_t *)(uintptr_t)g->a;
    for (uint32_t i = 0; i < g->n; i++) out[i] = 3 * a[i] + b[i] + *count;
    *count += 1;
    for (uint32_t i = 0; g->scribbles && i < g->n; i++) b[i] += 1;
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
    register_kernel("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_3StuESt5arrayIPcLm3EEEEviT0_T1_", k_elementwise, NULL, 3, (const size_t[]){4, 8, 24});
    register_kernel("stub_gemm", k_gemm, NULL, 1, (const size_t[]){sizeof(gemm)});
    register_kernel("multi_add", k_multi_add, NULL, 1, (const size_t[]){sizeof(multi)});
    register_kernel("spin", k_spin, NULL, 1, (const size_t[]){8});
    register_kernel("slow_add", k_slow_add, NULL, 4, (const size_t[]){8, 8, 4, 8});
    register_kernel("table_add", k_table_add, NULL, 4, (const size_t[]){8, 8, 8, 4});
    register_kernel("texture_add", k_texture_add, NULL, 3, (const size_t[]){8, 8, 8});
    register_kernel("make_table", k_make_table, NULL, 4, (const size_t[]){8, 8, 8, 8});
    stub_register_own_kernels(register_kernel);
}

const kernel_def *stub_kernel(const char *name) {
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
    stub_kernel("");
    register_kernel(name, fn, user, nparams, sizes);
}
