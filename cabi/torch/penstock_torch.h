/*
 * libpenstock_torch.so: what PyTorch's pluggable allocator needs on top of
 * penstock.h. PyTorch calls C++ functions and expects C++ exceptions; the
 * engine speaks C and returns NULL. This library stands between the two.
 *
 * It is built without PyTorch or CUDA headers: what it needs of PyTorch (the
 * exception type, the allocator object's virtual functions) is looked up by
 * symbol name in the process, so one binary serves several versions.
 *
 * The engine is opened by the first allocation, not when this library is loaded:
 * processes that import torch and never touch the GPU (DataLoader workers,
 * launchers) stay free of the Go runtime and may fork at will.
 */
#ifndef PENSTOCK_TORCH_H
#define PENSTOCK_TORCH_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <sys/types.h>
#include <utility>

struct CUstream_st;
using CudaStream = CUstream_st *;
/* c10::MempoolId_t */
using PoolId = std::pair<unsigned long long, unsigned long long>;

#pragma GCC visibility push(default)
extern "C" {
/* Says where libpenstock.so is, and whether c10's exceptions have the layout that is known here: without, out of
 * memory is a std::runtime_error. Opens nothing. Returns NULL, or what is wrong (valid until the next call). */
const char *penstock_torch_setup(const char *engine_path, int known_exceptions);
/* Opens the engine and starts it on the device, as the first allocation would.
 * Returns NULL, or what is wrong (valid until the next call on this thread). */
const char *penstock_torch_start(int device);
/* 1 once an allocation has opened the engine in this process, else 0. */
int penstock_torch_started(void);
/* The dlopen handle of the engine, NULL before it is opened and in a forked child. */
void *penstock_torch_engine(void);
/* The device of the first allocation, or -1. */
int penstock_torch_device(void);
/* Closes the engine (the verdict), once. Nothing to do when it never started. */
void penstock_torch_close(void);

/* The allocator pair. malloc throws c10::OutOfMemoryError instead of returning NULL. */
void *penstock_torch_malloc(ssize_t size, int device, CudaStream stream);
void penstock_torch_free(void *ptr, ssize_t size, int device, CudaStream stream);

/* For the setters of torch._C._cuda_CUDAAllocator; they take addresses. */
void penstock_torch_record_stream(void *ptr, CudaStream stream);
void penstock_torch_empty_cache(void);
void penstock_torch_set_memory_fraction(double fraction, int device);
void penstock_torch_begin_pool(int device, PoolId id, std::function<bool(CudaStream)> filter);
void penstock_torch_end_pool(int device, PoolId id);
void penstock_torch_release_pool(int device, PoolId id);

/* The fraction last set for a device; 1 when none was. */
double penstock_torch_memory_fraction(int device);

/* Counters of requests, exact to the byte: 24 numbers, for {all, small, large}
 * for {count, bytes}: current, peak, allocated in total, freed in total.
 * "small" is up to 1 MiB, as PyTorch's own allocator draws the line. */
void penstock_torch_counters(int64_t out[24]);
void penstock_torch_reset_peak(void);
void penstock_torch_reset_accumulated(void);

/* Records what is allocated and freed from now on. stacks says of what the Python stack is taken: 1 nothing, 2 live
 * allocations, 3 the history of allocations too, 4 that of frees too; 0 ends the recording, and what was recorded is
 * forgotten. The history has max_entries at most, the newest, and none of the actions whose bits are set in skipped: alloc,
 * free_requested, free_completed, oom, snapshot, annotate, from the lowest; more bits are the caller's. clear: it begins anew. */
void penstock_torch_record_history(int stacks, int64_t max_entries, unsigned skipped, int clear);
/* 1 while that records, else 0. */
int penstock_torch_history_enabled(void);
/* Records that somebody has looked while so many bytes were allocated. */
void penstock_torch_note_snapshot(int device, int64_t bytes);
/* What is recorded of the calling thread has this text from now on. */
void penstock_torch_set_metadata(const char *text);
/* Records what the program says of a live allocation. */
void penstock_torch_annotate(uint64_t address, int device, const char *text);
/* Writes what is recorded as a JSON object, NUL-terminated; returns as penstock_stats. max_entries and skipped: as they were
 * given; codes: [file, function]; frames: [number of the code, line]; stacks: lists of numbers of frames, the innermost first;
 * metadata: texts; live: [address, number of the stack]; entries, if asked for: [action, by its bit, device, address, bytes,
 * stream, microseconds since 1970, number of the stack, that of the metadata], where one of oom has the bytes that were free
 * instead of an address. */
long penstock_torch_history(char *json, size_t capacity, int entries);

/* Gives the installed allocator object the virtual functions that PyTorch's
 * pluggable allocator answers only with "does not yet support" (cacheInfo, which
 * cuDNN's benchmark mode calls, and the statistics resets). Call after
 * change_current_allocator. known_pools: those that torch.cuda.MemPool calls are
 * where they are known to be. Returns how many were replaced, or -1 when the
 * object is not PyTorch's pluggable allocator; nothing is changed then. */
int penstock_torch_adopt(int known_pools);
}
#pragma GCC visibility pop

#endif
