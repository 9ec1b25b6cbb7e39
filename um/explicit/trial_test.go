package explicit

import (
	"testing"
	"time"
)

// span plays a span in which launches wait for that share of the time, and says
// whether checksums are taken after it.
func (x *trial) span(clock, stalled *time.Duration, share float64) bool {
	*clock += time.Second
	*stalled += time.Duration(share * float64(time.Second))
	x.look(x.ends, 0, *clock, *stalled)
	return x.on
}

func TestChecksumsAreForThoseWhoWait(t *testing.T) {
	var x trial
	var clock, stalled time.Duration
	x.look(0, 0, 0, 0)
	for n := range 100 {
		if x.span(&clock, &stalled, 0.04) {
			t.Fatalf("checksums after %d spans in which nobody waited long", n+1)
		}
	}
	if x.span(&clock, &stalled, 0.5) || x.span(&clock, &stalled, 0) || x.span(&clock, &stalled, 0.5) {
		t.Fatal("checksums after one span in which launches waited")
	}
	for _, want := range []int{firstLength, 2 * firstLength, 4 * firstLength} {
		if !x.span(&clock, &stalled, 0.5) {
			t.Fatal("no checksums although launches wait")
		}
		n := 1
		for x.span(&clock, &stalled, 0) {
			n++
		}
		if n != want {
			t.Errorf("checksums for %d spans, want %d", n, want)
		}
		x.span(&clock, &stalled, 0.5) // without: they wait again
	}
	for x.on || x.length != firstLength { // the last trial has begun
		x.span(&clock, &stalled, 0)
	}
}

// A span is an iteration, if that is longer.
func TestSpans(t *testing.T) {
	var x trial
	x.look(0, 0, 0, 0)
	x.look(spanOps-1, 0, time.Second, time.Second)
	if x.waited != 0 {
		t.Error("a span has ended before its time")
	}
	x.look(spanOps, 5000, time.Second, time.Second)
	x.look(spanOps+4999, 5000, 2*time.Second, 2*time.Second)
	if x.waited != 1 {
		t.Errorf("%d spans, want one", x.waited)
	}
	x.look(spanOps+5000, 5000, 2*time.Second, 2*time.Second)
	if !x.on {
		t.Error("two spans did not make a trial")
	}
}
