package explicit

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/um"
)

// bystander is a process that the test plays by hand.
type bystander struct {
	state map[uint32]State
	last  map[uint32]uint64
	next  cuda.Ptr
	now   time.Duration
}

func newBystander() *bystander {
	return &bystander{state: map[uint32]State{}, last: map[uint32]uint64{}, next: 1 << 40}
}

func (b *bystander) Reserve(cuda.Range, int64, int, int) bool { return false }
func (b *bystander) Publish(uint32, cuda.Range)               {}
func (b *bystander) Withdraw(uint32, cuda.Range)              {}
func (b *bystander) SetState(slot uint32, s State, _ uint32)  { b.state[slot] = s }
func (b *bystander) LastSeq(slot uint32) uint64               { return b.last[slot] }
func (b *bystander) GiveHost([]cuda.Range)                    {}
func (b *bystander) GiveClones([]cuda.Range)                  {}
func (b *bystander) EndReplay()                               {}
func (b *bystander) Now() time.Duration                       { return b.now }
func (b *bystander) Offer(cuda.Range, int) bool               { return false }
func (b *bystander) Recall(cuda.Ptr) bool                     { return true }
func (b *bystander) SetApart(cuda.Ptr, int64, int) bool       { return true }
func (b *bystander) TakeHost(bytes int64) ([]cuda.Range, bool) {
	b.next += cuda.Ptr(bytes)
	return []cuda.Range{{Base: b.next, Bytes: bytes}}, true
}

// full is a runtime whose budget of 8 MiB an idle tensor fills, slot 1, while an
// operation waits for another, slot 2.
func full(t *testing.T) (*Runtime, *bystander) {
	b := newBystander()
	r := New(Config{BudgetBytes: 8 << 20, HostBudgetBytes: 64 << 20, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 30}, Victims: evict.LRU}, b)
	for seq := uint64(1); seq <= 2; seq++ {
		if _, err := r.Malloc(8<<20, 0); err != nil {
			t.Fatal(err)
		}
		r.Op(um.Op{Seq: seq, Slots: []uint32{uint32(seq)}, Name: "kernel"})
		if seq == 2 {
			break
		}
		m, ok := r.Next(um.In)
		if !ok {
			t.Fatal("nothing is mapped")
		}
		m.Handle = 77
		r.Done(m)
		r.Progress(0, 1)
	}
	if _, ok := r.Next(um.In); ok {
		t.Fatal("something comes although there is no room")
	}
	return r, b
}

// TestEvictionTakenBack: an operation that named the tensor before it was said to be away, and has not been reported, keeps it.
func TestEvictionTakenBack(t *testing.T) {
	r, b := full(t)
	b.last[1] = 3 // given a number, and it saw the tensor on the device
	if m, ok := r.Next(um.Out); ok {
		t.Fatalf("%v although an operation that nobody has reported uses it", m.Kind)
	}
	if b.state[1] != Resident || r.Stats().TakenBack == 0 {
		t.Errorf("state %v, %d taken back", b.state[1], r.Stats().TakenBack)
	}
	b.last[1] = 1
	r.Op(um.Op{Seq: 4, Slots: nil})
	r.plan.valid = false
	if m, ok := r.Next(um.Out); !ok || m.Kind != MoveEvict || b.state[1] != Absent {
		t.Errorf("it does not leave: %v, state %v", ok, b.state[1])
	}
}

// moves is the next move in a direction, which there has to be.
func moves(t *testing.T, r *Runtime, d um.Direction) *Move {
	t.Helper()
	m, ok := r.Next(d)
	if !ok {
		t.Fatalf("nothing moves in direction %d", d)
	}
	return m
}

// TestExplainNamesWhatIsNotFinished: a stream that stands still is said to, and with which operation.
func TestExplainNamesWhatIsNotFinished(t *testing.T) {
	r, _ := full(t)
	if text := r.Explain(); !strings.Contains(text, "kernel touches 8 MiB, 8 MiB of it absent") || strings.Contains(text, "stream") {
		t.Errorf("%q", text)
	}
	r.Op(um.Op{Seq: 3, Stream: 2, Slots: []uint32{1}, Name: "other"})
	if text := r.Explain(); !strings.HasSuffix(text, "; stream 2 was given operations up to 3 and has not finished 3, other") {
		t.Errorf("%q", text)
	}
}

// TestRunning: what has been launched runs until its stream has passed it; what waits here does not.
func TestRunning(t *testing.T) {
	r, b := full(t)
	b.now += time.Second
	if d := r.Running(0); d != 0 {
		t.Errorf("an operation that waits has run for %v", d)
	}
	r.Op(um.Op{Seq: 3, Stream: 1, Slots: []uint32{1}, Name: "kernel"})
	r.Op(um.Op{Seq: 4, Stream: 1, Slots: []uint32{2}, Name: "kernel"})
	b.now += 5 * time.Second
	if d, asking := r.Running(0), r.Running(3); d != 5*time.Second || asking != 0 {
		t.Errorf("it has run for %v, and for %v if it waits for a grant", d, asking)
	}
	r.Progress(1, 3)
	if d := r.Running(0); d != 0 {
		t.Errorf("what is finished has run for %v", d)
	}
}

// TestStallByCause: a launch that waits for one thing after the other is accounted for by parts.
func TestStallByCause(t *testing.T) {
	r, b := full(t)
	b.now += 3 * time.Second
	r.Done(moves(t, r, um.Out))
	in := moves(t, r, um.In)
	b.now += 2 * time.Second
	in.Handle = 78
	r.Done(in)
	if s := r.Stats().Stall; s[um.ForSpace] != 3*time.Second || s[um.ForMap] != 2*time.Second || s[um.ForFetch] != 0 {
		t.Errorf("stalls of %v", s)
	}
}

// TestStallOnAStream: what has been launched and waits on its stream for a copy is stalled, too.
func TestStallOnAStream(t *testing.T) {
	r, b := full(t)
	r.Done(moves(t, r, um.Out))
	in := moves(t, r, um.In)
	in.Handle = 78
	r.Done(in)
	r.Progress(0, 2) // what is on the device now is idle
	r.Op(um.Op{Seq: 3, Slots: []uint32{1}, Name: "kernel"})
	if _, ok := r.Next(um.In); ok {
		t.Fatal("something comes although there is no room")
	}
	out := moves(t, r, um.Out)
	b.now += time.Second
	r.Done(out)
	if in = moves(t, r, um.In); in.Kind != MoveFetch {
		t.Fatalf("%v, not a fetch", in.Kind)
	}
	r.Submitted(in, 1)
	if b.state[1] != Arriving || !r.Ready(3) {
		t.Fatalf("state %d of what a submitted copy brings", b.state[1])
	}
	if err := r.Free(in.Chunk.Base); err != nil { // as jobs do that run ahead of the GPU
		t.Fatal(err)
	}
	b.now += 4 * time.Second
	r.Done(in)
	b.now += time.Second // it runs
	r.Progress(0, 3)
	if s := r.Stats().Stall; s[um.ForSpace] != time.Second || s[um.ForFetch] != 4*time.Second {
		t.Errorf("stalls of %v", s)
	}
}

// TestFailed: a move without memory leaves the chunk where it was, and the budget is what there is.
func TestFailed(t *testing.T) {
	r, b := full(t)
	out, ok := r.Next(um.Out)
	if !ok {
		t.Fatal("nothing leaves")
	}
	r.Submitted(out, 1)
	r.Done(out)
	r.physical.drop(8<<20, anySize) // its memory is gone, so that more has to be created
	m, ok := r.Next(um.In)
	if !ok || m.Handle != 0 {
		t.Fatalf("%v %v", ok, m)
	}
	if err := r.Failed(m); !errors.Is(err, um.ErrOutOfMemory) {
		t.Errorf("nothing is left, and: %v", err)
	}
	if r.Budget() != 0 || r.Moving() || b.state[2] != Absent || r.physical.total() != 0 {
		t.Errorf("budget %d, moving %v, state %v, %d bytes", r.Budget(), r.Moving(), b.state[2], r.physical.total())
	}
	if err := r.Hopeless(); !errors.Is(err, um.ErrOutOfMemory) {
		t.Errorf("the operation that waits: %v", err)
	}
	r.SetBudget(8 << 20)
	if err := r.Hopeless(); err != nil {
		t.Error(err)
	}
	if m, ok = r.Next(um.In); !ok {
		t.Fatal("it is not tried again")
	}
	m.Handle = 78
	r.Done(m)
	if !r.Ready(2) {
		t.Error("the operation still waits")
	}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
}

// TestKept: what an operation leaves the addresses of stays when others want its room, until it is freed.
func TestKept(t *testing.T) {
	r, _ := full(t)
	r.Op(um.Op{Seq: 3, Stream: 1, Slots: []uint32{1}, Keep: true, Name: "a copy"})
	r.Progress(1, 3)
	if m, ok := r.Next(um.Out); ok {
		t.Fatalf("%v of a tensor that is kept", m.Kind)
	}
	if text := r.Explain(); !strings.Contains(text, "8 MiB stay because") {
		t.Errorf("not explained: %s", text)
	}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
}

// TestWaitedForeach: launches that wait are told apart by whether they work on many tensors.
func TestWaitedForeach(t *testing.T) {
	r, _ := full(t)
	before := r.Stats()
	r.Op(um.Op{Seq: 3, Slots: []uint32{2}, Name: "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelIN"})
	if now := r.Stats(); before.WaitedForeach != 0 || now.WaitedForeach != 1 || now.WaitedOps != before.WaitedOps+1 {
		t.Errorf("%d of %d waited, then %d of %d", before.WaitedForeach, before.WaitedOps, now.WaitedForeach, now.WaitedOps)
	}
}

// TestFreedWhileAnOperationWaits: what another thread frees is waited for no longer, wherever it is.
func TestFreedWhileAnOperationWaits(t *testing.T) {
	free := func(r *Runtime) {
		t.Helper()
		p, ok := r.SlotAddress(2)
		if !ok {
			t.Fatal("slot 2 is empty")
		}
		if err := r.Free(p); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("absent", func(t *testing.T) {
		r, _ := full(t)
		free(r)
		if !r.Ready(2) || !r.Settled(2) || r.Held() {
			t.Errorf("it waits: %s", r.Explain())
		}
		if m, ok := r.Next(um.In); ok {
			t.Errorf("%s of %s", m.Kind, m.What())
		}
	})
	t.Run("arriving", func(t *testing.T) {
		r, _ := full(t)
		r.Done(moves(t, r, um.Out))
		in := moves(t, r, um.In)
		in.Handle = 78
		free(r)
		if !r.Ready(2) || !r.Settled(2) || r.Held() {
			t.Errorf("it waits: %s", r.Explain())
		}
		r.Done(in)
		if err := r.Check(); err != nil {
			t.Error(err)
		}
	})
}
