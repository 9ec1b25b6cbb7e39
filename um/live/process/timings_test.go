package process_test

import (
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// untimed is an engine that does not care.
type untimed struct{ process.Engine }

func (untimed) Timed(uint64, time.Duration) {}

// TestTimings: what events take without anything in between is no part of an operation's time, however disturbed one of them was.
func TestTimings(t *testing.T) {
	const us = time.Microsecond
	h := livetest.NewHook()
	var sink livetest.Sink
	proc := process.New(process.Config{Sink: &sink}, livetest.NewDriver(1<<30), h, zap.NewNop())
	proc.Engine = untimed{}
	for seq := uint64(1); seq <= 9; seq++ {
		h.TimedOps = append(h.TimedOps, livetest.Timing{Seq: seq, Took: 22 * us, Empty: 2 * us})
	}
	h.TimedOps = append(h.TimedOps, livetest.Timing{Seq: 10, Took: 22 * us, Empty: 900 * us}, livetest.Timing{Seq: 11, Took: us, Empty: 2 * us}, livetest.Timing{Seq: 12, Took: 22 * us, Empty: 2 * us})
	proc.Timings()
	var want []livetest.Timing
	for seq := uint64(1); seq <= 12; seq++ {
		if seq != 11 { // shorter than nothing
			want = append(want, livetest.Timing{Seq: seq, Took: 20 * us})
		}
	}
	if !slices.Equal(sink.Timed, want) {
		t.Errorf("%v", sink.Timed)
	}
	sink.Timed, h.TimedOps, proc.Paused = nil, want, true
	if proc.Timings(); sink.Timed != nil {
		t.Errorf("%v while it is paused", sink.Timed)
	}
}
