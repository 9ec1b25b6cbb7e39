/* Copies and fills: the slots they name, destination first, and that the bytes still arrive. */
#include "engine.h"

enum { N = 256 };
static CUdeviceptr A, B;  /* slots 1, 2 */
static uint32_t host[N];
static CUstream s;

static void reset(void) {
    for (int i = 0; i < N; i++) {
        ((volatile uint32_t *)A)[i] = 100 + (uint32_t)i;
        ((volatile uint32_t *)B)[i] = 0;
        host[i] = 7 + (uint32_t)i;
    }
}

static void done(void) {
    SYNC(s);
    SYNC(NULL);
    SYNC(CU_STREAM_PER_THREAD);
}

static uint16_t expect(uint32_t id, int has_dst, uint32_t n, uint32_t first, uint32_t second) {
    record *r = must_take();
    CHECK_EQ(r->kind, PSK_REC_COPY);
    CHECK_EQ(r->id, id);
    CHECK_EQ(r->flags, has_dst ? PSK_FLAG_HAS_DST : 0);
    CHECK_EQ(r->n, n);
    if (n > 0) CHECK_EQ(r->slots[0], first);
    if (n > 1) CHECK_EQ(r->slots[1], second);
    done();
    return r->stream;
}

static void check_words(CUdeviceptr p, uint32_t from) {
    for (uint32_t i = 0; i < N; i++) CHECK_EQ(((volatile uint32_t *)p)[i], from + i);
    reset();
}

#define BYTES U64(N * 4)

static void linear(void) {
    unsigned legacy, own, mine;
    OK(CALL(cuMemcpyHtoD_v2, B, host, BYTES)), legacy = expect(PSK_COPY_H2D, 1, 1, 2, 0), check_words(B, 7);
    OK(CALL(cuMemcpyHtoD_v2_ptds, B, host, BYTES)), own = expect(PSK_COPY_H2D, 1, 1, 2, 0), check_words(B, 7);
    OK(CALL(cuMemcpyHtoDAsync_v2, B, host, BYTES, s)), mine = expect(PSK_COPY_H2D, 1, 1, 2, 0), check_words(B, 7);
    CHECK(legacy == 0 && own != 0 && mine != 0 && own != mine);
    OK(CALL(cuMemcpyHtoDAsync_v2_ptsz, B, host, BYTES, NULL)), CHECK_EQ(expect(PSK_COPY_H2D, 1, 1, 2, 0), own), check_words(B, 7);
    OK(CALL(cuMemcpyDtoH_v2, host, A, BYTES)), expect(PSK_COPY_D2H, 0, 1, 1, 0), CHECK_EQ(host[5], 105), reset();
    OK(CALL(cuMemcpyDtoH_v2_ptds, host, A, BYTES)), expect(PSK_COPY_D2H, 0, 1, 1, 0), CHECK_EQ(host[5], 105), reset();
    OK(CALL(cuMemcpyDtoHAsync_v2, host, A, BYTES, s)), expect(PSK_COPY_D2H, 0, 1, 1, 0), CHECK_EQ(host[5], 105), reset();
    OK(CALL(cuMemcpyDtoHAsync_v2_ptsz, host, A, BYTES, s)), expect(PSK_COPY_D2H, 0, 1, 1, 0), CHECK_EQ(host[5], 105), reset();
    OK(CALL(cuMemcpyDtoD_v2, B, A, BYTES)), expect(PSK_COPY_D2D, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyDtoD_v2_ptds, B, A, BYTES)), expect(PSK_COPY_D2D, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyDtoDAsync_v2, B, A, BYTES, s)), expect(PSK_COPY_D2D, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyDtoDAsync_v2_ptsz, B, A, BYTES, s)), expect(PSK_COPY_D2D, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpy, B, A, BYTES)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpy_ptds, B, A, BYTES)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyAsync, B, A, BYTES, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyAsync_ptsz, B, A, BYTES, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyPeer, B, NULL, A, NULL, BYTES)), expect(PSK_COPY_D2D, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyPeer_ptds, B, NULL, A, NULL, BYTES)), expect(PSK_COPY_D2D, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyPeerAsync, B, NULL, A, NULL, BYTES, s)), expect(PSK_COPY_D2D, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyPeerAsync_ptsz, B, NULL, A, NULL, BYTES, s)), expect(PSK_COPY_D2D, 1, 2, 2, 1), check_words(B, 100);
    /* Within one allocation: one slot, which is the destination. */
    OK(CALL(cuMemcpyDtoD_v2, A + 4096, A, BYTES)), expect(PSK_COPY_D2D, 1, 1, 1, 0);
    /* Host to host, named in full by cuMemcpy: recorded, with nothing of ours. */
    uint32_t to[N];
    OK(CALL(cuMemcpy, U64(to), U64(host), BYTES)), expect(PSK_COPY_UNKNOWN, 0, 0, 0, 0), CHECK_EQ(to[1], 8);
    /* Arrays: the linear side is ours; the stub has no arrays, and its refusal passes. */
    CHECK_EQ(CALL(cuMemcpyDtoA_v2, NULL, U64(0), A, BYTES), CUDA_ERROR_NOT_SUPPORTED), expect(PSK_COPY_D2D, 0, 1, 1, 0);
    CHECK_EQ(CALL(cuMemcpyDtoA_v2_ptds, NULL, U64(0), A, BYTES), CUDA_ERROR_NOT_SUPPORTED), expect(PSK_COPY_D2D, 0, 1, 1, 0);
    CHECK_EQ(CALL(cuMemcpyAtoD_v2, A, NULL, U64(0), BYTES), CUDA_ERROR_NOT_SUPPORTED), expect(PSK_COPY_D2D, 1, 1, 1, 0);
    CHECK_EQ(CALL(cuMemcpyAtoD_v2_ptds, A, NULL, U64(0), BYTES), CUDA_ERROR_NOT_SUPPORTED), expect(PSK_COPY_D2D, 1, 1, 1, 0);
}

/* Both structures start each end at an offset that lies in the block after the base address. */
static void structures(void) {
    CUDA_MEMCPY2D to_host = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = A - 3 * 64 - 16, .srcPitch = 64, .srcY = 3, .srcXInBytes = 16, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = host, .dstPitch = 16, .WidthInBytes = 16, .Height = 4};
    static const char *const sync_2d[] = {"cuMemcpy2D_v2", "cuMemcpy2D_v2_ptds", "cuMemcpy2DUnaligned_v2", "cuMemcpy2DUnaligned_v2_ptds"};
    for (int i = 0; i < 4; i++) {
        OK(((CUresult(*)(void *))driver(sync_2d[i]))(&to_host)), expect(PSK_COPY_D2H, 0, 1, 1, 0);
        CHECK(host[0] == 100 && host[4] == 116 && host[15] == 151);
        reset();
    }
    OK(CALL(cuMemcpy2DAsync_v2, &to_host, s)), expect(PSK_COPY_D2H, 0, 1, 1, 0), CHECK_EQ(host[4], 116), reset();
    OK(CALL(cuMemcpy2DAsync_v2_ptsz, &to_host, s)), expect(PSK_COPY_D2H, 0, 1, 1, 0), CHECK_EQ(host[4], 116), reset();
    CUDA_MEMCPY2D unified = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = U64(host), .dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = B, .WidthInBytes = BYTES, .Height = 1};
    OK(CALL(cuMemcpy2D_v2, &unified)), expect(PSK_COPY_UNKNOWN, 1, 1, 2, 0), check_words(B, 7);

    CUDA_MEMCPY2D from_host = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = N, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = B - 2 * N - 8, .dstPitch = N, .dstY = 2, .dstXInBytes = 8, .WidthInBytes = N, .Height = 4};
    OK(CALL(cuMemcpy2D_v2, &from_host)), expect(PSK_COPY_H2D, 1, 1, 2, 0), check_words(B, 7);

    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .srcPitch = 16, .srcHeight = 2, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = B - 16 * 2, .dstPitch = 16, .dstHeight = 2, .dstZ = 1, .WidthInBytes = 16, .Height = 2, .Depth = N / 8};
    static const char *const sync_3d[] = {"cuMemcpy3D_v2", "cuMemcpy3D_v2_ptds", "cuMemcpy3DPeer", "cuMemcpy3DPeer_ptds"};
    static const char *const async_3d[] = {"cuMemcpy3DAsync_v2", "cuMemcpy3DAsync_v2_ptsz", "cuMemcpy3DPeerAsync", "cuMemcpy3DPeerAsync_ptsz"};
    for (int i = 0; i < 4; i++) {
        OK(((CUresult(*)(void *))driver(sync_3d[i]))(&c)), expect(PSK_COPY_H2D, 1, 1, 2, 0), check_words(B, 7);
        OK(((CUresult(*)(void *, CUstream))driver(async_3d[i]))(&c, s)), expect(PSK_COPY_H2D, 1, 1, 2, 0), check_words(B, 7);
    }
}

static void batches(void) {
    CUdeviceptr dsts[2] = {B, B + 512}, srcs[2] = {A, U64(host) + 512};
    size_t sizes[2] = {512, 512}, idx = 0, fail = 5;
    CUmemcpyAttributes attr = {.srcAccessOrder = 1};
    uint64_t n = 2, one = 1;
    OK(CALL(cuMemcpyBatchAsync, dsts, srcs, sizes, n, &attr, &idx, one, &fail, s)), expect(PSK_COPY_UNKNOWN, 0, 2, 2, 1);
    CHECK(word_at(B) == 100 && word_at(B + 512) == 7 + 128 && fail == SIZE_MAX), reset();
    OK(CALL(cuMemcpyBatchAsync_ptsz, dsts, srcs, sizes, n, &attr, &idx, one, &fail, s)), expect(PSK_COPY_UNKNOWN, 0, 2, 2, 1);
    CHECK_EQ(word_at(B), 100), reset();
    OK(CALL(cuMemcpyBatchAsync_v2, dsts, srcs, sizes, n, &attr, &idx, one, s)), expect(PSK_COPY_UNKNOWN, 0, 2, 2, 1);
    CHECK_EQ(word_at(B), 100), reset();
    OK(CALL(cuMemcpyBatchAsync_v2_ptsz, dsts, srcs, sizes, one, &attr, &idx, one, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1);
    CHECK_EQ(word_at(B), 100), reset();
    CUDA_MEMCPY3D_BATCH_OP op = {.src = {.type = 1, .op.ptr.ptr = A}, .dst = {.type = 1, .op.ptr.ptr = B}, .extent = {N * 4, 1, 1}};
    uint64_t flags = 0;
    OK(CALL(cuMemcpy3DBatchAsync, one, &op, &fail, flags, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpy3DBatchAsync_ptsz, one, &op, &fail, flags, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpy3DBatchAsync_v2, one, &op, flags, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpy3DBatchAsync_v2_ptsz, one, &op, flags, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpy3DWithAttributesAsync, &op, flags, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpy3DWithAttributesAsync_ptsz, &op, flags, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    uint64_t bytes = N * 4;
    OK(CALL(cuMemcpyWithAttributesAsync, B, A, bytes, &attr, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    OK(CALL(cuMemcpyWithAttributesAsync_ptsz, B, A, bytes, &attr, s)), expect(PSK_COPY_UNKNOWN, 1, 2, 2, 1), check_words(B, 100);
    uint32_t out = 0;
    CUmemDecompressParams d = {.srcNumBytes = N * 4, .dstNumBytes = N * 4, .dstActBytes = &out, .src = (void *)A, .dst = (void *)B};
    OK(CALL(cuMemBatchDecompressAsync, &d, one, 0, &fail, s)), expect(PSK_COPY_UNKNOWN, 0, 2, 2, 1), CHECK_EQ(out, N * 4), check_words(B, 100);
    d.dstActBytes = (uint32_t *)B; /* in device memory */
    OK(CALL(cuMemBatchDecompressAsync_ptsz, &d, one, 0, &fail, s)), expect(PSK_COPY_UNKNOWN, 0, 2, 2, 1), CHECK_EQ(word_at(B), N * 4), reset();
}

static void fills(void) {
    unsigned v = 0x5a5a5a5a;
    uint64_t n8 = N * 4, n16 = N * 2, n32 = N, rows = 4, pitch = N, w8 = N, w16 = N / 2, w32 = N / 4;
#define FILLED CHECK(word_at(B) == v && word_at(B + (N - 1) * 4) == v && word_at(B + N * 4) == 0), reset()
#define FILL(name, n) \
    OK(CALL(name##_v2, B, v & ((2u << (8 * N * 4 / (n) - 1)) - 1), n)), expect(PSK_COPY_FILL, 1, 1, 2, 0), FILLED; \
    OK(CALL(name##_v2_ptds, B, v & ((2u << (8 * N * 4 / (n) - 1)) - 1), n)), expect(PSK_COPY_FILL, 1, 1, 2, 0), FILLED; \
    OK(CALL(name##Async, B, v & ((2u << (8 * N * 4 / (n) - 1)) - 1), n, s)), expect(PSK_COPY_FILL, 1, 1, 2, 0), FILLED; \
    OK(CALL(name##Async_ptsz, B, v & ((2u << (8 * N * 4 / (n) - 1)) - 1), n, s)), expect(PSK_COPY_FILL, 1, 1, 2, 0), FILLED
#define FILL_2D(name, bits, w) \
    OK(CALL(name##_v2, B, pitch, v & ((2u << (bits - 1)) - 1), w, rows)), expect(PSK_COPY_FILL, 1, 1, 2, 0), FILLED; \
    OK(CALL(name##_v2_ptds, B, pitch, v & ((2u << (bits - 1)) - 1), w, rows)), expect(PSK_COPY_FILL, 1, 1, 2, 0), FILLED; \
    OK(CALL(name##Async, B, pitch, v & ((2u << (bits - 1)) - 1), w, rows, s)), expect(PSK_COPY_FILL, 1, 1, 2, 0), FILLED; \
    OK(CALL(name##Async_ptsz, B, pitch, v & ((2u << (bits - 1)) - 1), w, rows, s)), expect(PSK_COPY_FILL, 1, 1, 2, 0), FILLED
    FILL(cuMemsetD8, n8);
    FILL(cuMemsetD16, n16);
    FILL(cuMemsetD32, n32);
    FILL_2D(cuMemsetD2D8, 8, w8);
    FILL_2D(cuMemsetD2D16, 16, w16);
    FILL_2D(cuMemsetD2D32, 32, w32);
}

int main(void) {
    start();
    attach(PSK_MODE_OBSERVE);
    A = managed(2 * MiB), B = managed(2 * MiB);
    own(1, A, 2 * MiB, PSK_SLOT_RESIDENT);
    own(2, B, 2 * MiB, PSK_SLOT_RESIDENT);
    s = new_stream();
    reset();
    linear();
    structures();
    batches();
    fills();
    none_left();
    CHECK(S->copies > 60);
    CHECK_EQ(S->launches, 0);
    return 0;
}
