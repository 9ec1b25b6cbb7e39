package swapped

import (
	"math"
	"testing"
	"time"
)

// TestPace: the fastest that a direction was while copies followed each other, not the mean with the gaps between.
func TestPace(t *testing.T) {
	const ms = time.Millisecond
	var p pace
	at := time.Duration(0)
	copies := func(n int, each time.Duration) {
		for range n {
			at += each
			p.ended(1e6, at)
		}
	}
	copies(20, ms) // too few to tell
	if p.fastest != 0 {
		t.Error(p.fastest)
	}
	p.idle()
	at += 100 * ms
	copies(60, ms) // 1 GB/s, without what was idle
	p.idle()
	copies(100, 2*ms)
	if math.Abs(p.fastest-1e9) > 1 {
		t.Error(p.fastest)
	}
}
