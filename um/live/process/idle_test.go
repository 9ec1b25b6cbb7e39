package process

import (
	"testing"
	"time"
)

// TestIdle: what passes while nobody looks is not waiting, as when the process was stopped for an hour.
func TestIdle(t *testing.T) {
	var i Idle
	now := time.Now()
	i.Look(now)
	for range 1000 {
		now = now.Add(time.Millisecond)
		i.Look(now)
	}
	if i.Duration != time.Second {
		t.Errorf("%v after a second", i.Duration)
	}
	if got := i.Look(now.Add(time.Hour)); got != time.Second+MostBetween {
		t.Errorf("%v after an hour without a look", got)
	}
	i.End()
	if got := i.Look(now.Add(time.Hour + time.Millisecond)); got != time.Millisecond {
		t.Errorf("%v a millisecond after a move", got)
	}
	if SlowPatience < 10*MostBetween {
		t.Error("waiting cannot be told from a stopped process")
	}
}

// TestNagger: that something waits is said after a moment, once a minute, and anew of what waits next.
func TestNagger(t *testing.T) {
	var n Nagger
	said := func(from, to time.Duration) (times int) {
		for d := from; d < to; d += 100 * time.Millisecond {
			if n.Due(d) {
				times++
			}
		}
		return times
	}
	if a, b, c := said(0, SlowPatience), said(SlowPatience, WarnEvery), said(WarnEvery, 10*WarnEvery); a != 0 || b != 1 || c != 9 {
		t.Errorf("said %d, %d and %d times", a, b, c)
	}
	if a := said(0, 2*SlowPatience); a != 1 {
		t.Errorf("of what waits next %d times", a)
	}
}
