package hook

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Stamps become readings of the clock that lie between readings of the clock before
// and after, with the time that the clocks' own reading takes, also when many are
// read long after they were made.
func TestTimes(t *testing.T) {
	const slack = int64(20 * time.Microsecond)
	for _, kind := range []uint32{Stamping(), stampClock} {
		s := NewTimes(kind)
		type one struct {
			before, after int64
			stamp         uint64
		}
		var all []one
		for range 200 {
			x := one{before: Clock(), stamp: stampNow(kind)}
			x.after = Clock()
			all = append(all, x)
			time.Sleep(100 * time.Microsecond)
		}
		for i, x := range all {
			if got := s.Nanos(x.stamp); got < x.before-slack || got > x.after+slack {
				t.Errorf("kind %d, stamp %d: %d, taken between %d and %d", kind, i, got, x.before, x.after)
			}
		}
		if s.Nanos(0) != 0 {
			t.Error("no stamp has a time")
		}
	}
}

// The rate follows a counter that changes it, and one that begins anew.
func TestTimesFollow(t *testing.T) {
	s := &Times{ticks: true, old: anchor{1000, 1000}}
	s.young = s.old
	at := s.old
	step := func(ticks, nanos uint64) {
		at = anchor{at.ticks + ticks, at.nanos + nanos}
		s.add(at)
	}
	step(6e6, 2e6) // 3 ticks a nanosecond
	if got := s.Nanos(at.ticks + 300); got != int64(at.nanos)+100 {
		t.Errorf("%d after the anchor, want 100", got-int64(at.nanos))
	}
	for range 20 {
		step(2e9, 1e9)
	}
	if got := s.Nanos(at.ticks - 200); got < int64(at.nanos)-101 || got > int64(at.nanos)-99 {
		t.Errorf("%d before the anchor, want 100", int64(at.nanos)-got)
	}
	at.ticks = 500 // on another machine
	for range 20 {
		step(1e9, 1e9)
	}
	if got := s.Nanos(at.ticks + 70); got < int64(at.nanos)+69 || got > int64(at.nanos)+71 {
		t.Errorf("%d after the anchor, want 70", got-int64(at.nanos))
	}
}

func TestKernelDistrusts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "current_clocksource")
	if kernelDistrusts(file) {
		t.Error("distrusted although nothing is said")
	}
	for source, want := range map[string]bool{"tsc\n": false, "kvm-clock\n": false, "hpet\n": true, "acpi_pm\n": true} {
		if err := os.WriteFile(file, []byte(source), 0o666); err != nil {
			t.Fatal(err)
		}
		if kernelDistrusts(file) != want {
			t.Errorf("%q: %v", source, !want)
		}
	}
}
