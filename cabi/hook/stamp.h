/*
 * When a program made a call. Reading the kernel's clock takes three times as long
 * as reading the processor's time stamp counter, and the program's threads pay for
 * it at every launch and allocation: they store ticks, and whoever reads the
 * records makes nanoseconds of them (internal/hook/clock.go).
 */
#ifndef PENSTOCK_STAMP_H
#define PENSTOCK_STAMP_H
#include <stdint.h>
#include <time.h>

enum {
    PSK_STAMP_NONE = 0,
    PSK_STAMP_CLOCK = 1, /* nanoseconds of CLOCK_MONOTONIC_RAW */
    PSK_STAMP_TICKS = 2, /* of the time stamp counter, where it has one rate on all processors */
};

static inline uint64_t psk_clock_nanos(void) {
    struct timespec t;
    return clock_gettime(CLOCK_MONOTONIC_RAW, &t) ? 0 : (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t psk_ticks(void) {
#ifdef __x86_64__
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

static inline uint64_t psk_stamp(uint32_t how) {
    return __builtin_expect(how == PSK_STAMP_TICKS, 1) ? psk_ticks() : how == PSK_STAMP_NONE ? 0 : psk_clock_nanos();
}
#endif
