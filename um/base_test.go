package um

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
)

type testTensor struct{ Tensor }

type testOp struct{ Operation[*testTensor] }

type testClock struct{ at time.Duration }

func (c *testClock) Now() time.Duration { return c.at }

type testBase struct {
	Base[*testTensor, *testOp]
	clock testClock
}

func newTestBase() *testBase {
	b := &testBase{}
	b.Init(&b.clock)
	return b
}

// malloc is what an engine does to allocate.
func (b *testBase) malloc(p cuda.Ptr, bytes int64, stream int) *testTensor {
	t := &testTensor{Tensor{Stream: stream, Instance: b.History.Alloc(bytes)}}
	t.Slot = b.Slots.Take(t)
	b.ByPtr[p] = t
	b.AddLive(bytes)
	return t
}

// op is what it does with an operation.
func (b *testBase) op(seq uint64, stream int, slots ...uint32) *testOp {
	o := Op{Seq: seq, Stream: stream, Slots: slots}
	x := &testOp{}
	b.Begin(&o, &x.Operation)
	b.Enter(x, &x.Operation, o.Signature())
	return x
}

func TestSlots(t *testing.T) {
	b := newTestBase()
	x, y := b.malloc(1<<20, 8, 0), b.malloc(2<<20, 8, 0)
	if x.Slot == 0 || y.Slot == 0 || b.Slots.At(0) != nil || b.Slots.At(99) != nil {
		t.Fatalf("slots %d and %d; 0 is %v", x.Slot, y.Slot, b.Slots.At(0))
	}
	if b.SlotOf(2<<20) != y.Slot || b.SlotOf(2<<20+1) != 0 {
		t.Errorf("slot %d at the address of slot %d", b.SlotOf(2<<20), y.Slot)
	}
	b.Slots.Give(x.Slot)
	if b.Slots.At(x.Slot) != nil {
		t.Error("a slot that was given back is somebody's")
	}
	if z := b.malloc(3<<20, 8, 0); z.Slot != x.Slot || b.Slots.At(z.Slot) != z {
		t.Errorf("slot %d is not used again: %d", x.Slot, z.Slot)
	}
}

// TestBegin: an operation names what is alive of its slots, and finishes with its stream.
func TestBegin(t *testing.T) {
	b := newTestBase()
	x, y := b.malloc(1<<20, 8, 0), b.malloc(2<<20, 8, 0)
	y.Freed = true // its slot is still its own
	first := b.op(5, 1, x.Slot, y.Slot, 77)
	if !slices.Equal(first.Tensors, []*testTensor{x}) || !x.Named || !x.Busy() || y.Named {
		t.Errorf("names %v", first.Tensors)
	}
	second := b.op(6, 3, x.Slot)
	if first.Position != 0 || second.Position != 1 || x.LastUse != 1 || b.Queued() != 2 {
		t.Errorf("positions %d and %d, last use %d, %d queued", first.Position, second.Position, x.LastUse, b.Queued())
	}
	if b.Streams() != 4 || b.ReportedOn(1) != 5 || b.ReportedOn(2) != 0 || b.ReportedOn(9) != 0 || b.Reported() != 6 {
		t.Errorf("%d streams, reported %d, %d and %d", b.Streams(), b.ReportedOn(1), b.ReportedOn(2), b.Reported())
	}
	if b.Passed(Mark{1, 5}) || !b.Passed(Mark{9, 0}) {
		t.Error("passed before it has finished, or not although nothing was queued")
	}
	if !b.Finished(1, 5) || b.Finished(1, 5) || b.Finished(1, 4) || !b.Passed(Mark{1, 5}) || b.Passed(Mark{3, 6}) || b.Passed(Mark{9, 1}) {
		t.Error("a stream that has finished an operation is not where it is")
	}
}

func TestRecordStream(t *testing.T) {
	b := newTestBase()
	x := b.malloc(1<<20, 8, 2)
	for _, s := range []int{2, 4, 4, 3} {
		if err := b.RecordStream(1<<20, s); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(x.Others, []int{4, 3}) {
		t.Errorf("others %v", x.Others)
	}
	if err := b.RecordStream(1<<20+1, 2); !errors.Is(err, ErrNotOurs) {
		t.Errorf("an address within it: %v", err)
	}
}

// TestStalls: time counts for what was last blamed, from then on, and for nobody while nothing waits.
func TestStalls(t *testing.T) {
	b := newTestBase()
	x, y := &testOp{}, &testOp{}
	at := func(ms int, f func()) { b.clock.at = time.Duration(ms) * time.Millisecond; f() }
	at(1, func() { b.Stalls.Blame(ForMap) }) // nobody waits
	at(2, func() { b.Stalls.Wait(x, ForFetch) })
	at(5, func() { b.Stalls.Blame(ForSpace) })
	at(6, func() { b.Stalls.Wait(x, ForMap) }) // it does already
	at(10, func() { b.Stalls.Wait(y, ForFetch) })
	at(12, func() { b.Stalls.Wait(nil, ForFetch) })
	at(50, func() { b.Stalls.Wait(x, ForFetch) })
	ms := time.Millisecond
	if want := [StallCauses]time.Duration{ForFetch: 5 * ms, ForSpace: 5 * ms}; b.Stalls.Spent != want {
		t.Errorf("spent %v, want %v", b.Stalls.Spent, want)
	}
	var s Stats
	b.PlainBytes = 4
	b.NotePeak(10)
	b.NotePeak(3)
	b.AddLive(7)
	b.AddLive(-5)
	if b.Account(&s, 3); s.Stalled() != 10*ms || s.DeviceBytes != 7 || s.DevicePeakBytes != 14 || s.LiveBytes != 2 || s.LivePeakBytes != 7 {
		t.Errorf("%+v", s)
	}
}

// TestSignature: other work, and as much on another number of tensors, is another operation.
func TestSignature(t *testing.T) {
	of := func(work uint32, slots int) uint64 {
		o := Op{Work: work, Slots: make([]uint32, slots)}
		return o.Signature()
	}
	if one := of(1, 2); one != of(1, 2) || one == of(1, 3) || one == of(2, 2) {
		t.Error("signatures do not tell work apart")
	}
}
