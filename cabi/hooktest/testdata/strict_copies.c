/*
 * Strict mode: a copy that waits for its stream inside the driver enters it only
 * when the stream is idle. The stub's own copies do not hold a lock, so the
 * tests look at whether the copy was put on its stream while that was held.
 */
#include "strict.h"

enum { BIG = 128 << 10, LIMIT = 64 << 10 };
static CUdeviceptr A, B;
static char pageable[BIG], *pinned;
static uint32_t *held;
static CUstream s;

static CUresult dtoh(job *j) { return CALL(cuMemcpyDtoHAsync_v2, j->host, A, U64(j->bytes), s); }
static CUresult dtoh_on_its_stream(job *j) { return CALL(cuMemcpyDtoHAsync_v2, j->host, A, U64(j->bytes), j->s); }
static CUresult htod(job *j) { return CALL(cuMemcpyHtoDAsync_v2, A, j->host, U64(j->bytes), s); }
static CUresult to_any(job *j) { return CALL(cuMemcpyAsync, U64(j->host), A, U64(j->bytes), s); }
static CUresult from_any(job *j) { return CALL(cuMemcpyAsync, A, U64(j->host), U64(j->bytes), s); }
static CUresult dtod(job *j) { return CALL(cuMemcpyDtoDAsync_v2, B, A, U64(j->bytes), s); }
static CUresult any_to_any(job *j) { return CALL(cuMemcpyAsync, B, A, U64(j->bytes), s); }
static CUresult from_any_own(job *j) { return CALL(cuMemcpyHtoDAsync_v2_ptsz, A, j->host, U64(j->bytes), s); }

static CUDA_MEMCPY2D rows(job *j) {
    return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = A, .srcPitch = j->bytes / 4, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = j->host, .dstPitch = j->bytes / 4, .WidthInBytes = j->bytes / 4, .Height = 4};
}
static CUDA_MEMCPY3D box(job *j) {
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = j->host, .srcPitch = j->bytes / 4, .srcHeight = 2, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = A, .dstPitch = j->bytes / 4, .dstHeight = 2, .WidthInBytes = j->bytes / 4, .Height = 2, .Depth = 2};
}
static CUresult async_2d(job *j) {
    CUDA_MEMCPY2D c = rows(j);
    return CALL(cuMemcpy2DAsync_v2, &c, s);
}
static CUresult async_3d(job *j) {
    CUDA_MEMCPY3D c = box(j);
    return CALL(cuMemcpy3DAsync_v2, &c, s);
}
static CUresult batch(job *j) {
    CUdeviceptr dsts[2] = {B, A}, srcs[2] = {A, U64(j->host)};
    size_t sizes[2] = {16, j->bytes}, idx = 0;
    CUmemcpyAttributes attr = {.srcAccessOrder = 1};
    return CALL(cuMemcpyBatchAsync_v2, dsts, srcs, sizes, U64(2), &attr, &idx, U64(1), s);
}
static CUresult batch_3d(job *j) {
    CUDA_MEMCPY3D_BATCH_OP op = {.src = {.type = 1, .op.ptr.ptr = A}, .dst = {.type = 1, .op.ptr.ptr = U64(j->host)}, .extent = {j->bytes, 1, 1}};
    return CALL(cuMemcpy3DBatchAsync_v2, U64(1), &op, U64(0), s);
}
static CUresult fill(job *j) { return CALL(cuMemsetD8Async, A, 1, U64(j->bytes), s); }

static CUresult sync_dtoh(job *j) { return CALL(cuMemcpyDtoH_v2, j->host, A, U64(j->bytes)); }
static CUresult sync_htod(job *j) { return CALL(cuMemcpyHtoD_v2, A, j->host, U64(j->bytes)); }
static CUresult sync_any(job *j) { return CALL(cuMemcpy, U64(j->host), A, U64(j->bytes)); }
static CUresult sync_2d(job *j) {
    CUDA_MEMCPY2D c = rows(j);
    return CALL(cuMemcpy2D_v2, &c);
}
static CUresult sync_3d(job *j) {
    CUDA_MEMCPY3D c = box(j);
    return CALL(cuMemcpy3D_v2, &c);
}
/* In which order a batch may read its sources. */
static int src_order;
static CUresult ordered(job *j) {
    CUdeviceptr dst = B, src = A;
    size_t idx = 0;
    CUmemcpyAttributes attr = {.srcAccessOrder = src_order};
    return CALL(cuMemcpyBatchAsync_v2, &dst, &src, &j->bytes, U64(1), &attr, &idx, U64(1), s);
}
static CUresult ordered_alone(job *j) {
    CUmemcpyAttributes attr = {.srcAccessOrder = src_order};
    return CALL(cuMemcpyWithAttributesAsync, B, A, U64(j->bytes), &attr, s);
}
static CUresult ordered_3d(job *j) {
    CUDA_MEMCPY3D_BATCH_OP op = {.src = {.type = 1, .op.ptr.ptr = A}, .dst = {.type = 1, .op.ptr.ptr = B}, .extent = {j->bytes, 1, 1}, .srcAccessOrder = src_order};
    return CALL(cuMemcpy3DBatchAsync_v2, U64(1), &op, U64(0), s);
}

/* A source that is arriving: in the order of the stream it is waited for by that, else before the call. */
static void check_order(CUresult (*call)(job *)) {
    static uint32_t ticket = 10;
    for (src_order = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM; src_order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY; src_order++) {
        bool early = src_order != CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        arrive(ticket);
        set_arriving(1, ++ticket);
        job j = {.call = call, .bytes = 16};
        begin_job(&j);
        await();
        if (early)
            waits(&j);
        else
            EVENTUALLY(atomic_load(&j.done)); /* it is queued */
        arrive(ticket);
        OK(end_job(&j));
        SYNC(s);
    }
    set_state(1, PSK_SLOT_RESIDENT);
}

/* A table of addresses in every form of one row, to memory that nobody names. */
static CUdeviceptr global;
static uint64_t table[4];
static CUresult table_2d(CUstream on) {
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = table, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = global, .WidthInBytes = sizeof table, .Height = 1};
    return CALL(cuMemcpy2DAsync_v2, &c, on);
}
static CUresult table_3d(CUstream on) {
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = table, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = global, .WidthInBytes = sizeof table, .Height = 1, .Depth = 1};
    return CALL(cuMemcpy3DAsync_v2, &c, on);
}
static CUresult table_batch(CUstream on) {
    CUdeviceptr dsts[2] = {global + 1024, global}, srcs[2] = {global + 2048, U64(table)};
    size_t sizes[2] = {8, sizeof table}, idx = 0;
    CUmemcpyAttributes attr = {.srcAccessOrder = 1};
    return CALL(cuMemcpyBatchAsync_v2, dsts, srcs, sizes, U64(2), &attr, &idx, U64(1), on);
}
static CUresult table_batch_3d(CUstream on) {
    CUDA_MEMCPY3D_BATCH_OP op = {.src = {.type = 1, .op.ptr.ptr = U64(table)}, .dst = {.type = 1, .op.ptr.ptr = global}, .extent = {sizeof table, 1, 1}, .srcAccessOrder = 1};
    return CALL(cuMemcpy3DBatchAsync_v2, U64(1), &op, U64(0), on);
}
static CUresult table_attributes(CUstream on) {
    CUmemcpyAttributes attr = {.srcAccessOrder = 1};
    return CALL(cuMemcpyWithAttributesAsync, global, U64(table), U64(sizeof table), &attr, on);
}
static CUresult table_fabric(CUstream on) {
    CUDA_FABRIC_COPY_BATCH_OP op = {.src = {.type = 1, .op.ptr.ptr = U64(table)}, .dst = {.type = 1, .op.ptr.ptr = global}, .size = sizeof table};
    return CALL(cuFabricCpyBatchAsync, U64(1), &op, U64(0), on);
}
static void check_tables(void) {
    CUresult (*const forms[])(CUstream) = {table_2d, table_3d, table_batch, table_batch_3d, table_attributes, table_fabric};
    OK(CALL(cuMemAlloc_v2, &global, U64(4096)));
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        table[2] = A + 64;
        OK(forms[i](s));
        record *r = EXPECT(PSK_REC_COPY, 1);
        CHECK(r->flags & PSK_FLAG_KEEP);
        table[2] = 5;
        OK(forms[i](s));
        CHECK_EQ(must_take()->flags & PSK_FLAG_KEEP, 0);
        SYNC(s);
    }
    OK(CALL(cuMemFree_v2, global));
    /* Over a fabric, an endpoint's number is no address. */
    CUDA_FABRIC_COPY_BATCH_OP op[2] = {{.src = {.type = 1, .op.ptr.ptr = A}, .dst = {.type = 1, .op.ptr.ptr = B}, .size = 8}, {.src = {.type = CU_FABRIC_COPY_OPERAND_TYPE_LOGICAL_ENDPOINT, .op.le = {1, A}}, .dst = {.type = 1, .op.ptr.ptr = B}, .size = 8}};
    OK(CALL(cuFabricCpyBatchAsync, U64(1), op, U64(0), s));
    EXPECT(PSK_REC_COPY, 2, 1);
    CHECK_EQ(CALL(cuFabricCpyBatchAsync, U64(1), op + 1, U64(0), s), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT(PSK_REC_COPY, 2);
    SYNC(s);
}

/* Between device memory the driver does not wait (the stub does). */
static CUresult sync_dtod(job *j) { return CALL(cuMemcpyDtoD_v2, B, A, U64(j->bytes)); }
static CUresult sync_fill(job *j) { return CALL(cuMemsetD8_v2, A, 1, U64(j->bytes)); }

/* The stream is held; does the copy stay out of the driver until it is released? */
static void check(int line, CUstream on, CUresult (*call)(job *), void *host, size_t bytes, bool stays_out) {
    hold(on, held);
    EVENTUALLY(count("queued") == 1); /* what came before has run, on other streams too */
    uint64_t queued = count("queued"), copies = count("copies");
    job j = {.call = call, .host = host, .bytes = bytes};
    begin_job(&j);
    await();
    if (stays_out)
        waits(&j);
    else
        EVENTUALLY(count("queued") > queued);
    if ((count("queued") == queued) != stays_out) {
        fprintf(stderr, "%s:%d: %s the driver while its stream is busy\n", __FILE__, line, stays_out ? "enters" : "stays out of");
        exit(1);
    }
    release(held);
    OK(end_job(&j));
    SYNC(on);
    CHECK(count("copies") > copies);
}
#define STAYS_OUT(on, call, host, bytes) check(__LINE__, on, call, host, bytes, true)
#define GOES_IN(on, call, host, bytes) check(__LINE__, on, call, host, bytes, false)

int main(void) {
    start();
    attach(PSK_MODE_STRICT);
    A = managed(2 * MiB), B = managed(2 * MiB);
    own(1, A, 2 * MiB, PSK_SLOT_RESIDENT);
    own(2, B, 2 * MiB, PSK_SLOT_RESIDENT);
    OK(CALL(cuMemHostAlloc, &pinned, U64(BIG), 0));
    OK(CALL(cuMemHostAlloc, &held, U64(64), 0));
    s = new_stream();
    S->progress_every = 1000;

    STAYS_OUT(s, dtoh, pageable, 16);
    GOES_IN(s, dtoh, pinned, BIG);
    STAYS_OUT(s, htod, pageable, LIMIT + 16);
    STAYS_OUT(s, from_any_own, pageable, LIMIT + 16);
    GOES_IN(s, htod, pageable, LIMIT);
    GOES_IN(s, htod, pinned, BIG);
    STAYS_OUT(s, to_any, pageable, 16);
    GOES_IN(s, to_any, pinned, 16);
    STAYS_OUT(s, from_any, pageable, LIMIT + 16);
    GOES_IN(s, from_any, pageable, LIMIT);
    GOES_IN(s, dtod, NULL, BIG);
    GOES_IN(s, any_to_any, NULL, BIG);
    STAYS_OUT(s, async_2d, pageable, 64);
    GOES_IN(s, async_2d, pinned, 64);
    STAYS_OUT(s, async_3d, pageable, LIMIT + 64);
    GOES_IN(s, async_3d, pageable, LIMIT);
    STAYS_OUT(s, batch, pageable, LIMIT + 16);
    GOES_IN(s, batch, pageable, LIMIT);
    STAYS_OUT(s, batch_3d, pageable, 16);
    GOES_IN(s, batch_3d, pinned, 16);
    GOES_IN(s, fill, NULL, BIG);

    STAYS_OUT(NULL, sync_dtoh, pinned, 16);
    STAYS_OUT(NULL, sync_htod, pinned, 16);
    STAYS_OUT(NULL, sync_any, pinned, 16);
    STAYS_OUT(NULL, sync_2d, pinned, 64);
    STAYS_OUT(NULL, sync_3d, pinned, 64);
    GOES_IN(NULL, sync_dtod, NULL, 16);
    GOES_IN(NULL, sync_fill, NULL, 16);

    /* A copy in that is under way is waited for outside as well. */
    arrive(1);
    set_arriving(1, 2);
    uint64_t copies = count("copies"), queued = count("queued");
    job j = {.call = sync_dtoh, .host = pinned, .bytes = 16};
    begin_job(&j);
    await();
    waits(&j);
    CHECK_EQ(count("copies"), copies);
    CHECK(count("queued") <= queued + 1); /* the stream's wait, and no copy */
    arrive(2);
    OK(end_job(&j));
    SYNC(NULL); /* its progress write */
    set_state(1, PSK_SLOT_RESIDENT);

    check_order(ordered);
    check_order(ordered_alone);
    check_order(ordered_3d);
    check_tables();

    /* While another stream captures, the capture survives it. A captured copy does not run, but its memory is there while
     * the driver makes a node of it. */
    CUstream c = new_stream();
    CUgraph g;
    OK(CALL(cuStreamBeginCapture_v2, c, 2));
    STAYS_OUT(s, dtoh, pageable, 16);
    set_state(1, PSK_SLOT_ABSENT);
    job captured = {.call = dtoh_on_its_stream, .s = c, .host = pageable, .bytes = 16};
    begin_job(&captured);
    record *r = await();
    CHECK(r->kind == PSK_REC_STAY && !r->flags && r->n == 1 && r->slots[0] == 1);
    waits(&captured);
    set_state(1, PSK_SLOT_RESIDENT);
    OK(end_job(&captured));
    OK(CALL(cuStreamEndCapture, c, &g));
    none_left();
    return 0;
}
