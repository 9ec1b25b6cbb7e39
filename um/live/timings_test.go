package live

import (
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
)

// untimed is an engine that does not care.
type untimed struct{ engine }

func (untimed) timed(uint64, time.Duration) {}

// TestTimings: what events take without anything in between is no part of an operation's time, however disturbed one of them was.
func TestTimings(t *testing.T) {
	const us = time.Microsecond
	h := newHook()
	var sink recording
	l := newProcess(processConfig{Sink: &sink}, newDriver(1<<30), h, zap.NewNop())
	l.engine = untimed{}
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
