package swapped

import (
	"testing"

	"go.uber.org/zap"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/pool/front"
	"github.com/penstock-gpu/penstock/um"
	"github.com/penstock-gpu/penstock/um/explicit"
	"github.com/penstock-gpu/penstock/um/live/livetest"
	"github.com/penstock-gpu/penstock/um/live/process"
)

// ring is a launch hook whose ring was read up to a place.
type ring struct {
	Hook
	read uint64
}

func (r *ring) Read() uint64                     { return r.read }
func (r *ring) Publish(uint32, cuda.Range, bool) {}
func (r *ring) Withdraw(uint32, cuda.Range)      {}
func (r *ring) SetResident(uint32, bool)         {}

// TestHear: a call is heard of only when every operation before it is known, and
// until then its memory stays where it is.
func TestHear(t *testing.T) {
	f, err := front.New(0)
	if err != nil {
		t.Fatal(err)
	}
	d := livetest.NewDriver(1 << 30)
	h := &ring{}
	l := process.New(process.Config{}, d, h, zap.NewNop())
	l.Plain = livetest.NoPlain{}
	e := &Engine{proc: l, hook: h, front: f, requests: map[request]uint64{}}
	l.Engine = e
	addresses := cuda.Range{Base: 1 << 40, Bytes: 1 << 30}
	e.runtime = explicit.New(explicit.Config{BudgetBytes: 64 << 20, HostBudgetBytes: 64 << 20, Addresses: addresses}, processOf{e})
	l.Tensors = e.runtime
	head := uint64(3)
	f.Stand(addresses, um.SmallBytes, explicit.PageBytes, &head)
	f.Serve(front.All, -1, true)

	_, epoch := f.Take(4<<20, 0)
	p, err := e.runtime.Malloc(4<<20, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Add(p, 4<<20, 0, epoch)
	e.runtime.Op(um.Op{Seq: 1, Slots: []uint32{1}})
	m, ok := e.runtime.Next(um.In)
	if !ok {
		t.Fatal("what is named is not mapped")
	}
	m.Handle = 1
	e.runtime.Done(m)
	e.runtime.Progress(0, 1)

	head = 5 // two more operations name it, which are not read yet
	if f.Hold(p) != front.Held {
		t.Fatal("the free is not served")
	}
	h.read = 4
	e.HearAll()
	if e.runtime.LiveBytes() != 4<<20 || e.heard != 0 {
		t.Error("a free was heard of before the operations that came before it")
	}
	if (processOf{e}).Recall(p) {
		t.Error("memory was recalled that an operation nobody has read of may use")
	}
	h.read = 5
	e.HearAll()
	if e.runtime.LiveBytes() != 0 || e.heard != 1 {
		t.Error("a free was not heard of when everything before it was read")
	}
	if q, _ := f.Take(3<<20, 0); q != p {
		t.Errorf("%#x is given out, want what was freed", uint64(q))
	}
	e.HearAll()
	if got := e.runtime.LiveBytes(); got != 3<<20 {
		t.Errorf("%d bytes are live", got)
	}
	if err := e.runtime.Check(); err != nil {
		t.Error(err)
	}
}
