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
