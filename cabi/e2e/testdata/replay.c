/*
 * Tensors that are computed from two others, more than the budget has room for: with PENSTOCK_REPLAY they are dropped and made
 * again. Then what they are made of is written to, freed and taken again, and they have to be what they were.
 */
#include "job.h"

enum { PRODUCTS = 14, BYTES = 4 << 20, ROUNDS = 16, SMALL = 1024 };

static CUfunction f_product;
static tensor in[2], row, product[PRODUCTS];

/* out = (a + b) * by; b has so many words, and then begins again. */
static void compute(tensor *out, const tensor *a, const tensor *b, uint32_t by) {
    *out = (tensor){.p = P.malloc(BYTES, 0, NULL), .bytes = BYTES, .value = (a->value + b->value) * by};
    CHECK(out->p);
    uint32_t n = BYTES / 4;
    uint64_t functor = by | (uint64_t)(b->bytes / 4) << 32, p[] = {DEVICE(out), DEVICE(a), DEVICE(b)};
    launch(BY_DLSYM, NULL, f_product, (void *[]){&n, &functor, p});
}

static void check_all(bool inputs) {
    for (int i = 0; i < PRODUCTS; i++) {
        if (inputs) check_value(&in[0]), check_value(&in[1]); /* they are used, and so stay */
        check_value(&product[i]);
    }
}

static void make_all(const tensor *a, const tensor *b) {
    for (int i = 0; i < PRODUCTS; i++) compute(&product[i], a, b, (uint32_t)i + 1);
}

int main(void) {
    load();
    resolve();
    f_product = function("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_3StuESt5arrayIPcLm3EEEEviT0_T1_");
    CHECK(!P.init(0));
    for (int i = 0; i < 2; i++) CHECK(make(&in[i], BYTES, NULL, (uint32_t)i + 1));
    CHECK(make(&row, SMALL * 4, NULL, 7));
    tensor first;
    compute(&first, &in[0], &in[1], 1); /* the engine sees the kernel, and has its launches recorded from now on */
    check_value(&first);
    drop(&first);
    make_all(&in[0], &in[1]);
    for (int r = 0; r < ROUNDS; r++) check_all(true);
    printf("ROUNDS %s\n", stats());
    check_all(true);
    printf("STEADY %s\n", stats());
    add(BY_DLSYM, NULL, &in[0], 100);
    check_all(false);
    for (int i = 0; i < PRODUCTS; i++) drop(&product[i]);
    in[0].value = 101;
    make_all(&in[0], &row); /* from small memory, which is then written to */
    OK(fill_fn(DEVICE(&row), 55, SMALL, NULL));
    check_all(false);
    for (int i = 0; i < PRODUCTS; i++) drop(&product[i]);
    make_all(&in[0], &in[1]);
    check_all(true);
    drop(&in[0]);
    tensor other;
    CHECK(make(&other, BYTES, NULL, 77)); /* most likely where it was */
    check_all(false);
    check_value(&other);
    CHECK_EQ(count("illegal"), 0);
    printf("STATS %s\n", stats());
    P.close();
    return 0;
}
