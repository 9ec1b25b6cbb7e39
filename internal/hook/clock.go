package hook

/*
#include <stdint.h>
#include <time.h>

static int64_t penstock_clock(void) {
    struct timespec t;
    return clock_gettime(CLOCK_MONOTONIC_RAW, &t) ? 0 : (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
*/
import "C"

// Clock reads CLOCK_MONOTONIC_RAW in nanoseconds, the clock of a record's Nanos.
// Unlike a system call from Go it goes through the kernel's shared page, and so
// costs a fraction: a recording takes the time at every allocation.
func Clock() int64 { return int64(C.penstock_clock()) }
