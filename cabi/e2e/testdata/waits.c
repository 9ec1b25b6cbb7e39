/*
 * Jobs that wait for memory which queued work holds, for long or in vain.
 *
 *     waits MODE [SECONDS]
 */
#include "job.h"

enum { TENSORS = 16, BYTES = 6 * MiB }; /* half as much again as the budget */

static tensor t[TENSORS];
static CUstream s;

/* One that keeps its stream for so long, as a collective that waits for a peer which writes a checkpoint. */
static void keep_busy(double seconds) {
    uint64_t us = (uint64_t)(seconds * 1e6);
    launch(BY_DLSYM, s, f_spin, (void *[]){&us});
}

/* Launches behind a long kernel, in more memory than there is. */
static void launches(double seconds) {
    double from = now();
    keep_busy(seconds);
    for (int i = 0; i < TENSORS; i++) add(i, s, &t[i], 1);
    SYNC(s);
    CHECK(now() - from >= seconds);
    for (int i = 0; i < TENSORS; i++) check_value(&t[i]);
}

/* Small allocations, while all that could make room for them is in use behind a long kernel. */
static void small(double seconds) {
    keep_busy(seconds);
    double from = now();
    for (int i = 0; i < 10; i++) add(i, s, &t[i], 1);
    for (int i = 0; i < 12; i++) {
        if (P.malloc(900 << 10, 0, s)) continue;
        fprintf(stderr, "small allocation %d failed after %.1f s: %s\n", i, now() - from, last_error());
        exit(1);
    }
    CHECK(now() - from >= seconds / 2); /* or none of them had to wait */
    SYNC(s);
    for (int i = 0; i < TENSORS; i++) check_value(&t[i]);
}

static CUresult try_add(tensor *x) {
    CUdeviceptr p = DEVICE(x);
    uint64_t n = x->bytes / 4;
    uint32_t inc = 1;
    return launch_dlsym(f_add, 1, 1, 1, 32, 1, 1, 0, s, (void *[]){&p, &n, &inc}, NULL);
}

/* The context ends while a launch waits: nothing that is queued will ever finish. */
static void ended(double seconds) {
    keep_busy(seconds);
    CUdeviceptr nowhere = 1 << 20;
    uint64_t n = 1;
    uint32_t inc = 1;
    launch(BY_DLSYM, s, f_add, (void *[]){&nowhere, &n, &inc});
    double from = now();
    CUresult r = CUDA_SUCCESS;
    for (int i = 0; i < TENSORS && r == CUDA_SUCCESS; i++) r = try_add(&t[i]);
    printf("RESULT %d after %.1f s\n", r, now() - from);
}

static void *launcher(void *context) {
    OK(CALL(cuCtxSetCurrent, context));
    CUresult r = CUDA_SUCCESS;
    for (int i = 0; i < TENSORS && r == CUDA_SUCCESS; i++) r = try_add(&t[i]);
    printf("RESULT %d\n", r);
    return NULL;
}

/* No host memory is to be had: one thread waits with a launch, the other with allocations that its tensors would have to
 * leave for. Neither may wait for the other. */
static void full(void) {
    CUcontext context;
    OK(CALL(cuCtxGetCurrent, &context));
    pthread_t thread;
    double from = now();
    CHECK(!pthread_create(&thread, NULL, launcher, context));
    int n = 0;
    while (P.malloc(900 << 10, 0, s)) CHECK(++n < 1000);
    printf("ALLOCATED %d until %.1f s: %s\n", n, now() - from, last_error());
    pthread_join(thread, NULL);
}

/* All that may be allocated, and then each of them used: what is on the device and what is not can change places. */
static void fill(void) {
    static tensor all[64];
    int n = 0;
    while (n < 64 && make(&all[n], 8 * MiB, s, (uint32_t)n)) n++;
    CHECK(n > 8 && n < 64 && strstr(last_error(), "out of memory"));
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n; i++) add(i, s, &all[i], 1);
    for (int i = 0; i < n; i++) check_value(&all[i]);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    double seconds = argc > 2 ? atof(argv[2]) : 0;
    load();
    resolve();
    s = new_stream();
    bool none = !strcmp(argv[1], "full"), all = !strcmp(argv[1], "fill");
    for (int i = 0; i < TENSORS && !all; i++) {
        if (none) t[i] = (tensor){.p = P.malloc(BYTES, 0, s), .bytes = BYTES, .stream = s}; /* nothing has to leave yet */
        else CHECK(make(&t[i], BYTES, s, (uint32_t)i));
        CHECK(t[i].p);
    }
    for (int k = 0; k < 3 && !none && !all; k++)
        for (int i = 0; i < TENSORS; i++) add(i, s, &t[i], 1);
    SYNC(s);
    if (!strcmp(argv[1], "launches")) launches(seconds);
    else if (!strcmp(argv[1], "small")) small(seconds);
    else if (!strcmp(argv[1], "ended")) ended(seconds);
    else if (none) full();
    else if (all) fill();
    else CHECK(!"a mode");
    P.close();
    return 0;
}
