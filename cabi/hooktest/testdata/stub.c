/* The stub driver itself. argv[1]: memory, streams, vmm, fail. */
#include "engine.h"

static uint64_t count(const char *name) { return ((uint64_t(*)(const char *))driver("stub_count"))(name); }
static uint64_t resident(CUdeviceptr p, size_t n) { return ((uint64_t(*)(uint64_t, size_t))driver("stub_resident_bytes"))(p, n); }

/* 16 MiB of device memory. */
static void memory(void) {
    const uint64_t M2 = 2 * MiB;
    CUdeviceptr a = managed(8 * MiB), b = managed(8 * MiB), plain;
    CHECK(a % M2 == 0 && b % M2 == 0);
    CHECK_EQ(resident(a, 8 * MiB), 0);
    OK(touch_add(NULL, a + 1 * MiB, MiB / 2, 1)); /* 2 MiB from the middle of the first block: two blocks fault */
    SYNC(NULL);
    CHECK_EQ(count("faults"), 2);
    CHECK_EQ(resident(a, 8 * MiB), 4 * MiB);
    CHECK_EQ(resident(a + 3 * MiB, 2 * MiB), 1 * MiB);
    CHECK_EQ(count("h2d_bytes"), 0); /* never populated: nothing to move */

    CUmemLocation dev = {1, 0}, host = {2, 0};
    CUstream s = new_stream();
    OK(CALL(cuMemPrefetchAsync_v2, b, U64(8 * MiB), dev, 0, s));
    SYNC(s);
    CHECK_EQ(resident(b, 8 * MiB), 8 * MiB);
    size_t free_bytes, total;
    OK(CALL(cuMemGetInfo_v2, &free_bytes, &total));
    CHECK_EQ(total, 16 * MiB);
    CHECK_EQ(free_bytes, 4 * MiB);
    OK(CALL(cuMemAlloc_v2, &plain, U64(6 * MiB))); /* pushes the oldest block out */
    CHECK_EQ(resident(a, 8 * MiB), 2 * MiB);
    CHECK_EQ(resident(a, M2), 0);
    CHECK_EQ(count("evictions"), 1);
    CHECK_EQ(count("d2h_bytes"), M2);
    OK(touch_add(NULL, a, 8, 1)); /* back in, pushing the next oldest out */
    SYNC(NULL);
    CHECK_EQ(count("h2d_bytes"), M2);
    CHECK_EQ(count("faults"), 3);
    CHECK_EQ(resident(a + M2, M2), 0);
    OK(CALL(cuMemFree_v2, plain));
    OK(CALL(cuMemPrefetchAsync, a, U64(8 * MiB), -1, s));
    SYNC(s);
    CHECK_EQ(resident(a, 8 * MiB), 0);
    uint64_t d2h = count("d2h_bytes");

    /* A discarded block costs nothing to drop, and its contents are gone. */
    *(uint32_t *)b = 77;
    uint64_t dptrs[2] = {b, b + 4 * MiB};
    size_t sizes[2] = {M2, M2}, idx[1] = {0};
    OK(CALL(cuMemDiscardBatchAsync, dptrs, sizes, U64(2), U64(0), s));
    OK(CALL(cuMemPrefetchBatchAsync, dptrs, sizes, U64(2), &host, idx, U64(1), U64(0), s));
    SYNC(s);
    CHECK_EQ(resident(b, 8 * MiB), 4 * MiB);
    CHECK_EQ(count("d2h_bytes"), d2h);
    CHECK_EQ(word_at(b), 0xdbdbdbdb);
    uint64_t h2d = count("h2d_bytes");
    OK(CALL(cuMemDiscardAndPrefetchBatchAsync, dptrs, sizes, U64(2), &dev, idx, U64(1), U64(0), s));
    SYNC(s);
    CHECK_EQ(resident(b, 8 * MiB), 8 * MiB);
    CHECK_EQ(count("h2d_bytes"), h2d);
    OK(touch_add(NULL, b, 1, 1)); /* a write ends the discard: from now on it moves */
    SYNC(NULL);
    OK(CALL(cuMemPrefetchAsync_v2, b, U64(8 * MiB), host, 0, s));
    SYNC(s);
    CHECK_EQ(count("d2h_bytes"), d2h + 4 * M2);
    /* The legacy stream is refused for batches, and so is memory that is not managed. */
    CHECK_EQ(CALL(cuMemDiscardBatchAsync, dptrs, sizes, U64(2), U64(0), NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(CALL(cuMemPrefetchAsync_v2, (uint64_t)(uintptr_t)&total, U64(8), dev, 0, s), CUDA_ERROR_INVALID_VALUE);

    CHECK_EQ(CALL(cuMemAlloc_v2, &plain, U64(17 * MiB)), CUDA_ERROR_OUT_OF_MEMORY);
    OK(CALL(cuMemFree_v2, a));
    CHECK_EQ(CALL(cuMemFree_v2, a), CUDA_ERROR_INVALID_VALUE);
    OK(CALL(cuMemFree_v2, b));
    OK(CALL(cuMemGetInfo_v2, &free_bytes, &total));
    CHECK_EQ(free_bytes, total);
    CHECK_EQ(count("live_allocations"), 0);
}

/* A kernel that touches what is not there ends the context: every call says so, and nobody is left waiting. */
static void ended(void) {
    CUstream bad = new_stream(), waits = new_stream(), behind = new_stream();
    uint32_t *word;
    CUdeviceptr a = managed(2 * MiB);
    CUevent e;
    size_t free_bytes, total;
    OK(CALL(cuMemHostAlloc, &word, U64(64), 0));
    OK(CALL(cuEventCreate, &e, 0));
    word[0] = 5;
    OK(CALL(cuStreamWaitValue32_v2, waits, U64(word), 6, CU_STREAM_WAIT_VALUE_GEQ));
    OK(CALL(cuEventRecord, e, waits));
    OK(CALL(cuStreamWaitEvent, behind, e, 0));
    OK(touch_add(behind, a, 4, 1));
    OK(touch_add(bad, a + 2 * MiB, 8, 1));
    CHECK_EQ(CALL(cuStreamSynchronize, bad), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(CALL(cuStreamSynchronize, behind), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(CALL(cuEventSynchronize, e), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(CALL(cuStreamQuery, waits), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(touch_add(NULL, a, 4, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(CALL(cuMemGetInfo_v2, &free_bytes, &total), CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK_EQ(word_at(a), 0);
}

static void note(void *arg) { atomic_fetch_add((atomic_int *)arg, 1); }

static void streams(void) {
    CUstream s = new_stream(), t = new_stream();
    CUdeviceptr a = managed(2 * MiB);
    uint32_t *word;
    atomic_int notes = 0;
    CUevent e, timed;
    OK(CALL(cuMemHostAlloc, &word, U64(64), 0));
    OK(CALL(cuEventCreate, &e, 0));
    OK(CALL(cuEventCreate, &timed, 0));
    OK(CALL(cuEventQuery, e)); /* never recorded: done */
    word[0] = 5;
    OK(CALL(cuStreamWaitValue32_v2, s, U64(word), 6, CU_STREAM_WAIT_VALUE_GEQ));
    OK(touch_add(s, a, 4, 1));
    OK(CALL(cuLaunchHostFunc, s, note, &notes));
    OK(CALL(cuEventRecord, e, s));
    OK(CALL(cuStreamWaitEvent, t, e, 0));
    OK(touch_add(t, a, 4, 10));
    OK(CALL(cuStreamWriteValue32_v2, t, U64(word + 1), 9, 0));
    /* A wait is for the record that there was when it was called, not for a later one that gets there sooner. */
    CUstream quiet = new_stream(), behind = new_stream();
    CUevent twice;
    OK(CALL(cuEventCreate, &twice, 0));
    word[2] = 0;
    OK(CALL(cuEventRecord, twice, s));
    OK(CALL(cuStreamWaitEvent, behind, twice, 0));
    OK(CALL(cuStreamWriteValue32_v2, behind, U64(word + 2), 1, 0));
    OK(CALL(cuEventRecord, twice, quiet));
    SYNC(quiet);
    OK(CALL(cuEventQuery, twice));
    usleep(2000);
    CHECK_EQ(word[2], 0);
    CHECK_EQ(CALL(cuStreamQuery, t), CUDA_ERROR_NOT_READY);
    CHECK_EQ(CALL(cuEventQuery, e), CUDA_ERROR_NOT_READY);
    CHECK(atomic_load(&notes) == 0 && word_at(a) == 0);
    __atomic_store_n(word, 6, __ATOMIC_RELEASE);
    SYNC(t);
    CHECK(atomic_load(&notes) == 1 && word_at(a) == 11 && word[1] == 9);
    SYNC(behind);
    CHECK_EQ(word[2], 1);
    OK(CALL(cuEventSynchronize, e));
    OK(CALL(cuEventRecord, timed, s));
    OK(CALL(cuEventSynchronize, timed));
    float ms = -1;
    OK(CALL(cuEventElapsedTime, &ms, e, timed));
    CHECK(ms >= 0);
    /* A capture runs nothing, and a memory operation spoils it. */
    CUgraph g;
    OK(CALL(cuStreamBeginCapture_v2, s, 0));
    OK(touch_add(s, a, 4, 100));
    CHECK_EQ(CALL(cuStreamWaitValue32_v2, s, U64(word), 6, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(CALL(cuStreamEndCapture, s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK_EQ(CALL(cuStreamEndCapture, s, &g), CUDA_ERROR_ILLEGAL_STATE);
    SYNC(s);
    CHECK_EQ(word_at(a), 11);
    /* A handle comes back while what was queued on the stream that had it still waits. */
    CUstream again, other = new_stream();
    word[0] = word[1] = 0;
    OK(CALL(cuStreamWaitValue32_v2, t, U64(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(CALL(cuStreamWriteValue32_v2, t, U64(word + 1), 1, 0));
    OK(CALL(cuStreamDestroy_v2, t));
    CHECK_EQ(CALL(cuStreamQuery, t), CUDA_ERROR_INVALID_HANDLE);
    again = new_stream();
    CHECK(again == t && other != t);
    SYNC(again);
    CHECK_EQ(word[1], 0);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    OK(CALL(cuCtxSynchronize));
    CHECK_EQ(word[1], 1);
    CHECK_EQ(count("queued"), 0);
    /* A thread without a context can do nothing. */
    OK(CALL(cuCtxSetCurrent, NULL));
    CHECK_EQ(touch_add(s, a, 4, 1), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(CALL(cuStreamQuery, s), CUDA_ERROR_INVALID_CONTEXT);
    CHECK_EQ(CALL(cuMemAlloc_v2, &a, U64(64)), CUDA_ERROR_INVALID_CONTEXT);
}

static void vmm(bool no_access) {
    struct {
        int type, types;
        CUmemLocation location;
        void *win32;
        char rest[8];
    } prop = {.type = 1, .location = {1, 0}};
    struct {
        CUmemLocation location;
        int flags;
    } access = {{1, 0}, 3};
    const uint64_t M2 = 2 * MiB;
    size_t grain, before, after, total;
    OK(CALL(cuMemGetAllocationGranularity, &grain, &prop, 0));
    CHECK_EQ(grain, M2);
    CUmemGenericAllocationHandle h[2];
    CUdeviceptr va, vb;
    OK(CALL(cuMemGetInfo_v2, &before, &total));
    OK(CALL(cuMemCreate, &h[0], M2, &prop, U64(0)));
    OK(CALL(cuMemCreate, &h[1], M2, &prop, U64(0)));
    OK(CALL(cuMemGetInfo_v2, &after, &total));
    CHECK_EQ(before - after, 2 * M2);
    OK(CALL(cuMemAddressReserve, &va, 2 * M2, U64(0), U64(0), U64(0)));
    OK(CALL(cuMemMap, va, M2, U64(0), h[0], U64(0)));
    OK(CALL(cuMemMap, va + M2, M2, U64(0), h[1], U64(0)));
    CHECK_EQ(CALL(cuMemMap, va, M2, U64(0), h[1], U64(0)), CUDA_ERROR_INVALID_VALUE); /* taken */
    OK(CALL(cuMemSetAccess, va, 2 * M2, &access, U64(1)));
    OK(CALL(cuMemsetD32Async, va + M2 - 8, 0, U64(4), NULL));
    OK(touch_add(NULL, va + M2 - 8, 4, 3)); /* across the two */
    SYNC(NULL);
    CHECK(word_at(va + M2 - 4) == 3 && word_at(va + M2) == 3);
    CHECK_EQ(resident(va, 2 * M2), 2 * M2);
    /* The same memory at another address, after its first one is gone. */
    OK(CALL(cuMemUnmap, va + M2, M2));
    CHECK_EQ(CALL(cuMemUnmap, va + M2, M2), CUDA_ERROR_INVALID_VALUE);
    OK(CALL(cuMemAddressReserve, &vb, M2, U64(0), U64(0), U64(0)));
    OK(CALL(cuMemMap, vb, M2, U64(0), h[1], U64(0)));
    OK(CALL(cuMemSetAccess, vb, M2, &access, U64(1)));
    CHECK_EQ(word_at(vb + 4), 3);
    OK(CALL(cuMemRelease, h[1]));
    CHECK_EQ(CALL(cuMemRelease, h[1]), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(word_at(vb + 4), 3); /* released, still mapped */
    CHECK_EQ(CALL(cuMemAddressFree, vb, M2), CUDA_ERROR_INVALID_VALUE);
    OK(CALL(cuMemUnmap, vb, M2));
    OK(CALL(cuMemCreate, &h[1], M2, &prop, U64(0)));
    CHECK_EQ(h[1], 2); /* the handle comes back with its memory gone */
    OK(CALL(cuMemMap, vb, M2, U64(0), h[1], U64(0))); /* no access */
    OK(CALL(cuMemGetInfo_v2, &after, &total));
    CHECK_EQ(before - after, 2 * M2);
    CUstream s = new_stream();
    OK(touch_add(s, no_access ? vb : va, no_access ? 4 : M2 / 4 + 1, 1)); /* reaches into the unmapped half, or into that */
    CHECK_EQ(CALL(cuStreamSynchronize, s), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(CALL(cuMemUnmap, vb, M2));
    OK(CALL(cuMemRelease, h[1]));
    OK(CALL(cuMemAddressFree, vb, M2));
    OK(CALL(cuMemUnmap, va, M2));
    OK(CALL(cuMemRelease, h[0]));
    OK(CALL(cuMemAddressFree, va, 2 * M2));
    CHECK_EQ(count("physical_bytes"), 0);
}

/* STUB_FAIL=cuMemAlloc:2,cuMemAllocManaged */
static void fail(void) {
    CUdeviceptr p;
    OK(CALL(cuMemAlloc_v2, &p, U64(1024)));
    CHECK_EQ(CALL(cuMemAlloc_v2, &p, U64(1024)), CUDA_ERROR_OUT_OF_MEMORY);
    OK(CALL(cuMemAlloc_v2, &p, U64(1024)));
    for (int i = 0; i < 3; i++) CHECK_EQ(CALL(cuMemAllocManaged, &p, U64(1024), 1), CUDA_ERROR_OUT_OF_MEMORY);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CUdeviceptr p;
    CHECK_EQ(CALL(cuMemAlloc_v2, &p, U64(1024)), CUDA_ERROR_NOT_INITIALIZED);
    start();
    if (!strcmp(argv[1], "memory")) memory();
    else if (!strcmp(argv[1], "streams")) streams();
    else if (!strcmp(argv[1], "ended")) ended();
    else if (!strcmp(argv[1], "vmm")) vmm(false);
    else if (!strcmp(argv[1], "vmm no access")) vmm(true);
    else if (!strcmp(argv[1], "fail")) fail();
    else return 2;
    return 0;
}
