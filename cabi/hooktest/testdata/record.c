/* Launches that are recorded whole, what is said of what they do, and slots that are guarded. */
#include "strict.h"

enum { SLOTS = 8, PLAIN = 9 };
static CUdeviceptr base;
static CUdeviceptr at(int slot) { return base + (uint64_t)(slot - 1) * 2 * MiB; }

/* (a byte, addresses of two operands, what it writes to, a number): parameters of several sizes. */
static const size_t sizes[] = {1, 16, 8, 4};
enum { WRITTEN = 2 };
static void no_op(const stub_launch *l) { (void)l; }

static CUresult launch(CUstream s, CUdeviceptr a, CUdeviceptr b, CUdeviceptr to) {
    uint8_t byte = 7;
    uint64_t from[2] = {a, b};
    uint32_t number = 99;
    void *params[] = {&byte, from, &to, &number};
    return CALL(cuLaunchKernel, function("mix"), 3, 2, 1, 32, 4, 1, 48, s, params, NULL);
}

static uint32_t id_of(const char *name) {
    for (uint32_t i = S->nfuncs; i-- > 0;)
        if (!strcmp(func_name(i), name)) return i;
    CHECK(!"a function that was launched");
    return 0;
}

/* The record that is about to be taken says which launch was recorded. */
static uint32_t next_recorded(void) { return S->ring[S->tail % PSK_RING_ENTRIES].recorded; }

static const psk_launch *recorded(uint32_t turn) {
    const psk_launch *l = (const psk_launch *)(S->launch_area + (turn - 1) % PSK_LAUNCH_UNITS * PSK_LAUNCH_UNIT);
    CHECK_EQ((uint32_t)l->turn, turn);
    return l;
}

/* Before its function is marked nothing is said of a launch; then all of it, and what it writes to comes first. */
static void whole(void) {
    OK(launch(NULL, at(1), at(2), at(3)));
    CHECK_EQ(next_recorded(), 0);
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->flags & (PSK_FLAG_ACCESS | PSK_FLAG_HAS_DST), 0);
    psk_func *f = &S->funcs[id_of("mix")];
    __atomic_store_n(&f->record, 1, __ATOMIC_RELEASE);
    OK(launch(NULL, at(1), at(2), at(3)));
    const uint32_t *places = (const uint32_t *)(recorded(next_recorded()) + 1);
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3)->flags & (PSK_FLAG_ACCESS | PSK_FLAG_HAS_DST), 0);
    uint16_t to = (uint16_t)places[WRITTEN], from = (uint16_t)places[1];
    f->written[0] = to;
    __atomic_store_n(&f->record, 2, __ATOMIC_RELEASE);
    for (int i = 0; i < 3; i++) {
        OK(launch(NULL, at(1), at(2), at(3)));
        const psk_launch *l = recorded(next_recorded());
        CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 3, 1, 2)->flags & (PSK_FLAG_ACCESS | PSK_FLAG_HAS_DST), PSK_FLAG_ACCESS | PSK_FLAG_HAS_DST);
        CHECK_EQ(l->function, U64(function("mix")));
        CHECK(l->grid[0] == 3 && l->grid[1] == 2 && l->grid[2] == 1 && l->block[0] == 32 && l->block[1] == 4 && l->block[2] == 1);
        CHECK_EQ(l->shared, 48);
        CHECK_EQ(l->nparams, 4);
        const uint32_t *starts = (const uint32_t *)(l + 1);
        const uint8_t *params = (const uint8_t *)(starts + 4);
        uint64_t words[3];
        memcpy(words, params + starts[1], 16);
        memcpy(words + 2, params + starts[2], 8);
        CHECK(params[starts[0]] == 7 && words[0] == at(1) && words[1] == at(2) && words[2] == at(3));
        CHECK(starts[1] % 8 == 0 && starts[2] % 8 == 0 && starts[3] + 4 <= l->bytes);
    }
    /* In place, and to memory of nobody's: what it names it only reads then. */
    OK(launch(NULL, at(3), at(2), at(3)));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 3, 2)->flags & (PSK_FLAG_ACCESS | PSK_FLAG_HAS_DST), PSK_FLAG_ACCESS | PSK_FLAG_HAS_DST);
    OK(launch(NULL, at(3), at(2), at(PLAIN)));
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 3, 2)->flags & (PSK_FLAG_ACCESS | PSK_FLAG_HAS_DST), PSK_FLAG_ACCESS);
    /* It may write to what more than one word points to. */
    f->written[1] = (uint16_t)(from + 8);
    __atomic_store_n(&f->record, 3, __ATOMIC_RELEASE);
    OK(launch(NULL, at(1), at(2), at(3)));
    const record *two = EXPECT(PSK_REC_LAUNCH, 3, 2, 1);
    CHECK_EQ(psk_written(two->flags), 2);
    OK(launch(NULL, at(1), at(3), at(3)));
    CHECK_EQ(psk_written(EXPECT(PSK_REC_LAUNCH, 3, 1)->flags), 1);
    __atomic_store_n(&f->record, 2, __ATOMIC_RELEASE);
    /* Clusters are recorded, launches with attributes that matter are not. */
    CUlaunchAttribute attributes[] = {{.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value = {.clusterDim = {2, 1, 1}}},
                                      {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, .value = {.clusterSchedulingPolicyPreference = 1}},
                                      {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION}};
    for (int odd = 0; odd < 2; odd++) {
        if (odd) attributes[2].id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
        uint8_t byte = 7;
        uint64_t operands[2] = {at(1), at(2)}, written = at(3);
        uint32_t number = 99;
        CUlaunchConfig c = {.gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .attrs = attributes, .numAttrs = 3};
        OK(CALL(cuLaunchKernelEx, &c, function("mix"), ((void *[]){&byte, operands, &written, &number}), NULL));
        if (odd)
            CHECK_EQ(next_recorded(), 0);
        else
            CHECK(recorded(next_recorded())->cluster[0] == 2 && recorded(next_recorded())->policy == 1 && recorded(next_recorded())->grid[0] == 4);
        must_take();
    }
    /* Parameters may lie in one buffer. */
    uint8_t all[64] = {7};
    uint64_t three[3] = {at(1), at(2), at(3)};
    memcpy(all + from, three, 16);
    memcpy(all + to, three + 2, 8);
    size_t size = to + 12;
    CHECK(size <= sizeof all);
    OK(CALL(cuLaunchKernel, function("mix"), 3, 2, 1, 32, 4, 1, 48, NULL, NULL, ((void *[]){CU_LAUNCH_PARAM_BUFFER_POINTER, all, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END})));
    CHECK(!memcmp((const uint8_t *)(recorded(next_recorded()) + 1) + 16, all, size));
    CHECK_EQ(psk_written(EXPECT(PSK_REC_LAUNCH, 3, 1, 2)->flags), 1);
    /* What is captured does not run, so it is not made again. */
    CUstream s = new_stream();
    CUgraph g;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    OK(launch(s, at(1), at(2), at(3)));
    OK(CALL(cuStreamEndCapture, s, &g));
    CHECK_EQ(next_recorded(), 0);
    CHECK_EQ(must_take()->flags & PSK_FLAG_ACCESS, 0);
    SYNC(NULL);
}

/* More words than it writes to may say so, and none of what they say is passed on where they lie in more slots than a record can tell. */
static void many(void) {
    uint64_t all[6] = {at(1), at(1), at(2), at(3), at(4), at(5)};
    void *params[] = {all};
    OK(CALL(cuLaunchKernel, function("many"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    psk_func *f = &S->funcs[id_of("many")];
    CHECK_EQ(EXPECT(PSK_REC_LAUNCH, 1, 2, 3, 4, 5)->flags & PSK_FLAG_ACCESS, 0);
    for (uint32_t words = 5; words <= 6; words++) {
        for (uint32_t i = 0; i < words; i++) f->written[i] = (uint16_t)(8 * i);
        __atomic_store_n(&f->record, 1 + words, __ATOMIC_RELEASE);
        OK(CALL(cuLaunchKernel, function("many"), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
        const record *r = EXPECT(PSK_REC_LAUNCH, 1, 2, 3, 4, 5);
        CHECK_EQ(r->flags & PSK_FLAG_ACCESS ? psk_written(r->flags) : 0, words == 5 ? 4 : 0);
    }
    SYNC(NULL);
}

static CUresult mix_into(job *j) { return launch(j->s, at(1), at(2), j->p); }
static CUresult mix_from(job *j) { return launch(j->s, j->p, at(2), at(3)); }
static CUresult copy_in(job *j) { return CALL(cuMemcpyHtoDAsync_v2, j->p, j->host, j->bytes, j->s); }
static CUresult copy_out(job *j) { return CALL(cuMemcpyDtoHAsync_v2, j->host, j->p, j->bytes, j->s); }
static CUresult copy_from(job *j) { return CALL(cuMemcpyDtoDAsync_v2, at(3), j->p, j->bytes, j->s); }
static CUresult copy_to(job *j) { return CALL(cuMemcpyDtoDAsync_v2, j->p, at(3), j->bytes, j->s); }
static CUresult fill(job *j) { return CALL(cuMemsetD8Async, j->p, 1, j->bytes, j->s); }

/* What only reads a guarded slot passes; what writes to it, or may, waits as for an absent one. */
static void guarded(void) {
    clear_function("touch_add");
    const struct {
        const char *what;
        CUresult (*call)(job *);
        bool waits;
    } cases[] = {
        {"a kernel of which nothing is known", add_one, true},
        {"a known one that writes to it", mix_into, true},
        {"a known one that reads it", mix_from, false},
        {"a copy to it", copy_in, true},
        {"a copy from it", copy_out, false},
        {"a copy to it on the device", copy_to, true},
        {"a copy from it on the device", copy_from, false},
        {"a fill", fill, true},
    };
    void *host;
    OK(CALL(cuMemHostAlloc, &host, U64(4096), 0));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CUstream s = new_stream();
        job j = {.call = cases[i].call, .s = s, .p = at(5), .host = host, .bytes = 4096};
        uint64_t waited = S->cpu_waits;
        set_state(5, PSK_SLOT_GUARDED);
        begin_job(&j);
        record *r = await();
        uint32_t named = 0;
        for (uint32_t k = 0; k < r->n; k++) named += r->slots[k] == 5;
        CHECK_EQ(named, 1);
        CHECK_EQ(S->slot_last_seq[5], r->seq); /* also when it passes: the engine may want to know */
        if (cases[i].waits) {
            CHECK_EQ(r->flags & PSK_FLAG_GATED, PSK_FLAG_GATED);
            waits(&j);
            set_state(5, PSK_SLOT_RESIDENT);
        } else {
            CHECK_EQ(r->flags & PSK_FLAG_GATED, 0);
        }
        if (end_job(&j)) fprintf(stderr, "%s\n", cases[i].what), exit(1);
        SYNC(s);
        CHECK_EQ(S->cpu_waits - waited, cases[i].waits);
    }
    /* A failed engine refuses what waits there. */
    set_state(5, PSK_SLOT_GUARDED);
    job j = {.call = add_one, .p = at(5)};
    begin_job(&j);
    await();
    waits(&j);
    refuse(CUDA_ERROR_ILLEGAL_STATE);
    CHECK_EQ(end_job(&j), CUDA_ERROR_ILLEGAL_STATE);
    refuse(0);
    set_state(5, PSK_SLOT_RESIDENT);
}

int main(void) {
    start();
    base = managed((PLAIN + 1) * 2 * MiB);
    base = (base + 2 * MiB - 1) / (2 * MiB) * (2 * MiB);
    void (*register_kernel)(const char *, stub_kernel_fn, void *, unsigned, const size_t *) = driver("stub_register_kernel");
    register_kernel("mix", no_op, NULL, 4, sizes);
    register_kernel("many", no_op, NULL, 1, (const size_t[]){48});
    attach(PSK_MODE_OBSERVE);
    for (int i = 1; i <= SLOTS; i++) own(i, at(i), 2 * MiB, PSK_SLOT_RESIDENT);
    own(PSK_SLOT_PLAIN, at(PLAIN), 2 * MiB, 0);
    OK(launch(NULL, at(1), at(2), at(3)));
    OK(touch_add(NULL, at(1), 1, 0));
    must_take(), must_take();
    OK(CALL(cuLaunchKernel, function("many"), 1, 1, 1, 32, 1, 1, 0, NULL, ((void *[]){(uint64_t[6]){at(1)}}), NULL));
    must_take();
    set_mode(PSK_MODE_STRICT);
    clear_function("mix");
    clear_function("many");
    clear_function("touch_add");
    whole();
    many();
    guarded();
    none_left();
    return 0;
}
