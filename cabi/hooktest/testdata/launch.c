/* What a launch names: every launch call, every way to pass parameters, per-thread streams, many slots. */
#include "engine.h"

typedef struct multi {
    uint32_t count, inc;
    uint64_t p[48], n[48];
} multi;

static CUdeviceptr base;
enum { SLOTS = 100 };
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }

static void calls(void) {
    CUfunction f = function("vec_add");
    CUstream s = new_stream();
    CUdeviceptr d = at(1) + 4096, a = at(2), b = at(3) + 2 * MiB - 4 * 64;
    uint64_t n = 64;
    void *params[] = {&d, &a, &b, &n};
    CUlaunchAttribute attr = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value = {.cooperative = 1}};
    CUlaunchConfig config = {2, 1, 1, 32, 1, 1, 0, s, NULL, 0}, coop = {2, 1, 1, 32, 1, 1, 0, s, &attr, 1}, nullstream = {2, 1, 1, 32, 1, 1, 0, NULL, NULL, 0};

    OK(CALL(cuLaunchKernel, f, 2, 1, 1, 32, 1, 1, 0, s, params, NULL));
    record *r = EXPECT(PSK_REC_LAUNCH, 1, 2, 3);
    uint32_t id = r->id, grid = r->grid;
    CHECK(!strcmp(func_name(id), "vec_add"));
    CHECK_EQ(S->funcs[id].nparams, 4);
    CHECK_EQ(S->funcs[id].handle, (uintptr_t)f);
    CHECK(r->stream != 0 && S->streams[r->stream] == (uintptr_t)s);
    unsigned index = r->stream;
    CHECK_EQ(r->flags, 0);

    OK(CALL(cuLaunchKernelEx, &config, f, params, NULL));
    r = EXPECT(PSK_REC_LAUNCH, 1, 2, 3);
    CHECK(r->id == id && r->grid == grid && r->stream == index && r->flags == 0);
    config.gridDimX = 3; /* another grid, another hash */
    OK(CALL(cuLaunchKernelEx, &config, f, params, NULL));
    CHECK(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->grid != grid);
    OK(CALL(cuLaunchKernelEx, &coop, f, params, NULL));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->flags, PSK_FLAG_COOPERATIVE);
    OK(CALL(cuLaunchCooperativeKernel, f, 2, 1, 1, 32, 1, 1, 0, s, params));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->flags, PSK_FLAG_COOPERATIVE);
    CUdeviceptr d2 = at(4);
    void *params2[] = {&d2, &a, &b, &n};
    CUDA_LAUNCH_PARAMS list[2] = {{f, 2, 1, 1, 32, 1, 1, 0, s, params}, {f, 2, 1, 1, 32, 1, 1, 0, NULL, params2}};
    OK(CALL(cuLaunchCooperativeKernelMultiDevice, list, 2, 0));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->stream, index);
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 4, 2, 3)->stream, 0);
    SYNC(s);

    /* Stream 0 of the per-thread calls is the thread's own; 1 and 2 name either kind explicitly. */
    OK(CALL(cuLaunchKernel_ptsz, f, 2, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    unsigned own_index = EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->stream;
    CHECK(own_index != 0 && own_index != index && S->streams[own_index] == 2);
    OK(CALL(cuLaunchKernelEx_ptsz, &nullstream, f, params, NULL));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->stream, own_index);
    OK(CALL(cuLaunchCooperativeKernel_ptsz, f, 2, 1, 1, 32, 1, 1, 0, NULL, params));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->stream, own_index);
    OK(CALL(cuLaunchKernel, f, 2, 1, 1, 32, 1, 1, 0, CU_STREAM_PER_THREAD, params, NULL));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->stream, own_index);
    OK(CALL(cuLaunchKernel_ptsz, f, 2, 1, 1, 32, 1, 1, 0, CU_STREAM_LEGACY, params, NULL));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->stream, 0);
    SYNC(CU_STREAM_PER_THREAD);
    SYNC(NULL);
    CHECK_EQ(((uint64_t(*)(const char *))driver("stub_count"))("launches"), 12);
    none_left();
}

static void extra(void) {
    CUfunction f = function("touch_add");
    struct {
        uint64_t p, n;
        uint32_t inc;
    } buffer = {at(5), 10, 2};
    size_t bytes = sizeof buffer;
    void *options[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    OK(CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, options));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 5)->flags, 0);
    /* A buffer can be read even where the layout is unknown. */
    OK(CALL(cuLaunchKernel, function("opaque_add"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, options));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 5)->flags, 0);
    SYNC(NULL);
    CHECK_EQ(word_at(at(5)), 4);
    CHECK_EQ(word_at(at(5) + 9 * 4), 4);
    CHECK_EQ(word_at(at(5) + 10 * 4), 0);
}

static void opaque(void) {
    uint64_t before = S->opaque_launches;
    CUdeviceptr p = at(6);
    uint64_t n = 4;
    uint32_t inc = 9;
    void *params[] = {&p, &n, &inc};
    OK(CALL(cuLaunchKernel, function("opaque_add"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    record *r = must_take();
    CHECK_EQ(r->n, 0);
    CHECK_EQ(r->flags, PSK_FLAG_OPAQUE);
    CHECK(S->funcs[r->id].opaque && !strcmp(func_name(r->id), "opaque_add"));
    CHECK_EQ(S->opaque_launches, before + 1);
    /* Without parameters there is nothing to miss. */
    OK(CALL(cuLaunchKernel, function("empty"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    r = must_take();
    CHECK_EQ(r->n, 0);
    CHECK_EQ(r->flags, 0);
    SYNC(NULL);
}

/* A CUkernel in the place of a CUfunction. */
static void kernel(void) {
    CUlibrary lib;
    CUkernel k;
    OK(CALL(cuLibraryLoadData, &lib, "image", NULL, NULL, 0, NULL, NULL, 0));
    OK(CALL(cuLibraryGetKernel, &k, lib, "touch_add"));
    CUdeviceptr p = at(7);
    uint64_t n = 4;
    uint32_t inc = 1;
    void *params[] = {&p, &n, &inc};
    OK(CALL(cuLaunchKernel, k, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    record *r = EXPECT(PSK_REC_LAUNCH, 7);
    CHECK(!strcmp(func_name(r->id), "touch_add"));
    CHECK_EQ(r->flags, 0);
    SYNC(NULL);
    OK(CALL(cuLibraryUnload, lib));
}

/* A by-value structure of pointers, and one read of exactly its size: the page after the value is not readable. */
static void by_value(void) {
    CUfunction f = function("multi_add");
    char *page = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED && !mprotect(page + 4096, 4096, PROT_NONE));
    multi *m = (multi *)(page + 4096 - sizeof *m);
    memset(m, 0, sizeof *m);
    m->count = 40;
    m->inc = 1;
    uint32_t want[40];
    for (int i = 0; i < 40; i++) {
        m->p[i] = at(10 + i) + 128;
        m->n[i] = 4;
        want[i] = 10 + (uint32_t)i;
    }
    m->p[45] = at(12); /* unused by the kernel, named all the same: a double of a slot that is there */
    void *params[] = {m};
    OK(CALL(cuLaunchKernel, f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    record *r = must_take();
    CHECK_EQ(r->n, 40); /* an entry holds PSK_ENTRY_SLOTS: this took two */
    CHECK(!memcmp(r->slots, want, sizeof want));
    CHECK_EQ(r->seq + 2, S->head + 1);
    /* The 4-byte parameter at the very end of a page. */
    uint32_t *inc = (uint32_t *)(page + 4096 - 4);
    *inc = 1;
    CUdeviceptr p = at(8);
    uint64_t n = 1;
    void *three[] = {&p, &n, inc};
    OK(CALL(cuLaunchKernel, function("touch_add"), 1, 1, 1, 1, 1, 1, 0, NULL, three, NULL));
    EXPECT(PSK_REC_LAUNCH, 8);
    SYNC(NULL);
    for (int i = 0; i < 40; i++) CHECK_EQ(word_at(at(10 + i) + 128), 1);
}

static void no_op(const stub_launch *l) { (void)l; }

static void add_kernel(const char *name, unsigned n, const size_t *sizes) {
    ((void (*)(const char *, stub_kernel_fn, void *, unsigned, const size_t *))driver("stub_register_kernel"))(name, no_op, NULL, n, sizes);
}

/* PyTorch's concatenation: of a list by value as many addresses count as the grid has rows. The rest is what was on the stack. */
#define CAT "_ZN2at6native19CatArrayBatchedCopy%sINS1_10OpaqueTypeILj2EEEjEEvPcNS1_25CatArrInputTensorMetadataIT_T0_XT2_EXT3_EEE"

static uint32_t concatenate(const char *name, unsigned rows, uint64_t (*list)[424]) {
    uint64_t out = at(30), sizes[4] = {0, at(38), 0, 0};
    uint32_t dimension = 0, stride = 1;
    void *params[] = {&out, list, sizes, &dimension, &stride};
    OK(CALL(cuLaunchKernel, function(name), 4, rows, 1, 1, 1, 1, 0, NULL, params, NULL));
    return must_take()->n;
}

static void lists(void) {
    enum { CONTIGUOUS = 2720, STRIDED = 3392 }; /* 128 tensors with one set of strides, 64 with one each */
    char contiguous[256], strided[256], longer[256];
    snprintf(contiguous, sizeof contiguous, CAT, "_contig");
    snprintf(strided, sizeof strided, CAT, "");
    snprintf(longer, sizeof longer, CAT, "_longer");
    add_kernel(contiguous, 5, (const size_t[]){8, CONTIGUOUS, 32, 4, 4});
    add_kernel(strided, 5, (const size_t[]){8, STRIDED, 32, 4, 4});
    add_kernel(longer, 5, (const size_t[]){8, CONTIGUOUS + 8, 32, 4, 4});
    add_kernel("CatArrayBatchedCopy", 5, (const size_t[]){8, CONTIGUOUS, 32, 4, 4});
    uint64_t list[424] = {at(31), at(32), at(33), at(34)};
    list[200] = at(35), list[300] = at(36); /* where there are sizes and strides */
    CHECK_EQ(concatenate(contiguous, 2, &list), 3);
    CHECK_EQ(concatenate(strided, 3, &list), 4);
    CHECK_EQ(concatenate(contiguous, 129, &list), 8); /* not what it should be: all counts */
    CHECK_EQ(concatenate(strided, 65, &list), 8);
    CHECK_EQ(concatenate(longer, 2, &list), 8); /* of another version */
    CHECK_EQ(concatenate("CatArrayBatchedCopy", 2, &list), 8);
    list[1] = 0; /* an empty tensor */
    CHECK_EQ(concatenate(contiguous, 2, &list), 2);
    list[1] = 12345; /* no address that is known */
    CHECK_EQ(concatenate(contiguous, 2, &list), 7);
    SYNC(NULL);
}

/* PyTorch's operations on many tensors: of each list those count that the grid's blocks name. */
#define MANY "_ZN2at6native25multi_tensor_apply_kernelINS1_%sENS1_14TestFunctorIfLi4EEEJPfEEEvT_T0_DpT1_"

typedef struct metadata {
    char name[256];
    int depth, most, elements_at, index_at, index_bytes, blocks;
    size_t bytes;
} metadata;

static metadata many_of(const char *type, int depth, int most, int between, int index_bytes, int blocks, int end) {
    metadata m = {.depth = depth, .most = most, .elements_at = 8 * most * depth, .index_at = 8 * most * (depth + 1) + between, .index_bytes = index_bytes, .blocks = blocks};
    snprintf(m.name, sizeof m.name, MANY, type);
    m.bytes = (size_t)(m.index_at + blocks * (index_bytes + 4) + end + 7) / 8 * 8;
    add_kernel(m.name, 3, (const size_t[]){m.bytes, 16, 8});
    return m;
}

/* How many slots a launch names in which each of so many tensors has two blocks. The lists are full of others. */
static uint32_t apply(const metadata *m, int tensors, int tweak) {
    unsigned char *of = calloc(1, m->bytes);
    uint64_t callable[2] = {0}, rate = at(90);
    for (int d = 0; d < m->depth; d++)
        for (int t = 0; t < m->most && t < 15; t++) ((uint64_t *)(void *)of)[d * m->most + t] = at(1 + 15 * d + t);
    if (strstr(m->name, "Fused")) ((uint64_t *)(void *)of)[m->most * (m->depth + 1)] = at(91);
    int chunks = (m->index_at + m->blocks * m->index_bytes + 3) / 4 * 4;
    for (int t = 0; t < tensors; t++) *(int64_t *)(void *)(of + m->elements_at + 8 * t) = 65537 + t + (t == 0 ? 7 * 65536 : 0);
    for (int b = 0; b < 2 * tensors; b++) {
        of[m->index_at + b * m->index_bytes] = (unsigned char)(b / 2 + (b == tweak ? 5 : 0));
        /* The first tensor goes on from another launch. */
        *(int32_t *)(void *)(of + chunks + 4 * b) = b % 2 + (b < 2 ? 7 : 0) + (b == tweak - 100 ? 1 : 0);
    }
    if (tweak == 200) *(int64_t *)(void *)(of + m->elements_at + 8) += 65536;
    void *params[] = {of, callable, &rate};
    OK(CALL(cuLaunchKernel, function(m->name), 2 * (unsigned)tensors, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    free(of);
    return must_take()->n;
}

static void many(void) {
    enum { NO_TWEAK = -1 };
    const metadata plain = many_of("18TensorListMetadataILi4EEE", 4, 36, 0, 1, 320, 4);
    CHECK_EQ(apply(&plain, 3, NO_TWEAK), 4 * 3 + 1);
    CHECK_EQ(apply(&plain, 15, NO_TWEAK), 4 * 15 + 1);
    CHECK_EQ(apply(&plain, 3, 0), 4 * 15 + 1); /* the first block's tensor is not the first: all counts */
    CHECK_EQ(apply(&plain, 3, 4), 4 * 15 + 1); /* one was left out */
    CHECK_EQ(apply(&plain, 3, 103), 4 * 15 + 1); /* a chunk is another than the next */
    CHECK_EQ(apply(&plain, 3, 102), 4 * 15 + 1); /* a tensor does not begin with its first */
    CHECK_EQ(apply(&plain, 3, 200), 4 * 15 + 1); /* nor end with its last */
    const metadata one = many_of("18TensorListMetadataILi1EEE", 1, 110, 0, 1, 320, 4);
    CHECK_EQ(apply(&one, 2, NO_TWEAK), 2 + 1);
    const metadata scalars = many_of("28TensorListScalarListMetadataIfLi2EEE", 2, 64, 64 * 4, 1, 320, 0);
    CHECK_EQ(apply(&scalars, 5, NO_TWEAK), 2 * 5 + 1);
    const metadata doubles = many_of("28TensorListScalarListMetadataIdLi3ELb1EEE", 3, 336, 336 * 8, 2, 2240, 0);
    CHECK_EQ(apply(&doubles, 5, NO_TWEAK), 3 * 5 + 1);
    const metadata complexes = many_of("28TensorListScalarListMetadataIN3c107complexIfEELi2EEE", 2, 64, 64 * 8, 1, 320, 0);
    CHECK_EQ(apply(&complexes, 5, NO_TWEAK), 2 * 15 + 1); /* not one of those that are known */
    const metadata fused = many_of("32FusedOptimizerTensorListMetadataILi5EEE", 5, 30, 30 * 8, 1, 320, 4);
    CHECK_EQ(apply(&fused, 4, NO_TWEAK), 5 * 4 + 2);
    const metadata newer = many_of("18TensorListMetadataILi4EEE_of_another_version", 4, 36, 8, 1, 320, 4);
    CHECK_EQ(apply(&newer, 3, NO_TWEAK), 4 * 15 + 1);
    /* The same in a version in which they may mean something else. */
    void (*expect_lists)(int);
    *(void **)&expect_lists = dlsym(RTLD_DEFAULT, "penstock_hook_expect_lists");
    expect_lists(0);
    const metadata untried = many_of("18TensorListMetadataILi4EEE_untried", 4, 36, 0, 1, 320, 4);
    CHECK_EQ(apply(&untried, 3, NO_TWEAK), 4 * 15 + 1);
    expect_lists(1);
    const metadata tried = many_of("18TensorListMetadataILi4EEE_tried", 4, 36, 0, 1, 320, 4);
    CHECK_EQ(apply(&tried, 3, NO_TWEAK), 4 * 3 + 1);
    SYNC(NULL);
}

/* An odd mix of sizes: words are found at 8-byte offsets of the parameter buffer. */
static void layouts(void) {
    add_kernel("mixed", 5, (const size_t[]){4, 12, 1, 8, 16});
    struct { /* 12 bytes at offset 4: its second word is the aligned one */
        uint32_t a;
        uint32_t lo, hi;
    } twelve = {1, (uint32_t)at(20), (uint32_t)(at(20) >> 32)};
    uint32_t four = 5;
    uint8_t one = 1;
    uint64_t eight = at(21), sixteen[2] = {12345, at(22) + 77};
    void *params[] = {&four, &twelve, &one, &eight, sixteen};
    OK(CALL(cuLaunchKernel, function("mixed"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    EXPECT(PSK_REC_LAUNCH, 20, 21, 22);
    SYNC(NULL);
}

/* Freed slots, unknown addresses, small numbers and non-addresses name nothing. */
static void strangers(void) {
    add_kernel("four", 4, (const size_t[]){8, 8, 8, 8});
    uint64_t v[4] = {at(30), 17, ~0ull, 1ull << 47};
    void *params[] = {&v[0], &v[1], &v[2], &v[3]};
    set_state(30, PSK_SLOT_FREE);
    OK(CALL(cuLaunchKernel, function("four"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    CHECK_EQ(must_take()->n, 0);
    set_state(30, PSK_SLOT_ABSENT); /* observed only: no gate */
    OK(CALL(cuLaunchKernel, function("four"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    record *r = EXPECT(PSK_REC_LAUNCH, 30);
    CHECK_EQ(r->flags, 0);
    CHECK_EQ(S->slot_last_seq[30], r->seq);
    set_state(30, PSK_SLOT_RESIDENT);
    /* A failing launch passes its error on. */
    CHECK_EQ(CALL(cuLaunchKernel, function("four"), 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    must_take();
    SYNC(NULL);
}

/* A launch of no function is a probe for the thread that the engine named. From others it is the driver's to refuse, and no record. */
static void *stranger(void *launch) {
    enter();
    CHECK_EQ(((launch_fn)launch)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    none_left();
    return NULL;
}
static void probes(void) {
    launch_fn launch = (launch_fn)driver("cuLaunchKernel");
    CHECK_EQ(launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    none_left();
    CHECK_EQ(S->probes, 0);
    S->probing = (uint32_t)syscall(SYS_gettid);
    S->probe_word = base;
    uint64_t before = S->launches, copies = S->copies;
    CUlaunchConfig c = {1, 1, 1, 1, 1, 1, 0, NULL, NULL, 0};
    OK(launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(CALL(cuLaunchKernel_ptsz, NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(CALL(cuLaunchKernelEx, &c, NULL, NULL, NULL));
    OK(CALL(cuLaunchCooperativeKernel, NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL));
    OK(CALL(cuMemsetD8Async, base, 1, U64(4), NULL));
    OK(CALL(cuMemsetD32_v2, base, 1, U64(1)));
    CHECK_EQ(S->probes, 6);
    CHECK_EQ(S->launches, before);
    CHECK_EQ(S->copies, copies);
    CHECK_EQ(word_at(base), 0); /* nothing went on to the driver */
    none_left();
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, stranger, (void *)launch) && !pthread_join(t, NULL));
    CHECK_EQ(S->probes, 6);
    S->probing = 0;
    S->probe_word = 0;
}

/* Records carry the time of the call in the way that is asked for, or none. */
static void stamps(void) {
    for (uint32_t how = PSK_STAMP_NONE; how <= PSK_STAMP_TICKS; how++) {
        __atomic_store_n(&S->stamp, how, __ATOMIC_SEQ_CST);
        uint64_t from = psk_stamp(how);
        OK(touch_add(NULL, at(7), 4, 1));
        uint64_t when = EXPECT(PSK_REC_LAUNCH, 7)->when, to = psk_stamp(how);
        CHECK(from <= when && when <= to && (when == 0) == (how == PSK_STAMP_NONE));
    }
    __atomic_store_n(&S->stamp, PSK_STAMP_NONE, __ATOMIC_SEQ_CST);
    SYNC(NULL);
}

int main(void) {
    start();
    attach(PSK_MODE_OBSERVE);
    base = managed(SLOTS * 2 * MiB);
    for (uint32_t i = 1; i <= SLOTS; i++) own(i, at((int)i), 2 * MiB, PSK_SLOT_RESIDENT);
    probes();
    calls();
    extra();
    opaque();
    kernel();
    by_value();
    lists();
    many();
    layouts();
    strangers();
    stamps();
    none_left();
    CHECK_EQ(S->dropped, 0);
    CHECK_EQ(S->gated, 0);
    return 0;
}
