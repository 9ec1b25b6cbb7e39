package live

import (
	"testing"
	"time"
)

// TestIdle: what passes while nobody looks is not waiting, as when the process was stopped for an hour.
func TestIdle(t *testing.T) {
	var i idle
	now := time.Now()
	i.look(now)
	for range 1000 {
		now = now.Add(time.Millisecond)
		i.look(now)
	}
	if i.Duration != time.Second {
		t.Errorf("%v after a second", i.Duration)
	}
	if got := i.look(now.Add(time.Hour)); got != time.Second+mostBetween {
		t.Errorf("%v after an hour without a look", got)
	}
	i.end()
	if got := i.look(now.Add(time.Hour + time.Millisecond)); got != time.Millisecond {
		t.Errorf("%v a millisecond after a move", got)
	}
	if watchdogPatience < 10*mostBetween || slowPatience < 10*mostBetween {
		t.Error("the watchdogs cannot tell waiting from a stopped process")
	}
}

// TestNagger: that something waits is said after a moment, once a minute, and anew of what waits next.
func TestNagger(t *testing.T) {
	var n nagger
	said := func(from, to time.Duration) (times int) {
		for d := from; d < to; d += 100 * time.Millisecond {
			if n.due(d) {
				times++
			}
		}
		return times
	}
	if a, b, c := said(0, slowPatience), said(slowPatience, warnEvery), said(warnEvery, 10*warnEvery); a != 0 || b != 1 || c != 9 {
		t.Errorf("said %d, %d and %d times", a, b, c)
	}
	if a := said(0, 2*slowPatience); a != 1 {
		t.Errorf("of what waits next %d times", a)
	}
}
