package live

import (
	"math"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
)

// TestTimings: what events take without anything in between is no part of an operation's time, however disturbed one of them was.
func TestTimings(t *testing.T) {
	const us = time.Microsecond
	h := newHook()
	var sink recording
	l := newProcess(processConfig{Sink: &sink}, newDriver(1<<30), h, zap.NewNop())
	l.engine = newPaged(l, pagedConfig{})
	for seq := uint64(1); seq <= 9; seq++ {
		h.timed = append(h.timed, timing{seq: seq, took: 22 * us, empty: 2 * us})
	}
	h.timed = append(h.timed, timing{10, 22 * us, 900 * us}, timing{11, us, 2 * us}, timing{12, 22 * us, 2 * us})
	l.timings()
	var want []timing
	for seq := uint64(1); seq <= 12; seq++ {
		if seq != 11 { // shorter than nothing
			want = append(want, timing{seq: seq, took: 20 * us})
		}
	}
	if !slices.Equal(sink.timed, want) {
		t.Errorf("%v", sink.timed)
	}
	sink.timed, h.timed, l.paused = nil, want, true
	if l.timings(); sink.timed != nil {
		t.Errorf("%v while it is paused", sink.timed)
	}
}

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
