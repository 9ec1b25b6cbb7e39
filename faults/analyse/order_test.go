package analyse

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/internal/short"
	"github.com/penstock-gpu/penstock/trace"
)

// Sequences that are in order by themselves, each late by its own delay and now
// and then by more, come out in one order, and equals as they came in.
func TestOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var o order
	var got []trace.Event
	visit := func(e *trace.Event) { got = append(got, *e) }
	delays := []time.Duration{0, 50 * time.Microsecond, 10 * time.Millisecond, 60 * time.Millisecond, 190 * time.Millisecond}
	const events = 200_000
	for i := range uint64(events) {
		now := horizon + time.Duration(i/3)*10*time.Microsecond
		d := delays[random.IntN(len(delays))]
		if random.IntN(1000) == 0 { // of no sequence
			d = time.Duration(random.Int64N(int64(horizon)))
		}
		o.add(&trace.Event{Time: now - d, Alloc: i}, visit)
	}
	o.flush(visit)
	if len(got) != events || o.late != 0 || o.size != 0 || o.bytes != 0 {
		t.Fatalf("%d of %d events, %d late, %d left of %d bytes", len(got), events, o.late, o.size, o.bytes)
	}
	for i := 1; i < len(got); i++ {
		if a, b := got[i-1], got[i]; a.Time > b.Time || a.Time == b.Time && a.Alloc > b.Alloc {
			t.Fatalf("%v, the %dth, before %v, the %dth", a.Time, a.Alloc, b.Time, b.Alloc)
		}
	}
}

// A file whose times fall all the way, or jump about, costs no more than a heap.
func TestOrderOfNonsense(t *testing.T) {
	short.Skip(t)
	random := rand.New(rand.NewPCG(3, 4))
	for name, at := range map[string]func(i int) time.Duration{
		"falling": func(i int) time.Duration { return -time.Duration(i) },
		"random":  func(int) time.Duration { return time.Duration(random.Int64()) },
	} {
		var o order
		n := 0
		visit := func(e *trace.Event) { n++ }
		began := cpuTime(t)
		const events = 5 * heldEvents / 4
		for i := range events {
			o.add(&trace.Event{Time: at(i), Name: "x"}, visit)
			if o.size > heldEvents || o.bytes > heldBytes {
				t.Fatalf("%s: %d events of %d bytes are held", name, o.size, o.bytes)
			}
		}
		o.flush(visit)
		if n != events || o.size != 0 || o.bytes != 0 || cpuTime(t)-began > 30*time.Second {
			t.Errorf("%s: %d of %d events, %d left, after %v", name, n, events, o.size, cpuTime(t)-began)
		}
	}
}
