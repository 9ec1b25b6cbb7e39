/*
 * The replay probe (bench/probe/replays.h) in place of the hook: kernels of each kind are launched while it
 * is armed. argv[1]: where its results go; the test reads them.
 */
#include "engine.h"

static void *library(const char *name) {
    void *p = dlsym(RTLD_DEFAULT, name);
    CHECK(p);
    return p;
}
#define PROBE(type, name, ...) (((type(*)())library(#name))(__VA_ARGS__))

typedef struct piece {
    uint64_t base, bytes, first, span;
} piece;

/* As replays_sums.cu: sums that depend on where each byte is. */
static void k_sums(const stub_launch *l) {
    const piece *pieces = (const piece *)STUB_PARAM(l, uint64_t, 0);
    uint64_t *out = (uint64_t *)STUB_PARAM(l, uint64_t, 1);
    for (unsigned p = 0; p < l->grid[0]; p++)
        for (uint64_t i = 0; i < pieces[p].bytes; i++) {
            uint64_t h = (((const unsigned char *)pieces[p].base)[i] + 1) * (0x9e3779b97f4a7c15u ^ (pieces[p].first * 8 + i) * 0xd6e8feb86659fd93u);
            out[2 * pieces[p].span] += h ^ h >> 31;
            out[2 * pieces[p].span + 1] += h * h;
        }
}

static volatile uint32_t counter, drifting;
static void add(const stub_launch *l, uint32_t inc) {
    uint32_t *v = (uint32_t *)STUB_PARAM(l, uint64_t, 0);
    for (uint64_t i = 0; i < STUB_PARAM(l, uint64_t, 1); i++) v[i] = (uint32_t)i * 3 + inc;
}
static void k_unsteady(const stub_launch *l) { add(l, ++counter); } /* another result each time */
static void k_steady(const stub_launch *l) { add(l, drifting); }    /* until it drifts */

static void with(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    void *params[] = {&a, &b, &c, &d};
    OK(CALL(cuLaunchKernel, function(name), 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    start();
    void (*kernel)(const char *, stub_kernel_fn, void *, unsigned, const size_t *) = driver("stub_register_kernel");
    kernel("replays_sums", k_sums, NULL, 2, (const size_t[]){8, 8});
    kernel("unsteady", k_unsteady, NULL, 2, (const size_t[]){8, 8});
    kernel("steady", k_steady, NULL, 2, (const size_t[]){8, 8});
    const uint64_t n = 2000, bytes = (n - 1) * 4; /* the last word of 8 bytes is not whole */
    uint64_t a = PROBE(uint64_t, replays_alloc, bytes, 0, NULL), b = PROBE(uint64_t, replays_alloc, bytes, 0, NULL), table, foreign;
    CHECK(a && b);
    for (uint64_t i = 0; i < n - 1; i++) ((uint32_t *)a)[i] = (uint32_t)i, ((uint32_t *)b)[i] = 7;
    OK(CALL(cuMemAlloc_v2, &foreign, U64(bytes + 2))); /* not of the allocator, and nobody writes the last two bytes */

    PROBE(void, replays_keep_up_to, U64(64 * MiB));
    CHECK_EQ(PROBE(int, replays_arm, argv[1], "module", U64(64 * MiB), 2, 60.0, "multi_add\nopaque"), 0);
    uint64_t sum = PROBE(uint64_t, replays_alloc, bytes, 0, NULL);
    with("vec_add", sum, a, b, n - 1); /* writes what is new */
    with("touch_add", a, n - 1, 5, 0); /* in place */
    with("touch_add", a, n - 1, 6, 0);
    with("touch_add", a, n - 1, 6, 0); /* enough of that */
    with("unsteady", b, n - 1, 0, 0);
    with("steady", b, n - 1, 0, 0);
    with("vec_add", foreign, a, a, n - 1);
    table = PROBE(uint64_t, replays_alloc, U64(16), 0, NULL);
    ((uint64_t *)table)[0] = sum; /* the new block is not fresh any more */
    with("table_add", table, 1, 10, 1); /* writes what it does not name, and so does its replay */
    with("opaque_add", a, n - 1, 5, 0);
    with("empty", 0, 0, 0, 0);
    CHECK_EQ(PROBE(int, replays_alloc, U64(0), 0, NULL), 0);
    PROBE(void, replays_free, sum, bytes, 0, NULL);
    CHECK_EQ(PROBE(uint64_t, replays_alloc, bytes, 0, NULL), sum); /* given out again */
    PROBE(void, replays_disarm);
    with("touch_add", a, n - 1, 5, 0);
    OK(CALL(cuCtxSynchronize));
    CHECK_EQ(((uint32_t *)a)[10], 10 + 5 + 6 + 6 + 5 + 5); /* each ran once */

    /* Beside: vec_add, touch_add and steady have recipes, unsteady and table_add have none. */
    unsigned recipes = PROBE(unsigned, replays_recipes), chosen[8], steady = 8;
    CHECK_EQ(recipes, 3);
    for (unsigned i = 0; i < recipes; i++) {
        chosen[i] = i;
        if (!strcmp(PROBE(const char *, replays_recipe_name, i), "steady")) steady = i;
    }
    CHECK(steady < recipes);
    for (drifting = 0; drifting < 2; drifting++) {
        uint64_t rounds, wrong[8];
        CHECK_EQ(PROBE(int, replays_beside_start, 0, chosen, recipes), 0);
        usleep(100000);
        PROBE(double, replays_beside_end, &rounds, wrong);
        CHECK(rounds > 0);
        for (unsigned i = 0; i < recipes; i++) CHECK_EQ(wrong[i], drifting && i == steady ? rounds : 0);
    }
    return 0;
}
