/*
 * Penstock's C interface: a GPU memory allocator that can use more memory than
 * the device has. Stable within an ABI version. All sizes are in bytes.
 * Functions may be called from any thread. In a forked child every call is
 * harmless: allocation returns NULL, the rest does nothing.
 */
#ifndef PENSTOCK_H
#define PENSTOCK_H
#include <stddef.h>
#include <sys/types.h>
#ifdef __cplusplus
extern "C" {
#endif

#define PENSTOCK_ABI_VERSION 1

/* The ABI version this library implements. */
int penstock_abi_version(void);

/* Starts the runtime on a device with the PENSTOCK_* environment. Called by the
 * first allocation if not called before. Returns 0, or a negative errno value;
 * penstock_last_error says what was wrong. */
int penstock_init(int device);

/* Allocates size bytes on a device for work ordered on stream (a CUstream or
 * cudaStream_t). Returns NULL when out of memory, or when size is 0.
 * CU_STREAM_PER_THREAD counts as one stream, whichever thread names it: what was used on it
 * may be freed only when that work is done, if another thread allocates for it. */
void *penstock_malloc(ssize_t size, int device, void *stream);

/* Frees ptr once the work already queued on its stream is done with it. size is ignored. */
void penstock_free(void *ptr, ssize_t size, int device, void *stream);

/* Says that work on another stream uses ptr: it is reused only after that work, as queued at free time, is done. */
void penstock_record_stream(void *ptr, void *stream);

/* Gives cached device memory back to the driver. */
void penstock_empty_cache(void);

/* Frees caches and resets statistics; live allocations stay. */
void penstock_reset(void);

/* Limits the runtime to a fraction (0 < f <= 1) of the device's memory. Returns 0 or a negative errno value. */
int penstock_set_memory_fraction(double fraction, int device);

/* Resets peak statistics. */
void penstock_reset_peak_stats(void);

/* Stops (0) or goes on with (1) recording to PENSTOCK_TRACE, as for a part of a run
 * that matters. Launches, faults and moves in between are not in the recording, nor are
 * allocations while everything is in plain device memory; operations under way at
 * the edges may be or not.
 * Returns 0, or a negative errno value when nothing is recorded. */
int penstock_record(int on);

/* Writes statistics as a JSON object, NUL-terminated. Returns the length
 * needed without the NUL; when that is >= capacity nothing useful was written. Keys:
 * allocated_bytes, allocated_peak_bytes, reserved_bytes, reserved_peak_bytes,
 * resident_bytes, resident_peak_bytes, budget_bytes, host_budget_bytes,
 * device_total_bytes, device_free_bytes (budget less live: what an allocation may still take on the device),
 * allocations (count), allocations_live, frees, retries, ooms,
 * h2d_bytes, d2h_bytes, faults (-1 when unavailable), stall_seconds,
 * launches, prediction_hit_rate (-1 when nothing was predicted), iteration_seconds (at present; 0 when not known),
 * in_memory_share_estimated (of the speed in memory, at present; -1 when not known), engine, policy. */
long penstock_stats(char *json, size_t capacity);

/* Writes how memory is laid out at the moment as a JSON object, NUL-terminated; returns as penstock_stats. Its key segments is a
 * list by address: address, total_size, stream (its handle), small (it is for small requests alone), tensor (it can leave the
 * device, and is made for what is allocated in it), pool (the two numbers of its private pool, 0 of none), on_device_bytes (the
 * rest is on the host, or nothing was written there yet), and blocks, which cover it: address, size, requested_size, state
 * (active_allocated, active_awaiting_free or inactive). */
long penstock_snapshot(char *json, size_t capacity);

/* How many bytes were asked for of the live allocation that begins at ptr; 0 when none does. It looks through all of them. */
size_t penstock_size_of(void *ptr);

/* Writes the last error of the calling process, NUL-terminated; returns as penstock_stats. "" when none. */
long penstock_last_error(char *text, size_t capacity);

/* Makes launches of nothing by every way in which a program comes by the driver's
 * functions and writes, as JSON, how many the preloaded hook saw of each: hook
 * (whether it is loaded), routes (name, launches, seen, missed). Nothing runs on
 * the device, and the runtime need not be started. Returns as penstock_stats. */
long penstock_self_test(char *json, size_t capacity);

/* For CUDA graphs: allocations between begin and end come from a pool of memory
 * that is kept until the pool is released. 0 or a negative errno value. */
int penstock_begin_pool(int device, unsigned long long id_hi, unsigned long long id_lo);
int penstock_end_pool(int device, unsigned long long id_hi, unsigned long long id_lo);
int penstock_release_pool(int device, unsigned long long id_hi, unsigned long long id_lo);

/* The same for who decides for each allocation which pool it comes from, as frameworks with several at once do.
 * retain makes the pool, where there is none of that name, and counts a user, which release_pool takes back. What is
 * freed in a pool keeps its contents until something else is allocated there; like all others, larger allocations can leave the device.
 * free and record_stream are the usual ones. 0 or a negative errno value; users: how many, 0 when there is no such pool. */
int penstock_retain_pool(int device, unsigned long long id_hi, unsigned long long id_lo);
int penstock_pool_users(int device, unsigned long long id_hi, unsigned long long id_lo);
void *penstock_malloc_in_pool(ssize_t size, int device, void *stream, unsigned long long id_hi, unsigned long long id_lo);

/* A live allocation of a pool. */
struct penstock_block {
    void *ptr;
    size_t size; /* as asked for */
};
/* Writes the live allocations of a pool, by address, as far as they fit, and returns how many there are. */
long penstock_pool_blocks(int device, unsigned long long id_hi, unsigned long long id_lo, struct penstock_block *blocks, size_t capacity);
/* Makes what was an allocation of a pool one again, at its address and with its contents.
 * 0, or a negative errno value when something else is allocated there. */
int penstock_restore_in_pool(void *ptr, ssize_t size, int device, unsigned long long id_hi, unsigned long long id_lo);

/* Under PENSTOCK_OBSERVE=1 the launch hook reports managed memory that the program
 * itself allocates, and is about to free. Everything that happens to it is
 * recorded to PENSTOCK_TRACE until the process exits; nothing is moved. */
void penstock_observe_alloc(unsigned long long ptr, size_t bytes);
void penstock_observe_free(unsigned long long ptr);

/* Prints the verdict, closes the trace and stops the runtime's threads. Allocations stay valid until exit; with
 * PENSTOCK_ENGINE=explicit, operations on memory that is not on the device then fail with CUDA_ERROR_DEINITIALIZED. */
void penstock_close(void);

#ifdef __cplusplus
}
#endif
#endif
