package process

import (
	"testing"
	"time"
)

// TestPauseAfter: at first the engine looks as often as ever, and then ever more seldom, but always some of a hundred times while it waits.
func TestPauseAfter(t *testing.T) {
	last := time.Duration(0)
	for idle := time.Duration(0); idle < 10*time.Second; idle += 50 * time.Microsecond {
		p := PauseAfter(idle)
		if p < last || p > max(ShortWait, idle/50) || p > time.Millisecond {
			t.Fatalf("%v after %v, %v before", p, idle, last)
		}
		last = p
	}
	if first := PauseAfter(0); first != ShortWait || last != time.Millisecond {
		t.Errorf("%v at first, %v at last", first, last)
	}
}
