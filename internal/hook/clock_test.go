package hook

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestClock(t *testing.T) {
	var before, after unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &before); err != nil {
		t.Fatal(err)
	}
	got := Clock()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &after); err != nil {
		t.Fatal(err)
	}
	if got < before.Nano() || got > after.Nano() {
		t.Errorf("%d, between %d and %d", got, before.Nano(), after.Nano())
	}
}

func BenchmarkClock(b *testing.B) {
	for range b.N {
		Clock()
	}
}
