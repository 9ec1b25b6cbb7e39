package explicit

import (
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/um"
)

// TestLaunchCost: what the job's CPU takes is known where that keeps the job back, and nowhere else.
func TestLaunchCost(t *testing.T) {
	const us = time.Microsecond
	const cost = 20 * us
	for _, c := range []struct {
		name     string
		behind   int // operations that the device is behind
		every    int // operations after which the program waits for it
		least    time.Duration
		most     time.Duration
		waitEach int // operations after which one waits for memory
		slow     int // the operation before which the program does something else
	}{
		{name: "the CPU keeps it back", behind: 3, least: cost, most: cost},
		{name: "it waits for the device at times", behind: 3, every: 500, least: cost, most: cost * 11 / 10},
		{name: "one takes long in one iteration", behind: 3, slow: 7777, least: cost, most: cost},
		{name: "some wait for memory", behind: 3, waitEach: 100, least: cost, most: cost},
		{name: "nearly all wait for memory", behind: 3, waitEach: 30},
		{name: "the CPU is far ahead", behind: 900},
	} {
		r, b := bystanding(1 << 12)
		for seq := 1; seq <= 10000; seq++ {
			b.now += cost
			if seq == c.slow {
				b.now += 200 * us
			}
			if c.every > 0 && seq%c.every == 0 {
				b.now += 5 * time.Millisecond
			}
			r.Op(um.Op{Seq: uint64(seq), Work: uint32(seq % 500)})
			if c.waitEach > 0 && seq%c.waitEach == 0 {
				b.now += time.Millisecond
				r.Granted(uint64(seq))
			}
			if seq > c.behind && seq%8 == 0 {
				r.Progress(0, uint64(seq-c.behind))
			}
		}
		recent := r.Recent(1 << 20)
		if !recent.Trace.MarkIterations() {
			t.Fatalf("%s: no iterations", c.name)
		}
		if got := recent.LaunchCost(); got < c.least || got > c.most {
			t.Errorf("%s: %v, want %v to %v", c.name, got, c.least, c.most)
		}
	}
	r, _ := bystanding(0)
	r.Op(um.Op{Seq: 1})
	if got := r.Recent(1 << 20).LaunchCost(); got != 0 {
		t.Errorf("%v of nothing", got)
	}
}
