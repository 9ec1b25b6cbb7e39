package hook

/*
#cgo CFLAGS: -I${SRCDIR}/../../cabi/hook
#include "stamp.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

// Whether the counter has one rate whatever the processor does (AMD and Intel: invariant TSC).
static int steady_ticks(void) {
#ifdef __x86_64__
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
#else
    return 0;
#endif
}

typedef struct {
    uint64_t ticks, nanos;
} both;

// Both clocks at one moment: of some readings the one that took the shortest.
static both now_both(void) {
    both best = {0, 0};
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t from = psk_ticks(), nanos = psk_clock_nanos(), took = psk_ticks() - from;
        if (took < shortest) shortest = took, best = (both){from + took / 2, nanos};
    }
    return best;
}
*/
import "C"

import (
	"bytes"
	"os"
	"sync"
	"time"
)

// Clock reads CLOCK_MONOTONIC_RAW in nanoseconds.
// Unlike a system call from Go it goes through the kernel's shared page, and so
// costs a fraction.
func Clock() int64 { return int64(C.psk_clock_nanos()) }

// Stamping is what the program's threads write to say when something was (stamp.h).
// It is the same in the whole process.
var Stamping = sync.OnceValue(func() uint32 {
	if C.steady_ticks() == 0 || kernelDistrusts("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
		return C.PSK_STAMP_CLOCK
	}
	return C.PSK_STAMP_TICKS
})

// kernelDistrusts says whether the kernel takes a much slower clock than the time
// stamp counter, as it does when processors' counters are found to differ.
func kernelDistrusts(file string) bool {
	source, err := os.ReadFile(file)
	if err != nil {
		return false // not told: the processor's word is all there is
	}
	switch string(bytes.TrimSpace(source)) {
	case "hpet", "acpi_pm", "jiffies", "refined-jiffies":
		return true
	}
	return false
}

const (
	firstBase  = 2 * time.Millisecond  // over which the counter's rate is measured at first
	anchorEach = 10 * time.Millisecond // a stamp so far beyond the last anchor asks for a new one
	baseEach   = 5 * time.Second       // the rate is taken over one to two of these
	longAgo    = 100                   // anchorEach: no stamp is read so late
)

// Times makes readings of CLOCK_MONOTONIC_RAW of stamps. Between two anchors, at
// which both clocks were read, the counter is taken to run evenly; the rate is
// measured again with each, so that a virtual machine that goes on elsewhere is off
// for seconds at most.
type Times struct {
	ticks      bool
	old, young anchor // for the rate: young is to follow old
	at         anchor // the last
	rate       float64
	span       int64 // ticks in anchorEach
}

type anchor struct{ ticks, nanos uint64 }

func readAnchor() anchor {
	b := C.now_both()
	return anchor{uint64(b.ticks), uint64(b.nanos)}
}

// NewTimes reads stamps of a kind. For ticks it takes firstBase.
func NewTimes(kind uint32) *Times {
	s := &Times{ticks: kind == C.PSK_STAMP_TICKS}
	if s.ticks {
		s.old = readAnchor()
		time.Sleep(firstBase)
		s.young = s.old
		s.add(readAnchor())
	}
	return s
}

// add takes a newer anchor.
func (s *Times) add(a anchor) {
	s.at = a
	if a.ticks > s.old.ticks && a.nanos > s.old.nanos {
		s.rate = float64(a.nanos-s.old.nanos) / float64(a.ticks-s.old.ticks)
		s.span = int64(float64(anchorEach) / s.rate)
	}
	if a.nanos-s.young.nanos > uint64(baseEach) {
		s.old, s.young = s.young, a
	}
}

// Nanos is when a stamp was made; 0 of none. One goroutine at a time may ask.
func (s *Times) Nanos(stamp uint64) int64 {
	if !s.ticks || stamp == 0 {
		return int64(stamp)
	}
	since := int64(stamp - s.at.ticks)
	if since > s.span || since < -longAgo*s.span { // the latter: the counter has begun anew
		s.add(readAnchor())
		since = int64(stamp - s.at.ticks)
	}
	return int64(s.at.nanos) + int64(float64(since)*s.rate)
}

const stampClock uint32 = C.PSK_STAMP_CLOCK

// stampNow is what a thread of the program writes now.
func stampNow(kind uint32) uint64 { return uint64(C.psk_stamp(C.uint32_t(kind))) }
