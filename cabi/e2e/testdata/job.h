/* A job that allocates through libpenstock.so: the calls, and a model of what every tensor must hold. */
#ifndef E2E_JOB_H
#define E2E_JOB_H
#include "../../hooktest/testdata/engine.h"
#include "../../penstock.h"

/* ---- libpenstock.so, loaded late ---- */

static struct {
    int (*abi_version)(void);
    int (*init)(int);
    void *(*malloc)(ssize_t, int, void *);
    void (*free)(void *, ssize_t, int, void *);
    void (*record_stream)(void *, void *);
    void (*empty_cache)(void);
    void (*reset)(void);
    int (*set_memory_fraction)(double, int);
    void (*reset_peak_stats)(void);
    int (*record)(int);
    long (*stats)(char *, size_t);
    long (*last_error)(char *, size_t);
    int (*begin_pool)(int, unsigned long long, unsigned long long);
    int (*end_pool)(int, unsigned long long, unsigned long long);
    int (*release_pool)(int, unsigned long long, unsigned long long);
    int (*retain_pool)(int, unsigned long long, unsigned long long);
    int (*pool_users)(int, unsigned long long, unsigned long long);
    void *(*malloc_in_pool)(ssize_t, int, void *, unsigned long long, unsigned long long);
    long (*pool_blocks)(int, unsigned long long, unsigned long long, struct penstock_block *, size_t);
    int (*restore_in_pool)(void *, ssize_t, int, unsigned long long, unsigned long long);
    long (*self_test)(char *, size_t);
    void (*close)(void);
} P;

/* What the hook and the engine share. */
static psk_shared *hook_shared(void) {
    psk_shared *(*f)(uint32_t) = (psk_shared * (*)(uint32_t)) dlsym(RTLD_DEFAULT, "penstock_hook_attach");
    psk_shared *s = f ? f(PSK_HOOK_ABI) : NULL;
    CHECK(s);
    return s;
}

/* E2E_FIRST says how many operations the hook has recorded before, for a job that runs for days. */
static void begin_late(void) {
    const char *first = getenv("E2E_FIRST");
    if (!first) return;
    S = hook_shared();
    CHECK_EQ(S->head, 0);
    S->head = S->tail = S->tail_seen = strtoull(first, NULL, 10);
}

/* The end of 2^32 operations has passed. */
static void end_late(void) {
    if (S) CHECK(S->head >> 32 && (uint32_t)S->head < 1u << 31);
}

static void load(void) {
    begin_late();
    void *lib = dlopen("libpenstock.so", RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name) CHECK((P.name = (__typeof__(P.name))dlsym(lib, "penstock_" #name)))
    FIND(abi_version), FIND(init), FIND(malloc), FIND(free), FIND(record_stream), FIND(empty_cache), FIND(reset);
    FIND(set_memory_fraction), FIND(reset_peak_stats), FIND(record), FIND(stats), FIND(last_error);
    FIND(begin_pool), FIND(end_pool), FIND(release_pool), FIND(self_test), FIND(close);
    FIND(retain_pool), FIND(pool_users), FIND(malloc_in_pool), FIND(pool_blocks), FIND(restore_in_pool);
    CHECK_EQ(P.abi_version(), PENSTOCK_ABI_VERSION);
}

static const char *last_error(void) {
    static char text[4096];
    CHECK(P.last_error(text, sizeof text) < (long)sizeof text);
    return text;
}

static const char *stats(void) {
    static __thread char json[8192];
    long n = P.stats(json, sizeof json);
    CHECK(n > 0 && n < (long)sizeof json);
    return json;
}

/* One number of the statistics. */
static long long stat_of(const char *json, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *p = strstr(json, quoted);
    if (!p) {
        fprintf(stderr, "no %s in %s\n", key, json);
        exit(1);
    }
    return strtoll(p + strlen(quoted), NULL, 10);
}
static long long stat_now(const char *key) { return stat_of(stats(), key); }

/* ---- the stub ---- */

static uint64_t count(const char *name) {
    static uint64_t (*f)(const char *);
    if (!f) f = (uint64_t(*)(const char *))driver("stub_count");
    return f(name);
}

static uint64_t resident(CUdeviceptr p, size_t n) {
    static uint64_t (*f)(uint64_t, size_t);
    if (!f) f = (uint64_t(*)(uint64_t, size_t))driver("stub_resident_bytes");
    return f(p, n);
}

/* Bytes of device memory that hold something, by the stub's own account. */
static long long device_bytes(void) {
    static uint64_t (*f)(void);
    if (!f) f = (uint64_t(*)(void))driver("stub_device_bytes");
    return (long long)f();
}

/* ---- launches, by several routes ---- */

enum { BY_DLSYM, BY_GETPROC, BY_EX, ROUTES };
static launch_fn launch_dlsym, launch_getproc;
static CUresult (*launch_ex)(const CUlaunchConfig *, CUfunction, void **, void **);
static CUfunction f_add, f_vec, f_spin, f_empty;

static void resolve(void) {
    start();
    launch_dlsym = (launch_fn)driver("cuLaunchKernel");
    int status;
    OK(((CUresult(*)(const char *, void **, int, uint64_t, int *))driver("cuGetProcAddress_v2"))("cuLaunchKernel", (void **)&launch_getproc, 13000, 0, &status));
    launch_ex = (CUresult(*)(const CUlaunchConfig *, CUfunction, void **, void **))driver("cuLaunchKernelEx");
    f_add = function("touch_add"), f_vec = function("vec_add"), f_spin = function("spin"), f_empty = function("empty");
    count("launches"), resident(0, 0), device_bytes(); /* threads find these resolved */
}

static void launch(int route, CUstream s, CUfunction f, void **params) {
    switch (route % ROUTES) {
    case BY_DLSYM: OK(launch_dlsym(f, 1, 1, 1, 32, 1, 1, 0, s, params, NULL)); break;
    case BY_GETPROC: OK(launch_getproc(f, 1, 1, 1, 32, 1, 1, 0, s, params, NULL)); break;
    default: {
        CUlaunchConfig c = {1, 1, 1, 32, 1, 1, 0, s, NULL, 0};
        OK(launch_ex(&c, f, params, NULL));
    }
    }
}

/* xorshift64*: the next number of a sequence, whose state is not 0. */
static uint64_t draw_from(uint64_t *state) {
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}
static uint64_t draw_below(uint64_t *state, uint64_t n) { return (draw_from(state) >> 33) % n; }

/* ---- tensors and what they must hold ---- */

typedef struct tensor {
    void *p;
    size_t bytes;
    uint32_t value; /* of every word */
    CUstream stream;
} tensor;

#define DEVICE(t) ((CUdeviceptr)(uintptr_t)(t)->p)

/* Waits that are driver calls of a thread of their own. */
static CUresult (*fill_fn)(CUdeviceptr, unsigned, size_t, CUstream);

static bool make(tensor *t, size_t bytes, CUstream s, uint32_t value) {
    if (!fill_fn) fill_fn = (CUresult(*)(CUdeviceptr, unsigned, size_t, CUstream))driver("cuMemsetD32Async");
    *t = (tensor){.p = P.malloc((ssize_t)bytes, 0, s), .bytes = bytes, .value = value, .stream = s};
    if (!t->p) return false;
    CHECK(DEVICE(t) % 512 == 0);
    OK(fill_fn(DEVICE(t), value, bytes / 4, s));
    return true;
}

static void drop(tensor *t) {
    P.free(t->p, (ssize_t)t->bytes, 0, t->stream);
    t->p = NULL;
}

static void add(int route, CUstream s, tensor *t, uint32_t inc) {
    CUdeviceptr p = DEVICE(t);
    uint64_t n = t->bytes / 4;
    launch(route, s, f_add, (void *[]){&p, &n, &inc});
    t->value += inc;
}

static void add_to(int route, CUstream s, tensor *dst, const tensor *a) {
    CUdeviceptr d = DEVICE(dst), x = DEVICE(a);
    uint64_t n = (dst->bytes < a->bytes ? dst->bytes : a->bytes) / 4;
    launch(route, s, f_vec, (void *[]){&d, &d, &x, &n});
    dst->value += a->value;
}

/* Every word, read back by a copy of the driver. */
static void check_value(const tensor *t) {
    static __thread uint32_t *back; /* kept: new memory costs a fault a page */
    static __thread size_t room;
    if (room < t->bytes) CHECK((back = realloc(back, room = t->bytes)));
    OK(CALL(cuMemcpyDtoH_v2, back, DEVICE(t), U64(t->bytes)));
    for (size_t i = 0; i < t->bytes / 4; i++) {
        if (back[i] == t->value) continue;
        fprintf(stderr, "word %zu of a tensor of %zu bytes is %#x, want %#x\n", i, t->bytes, back[i], t->value);
        exit(1);
    }
}
#endif
