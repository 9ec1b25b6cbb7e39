/*
 * A job that is looked at while it runs: iterations of layers that compute for a while, until its standard input ends.
 * It says "ready" once it has repeated itself, and at the end how many iterations it made. With the argument "forks"
 * it has a child that lives on when it is killed, as workers of a program may.
 */
#include <poll.h>

#include "job.h"

enum { LAYERS = 16 };
#define LAYER_BYTES (4 * MiB)

static bool told_to_end(void) { return poll(&(struct pollfd){.fd = 0, .events = POLLIN}, 1, 0) == 1; }

/* Computes for a while. No layer is like another. */
static void compute(int k, CUstream s) {
    uint64_t us = 1500;
    for (int bit = 0; bit < 4; bit++) launch(bit, s, k >> bit & 1 ? f_empty : f_spin, (void *[]){&us});
}

static void iteration(CUstream s, tensor *weight, uint32_t value) {
    static tensor act[LAYERS + 1];
    CHECK(make(&act[0], LAYER_BYTES, s, value));
    for (int k = 0; k < LAYERS; k++) {
        CHECK(make(&act[k + 1], LAYER_BYTES, s, 0));
        compute(k, s);
        add_to(k, s, &act[k + 1], &act[k]), add_to(k, s, &act[k + 1], &weight[k]);
    }
    for (int k = LAYERS - 1; k >= 0; k--) {
        compute(k, s);
        add_to(k, s, &weight[k], &act[k + 1]);
        drop(&act[k + 1]);
    }
    drop(&act[0]);
}

int main(int argc, char **argv) {
    load(), resolve();
    if (P.init(0)) {
        printf("INIT %s\n", last_error());
        return 3;
    }
    if (argc > 1 && !strcmp(argv[1], "forks")) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) { /* it must not answer for its parent, nor hold the test's pipes open */
            close(0), close(1), close(2);
            alarm(60);
            for (;;) pause();
        }
        printf("child %d\n", child);
    }
    CUstream s;
    OK(CALL(cuStreamCreate, &s, 1));
    static tensor weight[LAYERS];
    for (int k = 0; k < LAYERS; k++) CHECK(make(&weight[k], LAYER_BYTES, s, (uint32_t)k));
    uint32_t n = 0;
    for (; !told_to_end(); n++) {
        iteration(s, weight, n);
        SYNC(s);
        if (n == 8) printf("ready\n"), fflush(stdout);
    }
    for (int k = 0; k < LAYERS; k++) check_value(&weight[k]);
    printf("ITERATIONS %u\n", n);
    P.close();
    return 0;
}
