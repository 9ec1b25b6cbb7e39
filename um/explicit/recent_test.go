package explicit

import (
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/trace"
	"github.com/penstock-gpu/penstock/um"
)

func bystanding(remembered int) (*Runtime, *bystander) {
	b := newBystander()
	r := New(Config{BudgetBytes: 64 << 20, HostBudgetBytes: 64 << 20, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 30}, Victims: evict.NextUse}, b)
	r.Remember(remembered)
	return r, b
}

// TestRecent: an operation's time is when it was reported, or when what it waited for came; how far
// streams were, and what was asked for, is remembered as well.
func TestRecent(t *testing.T) {
	r, b := bystanding(8)
	const ms = time.Millisecond
	if _, err := r.Malloc(3<<20, 0); err != nil {
		t.Fatal(err)
	}
	op := func(seq uint64, at time.Duration, slots ...uint32) {
		b.now = at
		r.Op(um.Op{Seq: seq, Slots: slots, Work: uint32(100 + seq)})
	}
	op(1, 10*ms, 1) // waits for it to be mapped
	op(2, 11*ms)
	op(3, 12*ms, 1)
	b.now = 20 * ms
	m, ok := r.Next(um.In)
	if !ok {
		t.Fatal("nothing is mapped")
	}
	m.Handle = 7
	r.Done(m)
	b.now = 23 * ms
	r.Progress(0, 2)
	op(4, 24*ms, 1)
	b.now = 25 * ms
	r.Granted(4)
	b.now = 30 * ms
	r.Progress(0, 4)

	if last := r.Recent(2); len(last.Reports) != 2 || len(last.Kinds) != 2 || last.Reports[1] != r.Recent(1 << 20).Reports[3] {
		t.Errorf("the last two of four: %+v", last)
	} else if e := last.Trace.Events[len(last.Trace.Events)-1]; e.Kind != trace.KindProgress || e.Alloc != 2 {
		t.Errorf("the last two end with %+v", e)
	}
	tr := r.Recent(1 << 20).Trace
	var times []time.Duration
	ops := uint32(0)
	for _, e := range tr.Events {
		switch e.Kind {
		case trace.KindAlloc:
			if e.Bytes != 3<<20 {
				t.Errorf("%d bytes were asked for", e.Bytes)
			}
		case trace.KindLaunch:
			times = append(times, e.Time)
			if ops++; e.Function != 100+ops {
				t.Errorf("operation %d is %d", ops, e.Function)
			}
		case trace.KindProgress:
			times = append(times, -e.Time, time.Duration(e.Alloc))
		}
	}
	want := []time.Duration{20 * ms, 11 * ms, 20 * ms, -23 * ms, 2, 25 * ms, -30 * ms, 4}
	if !slices.Equal(times, want) {
		t.Errorf("%v, want %v", times, want)
	}
	if !tr.EstimateDurations() || tr.Estimate.Unknown != 0 {
		t.Errorf("%+v", tr.Estimate)
	}

	// Only so many, however long it goes on; and a stream that never says how far it is does no harm.
	for seq := uint64(5); seq < 100; seq++ {
		b.now += ms
		r.Op(um.Op{Seq: seq, Stream: int(seq % 2), Slots: []uint32{1}, Work: 9})
		b.now += ms
		r.Progress(0, seq)
	}
	tr = r.Recent(1 << 20).Trace
	ops = 0
	for _, e := range tr.Events {
		if e.Kind == trace.KindLaunch {
			ops++
			if e.Time < b.now-16*ms {
				t.Errorf("an operation of %s, now %s", e.Time, b.now)
			}
		}
	}
	if ops != 8 || !tr.EstimateDurations() {
		t.Errorf("%d operations", ops)
	}
	if off, _ := bystanding(0); len(off.Recent(1<<20).Trace.Events) != 0 {
		t.Error("it remembers what it was not told to")
	}
}

// TestTimed: what was timed is kept for operations that do the same work, few and the newest, and whatever is told of
// operations of long ago or none does no harm.
func TestTimed(t *testing.T) {
	r, b := bystanding(64)
	if _, err := r.Malloc(3<<20, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Malloc(5<<20, 0); err != nil {
		t.Fatal(err)
	}
	for seq := uint64(2); seq <= 400; seq += 2 { // some numbers are of records that are none
		b.now += time.Millisecond
		r.Op(um.Op{Seq: seq, Work: 1, Shape: uint32(seq/2) % 2, Slots: []uint32{uint32(seq/4)%2 + 1}})
		r.Timed(seq, time.Duration(seq))
		r.Timed(seq-1, 1)
		r.Timed(seq+2, 1)
		r.Timed(2, 1)
		r.Progress(0, seq)
	}
	recent := r.Recent(1 << 20)
	if len(recent.Timings) != 4+2 || len(recent.Kinds) != 64 || len(recent.Reports) != 64 {
		t.Fatalf("%d kinds were timed, %d and %d operations", len(recent.Timings), len(recent.Kinds), len(recent.Reports))
	}
	for i, kind := range recent.Kinds {
		timed := recent.Timings.Of(kind)
		if kind != recent.Kinds[i%4] || len(timed) != 32 || timed[0] < 100 {
			t.Errorf("operation %d: %v", i, timed)
		}
	}
	if !recent.EstimateDurations() || recent.Trace.Estimate.TimedShare != 1 {
		t.Errorf("%+v", recent.Trace.Estimate)
	}
	off, _ := bystanding(0)
	off.Op(um.Op{Seq: 1})
	off.Timed(1, 1)
}

// BenchmarkOp is an operation on the thread that feeds the runtime, with progress every 16.
func BenchmarkOp(b *testing.B) {
	for _, x := range []struct {
		name string
		ops  int
	}{{"forgetting", 0}, {"remembering", 1 << 16}} {
		b.Run(x.name, func(b *testing.B) {
			r, p := bystanding(x.ops)
			began := time.Now()
			var slots []uint32
			for i := range 4 {
				if _, err := r.Malloc(2<<20, 0); err != nil {
					b.Fatal(err)
				}
				slots = append(slots, uint32(i+1))
			}
			r.Op(um.Op{Seq: 1, Slots: slots})
			for m, ok := r.Next(um.In); ok; m, ok = r.Next(um.In) {
				m.Handle = 7
				r.Done(m)
			}
			r.Progress(0, 1)
			for seq := uint64(2); b.Loop(); seq++ {
				p.now = time.Since(began) // what asking for the time costs
				r.Op(um.Op{Seq: seq, Slots: slots, Work: uint32(seq % 4000)})
				if seq%16 == 0 {
					r.Progress(0, seq)
				}
			}
		})
	}
}
