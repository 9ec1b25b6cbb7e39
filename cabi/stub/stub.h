/*
 * A test double of the CUDA driver: libcuda.so.1 without a GPU, behind the real
 * C ABI. It exists so that the hook and the engine can be run end to end, under
 * real LD_PRELOAD, on a machine that has no card. It is not a performance model
 * (cuda/sim is) and runs no device code.
 *
 * What is real: streams are worker threads, so waits, writes, events and the
 * order of work behave as on a device; kernels are C functions that really read
 * and write memory, so that a wrong move shows in the results; managed memory
 * has residency in 2 MiB blocks with faults, eviction in order of arrival, a
 * capacity, and discard that really destroys the contents.
 *
 * It is as unkind as the driver may be: what is destroyed is given out again at once
 * (streams while their work still runs, physical memory, functions), pinned memory is
 * never zeros, a thread without a context is refused, an error of work on the device
 * is every later call's, and copies and fills on the device do not wait.
 *
 * What is not: the legacy default stream is just one more stream; CPU accesses
 * are not seen (managed blocks stay where they were); copies do not move managed
 * blocks; graphs run their nodes in order of creation; there is one device; an
 * asynchronous copy from or to pageable memory does not wait.
 *
 * Environment, read at the first call:
 *   STUB_TOTAL_BYTES   device memory (default 8 GiB)
 *   STUB_FAIL          name[:n[+]][,name...]: the n-th call (with a +, and all after
 *                      it; without a number, every call) fails of cuMemAlloc,
 *                      cuMemAllocManaged, cuMemHostAlloc, cuMemHostRegister,
 *                      cuMemAddressReserve, cuMemCreate, cuMemMap, cuMemSetAccess,
 *                      cuMemUnmap, cuMemPrefetch (every form), cuMemcpyAsync (linear
 *                      forms), cuStreamWaitValue32, cuStreamWriteValue32 (either
 *                      width), cuModuleLoad (every form) or cuLaunchKernel (every
 *                      form). "copy" is a copy that fails when it runs, and its
 *                      stream with it; "flip" one of 1 MiB and more that arrives
 *                      with a wrong byte.
 *   STUB_ABORT=1       an access to unmapped memory ends the process and names it
 *   STUB_SCRIBBLE=1    new physical memory (cuMemCreate) is full of 0xa5, and that of cuMemAlloc of 0x5a, as that of cuMemHostAlloc always is
 *   STUB_LOOKUP_US     asking for a function's parameters takes so many microseconds
 *   STUB_PIN_US        cuMemHostAlloc takes so many microseconds
 *   STUB_COPY_MBPS     copies take their time: that many MB/s
 *   STUB_API_LOCK=1    one lock around all calls that queue work or change mappings, held
 *                      while a synchronous copy or a full queue waits, as libcuda has it
 *   STUB_CONCURRENT_MANAGED=0   as under WSL
 *   STUB_VMM=0                  no virtual memory management
 *   STUB_EXPORT=0               no file descriptors of physical memory
 *   STUB_QUEUE_DEPTH   operations a stream holds before a call blocks (default 1024)
 *
 * The build variable STUB_VERSION (default 13000) is the CUDA version it
 * implements: functions introduced later are not exported and not found.
 */
#ifndef PENSTOCK_STUB_H
#define PENSTOCK_STUB_H
#include <stddef.h>
#include <stdint.h>

#define STUB_BLOCK (2ul << 20)

/* Bytes of [p, p+n) that are on the device: whole for plain device memory, by block
 * for managed memory; discarded blocks are not counted. */
uint64_t stub_resident_bytes(uint64_t p, size_t n);

/* Bytes of device memory that hold something: what cuMemGetInfo counts as used, without
 * discarded blocks, which (as on the real driver) stay until the room is needed. */
uint64_t stub_device_bytes(void);

/* A counter by name, 0 when unknown. launches, graph_launches, faults (blocks),
 * h2d_bytes, d2h_bytes (moved by faults, prefetch, eviction), evictions (blocks),
 * prefetches (calls), discards (calls), wait_values, write_values, copies,
 * illegal (touches of unmapped memory), param_queries, live_allocations, queued,
 * device_peak_bytes (the most device memory in use at any time), physical_bytes and
 * physical_peak_bytes (device memory of cuMemCreate), host_physical_bytes (its host
 * memory), registered_bytes (cuMemHostRegister). Resetting makes the present the peak. */
uint64_t stub_count(const char *name);
void stub_reset_counts(void);

/* Replaces STUB_FAIL, and counts calls from here on. */
void stub_fail(const char *spec);

/* Has a node of a graph be told as one of another type: cuGraphNodeGetType answers that. A copy
 * can be told as a batch of one (CU_GRAPH_NODE_TYPE_MEMCPY_BATCH), which cuGraphNodeGetParams then describes. */
void stub_tell_type(struct CUgraphNode_st *node, int type);

/* A kernel launch as its C function sees it. */
typedef struct stub_launch {
    unsigned grid[3], block[3];
    int cooperative;
    unsigned nparams;
    const unsigned char *params; /* the parameter buffer */
    const size_t *offsets;
    void *user;
} stub_launch;
/* The value of parameter i. */
#define STUB_PARAM(l, type, i) (*(const type *)((l)->params + (l)->offsets[i]))

typedef void (*stub_kernel_fn)(const stub_launch *);

/* For kernel functions: makes memory accessible to the device as a kernel's
 * access would, faulting managed blocks in. 0, or -1 when the address is not
 * mapped; the stream then fails with CUDA_ERROR_ILLEGAL_ADDRESS. */
int stub_touch(uint64_t p, size_t n);

/* Adds a kernel that every module has. sizes has nparams entries; each parameter
 * is aligned to the largest power of two that divides its size, at most 8. */
void stub_register_kernel(const char *name, stub_kernel_fn fn, void *user, unsigned nparams, const size_t *sizes);

/* The builtin kernels, by name and parameters:
 *   empty()
 *   touch_add(u32 *p, u64 n, u32 inc)           p[i] += inc
 *   vec_add(u32 *dst, u32 *a, u32 *b, u64 n)    dst[i] = a[i] + b[i]
 *   multi_add(struct {u32 count, inc; u32 *p[48]; u64 n[48]}) as touch_add for each; a by-value struct of pointers
 *   opaque_add(u32 *p, u64 n, u32 inc)          touch_add whose parameter layout the driver does not tell
 *   slow_add(u32 *p, u64 n, u32 inc, u64 us)    touch_add that rests in the middle
 *   table_add(u32 **table, u64 count, u64 n, u32 inc)  touch_add of n words at each address of a table
 *   make_table(u32 **table, u64 count, u64 first, u64 stride)  writes such a table
 *   texture_add(u64 texture, u32 *dst, u64 n)    dst[i] += what is read through a texture object
 *   spin(u64 microseconds)
 *   penstock_checksum, penstock_scan, penstock_collect  Penstock's own, with the parameters of cuda/kernels
 */
#endif
