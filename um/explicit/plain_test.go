package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
)

// TestRoomForPlainMemoryIsNotTakenAgain: what dead ranges have left for plain memory stays free until
// it is taken, whatever else is wanted. The thread that waits for it looks now and then,
// and never when the engine goes from one move to the next.
func TestRoomForPlainMemoryIsNotTakenAgain(t *testing.T) {
	const n = 8
	b := &bystander{state: map[uint32]State{}, last: map[uint32]uint64{}, next: 1 << 40}
	r := New(Config{BudgetBytes: n * PageBytes, HostBudgetBytes: 64 * PageBytes, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 32}, Ahead: true}, b)
	next := cuda.Handle(77)
	move := func() bool {
		m, ok := r.Next(In)
		if !ok {
			return false
		}
		if m.Handle == 0 && m.Kind != MoveTrim {
			next++
			m.Handle = next
		}
		r.Done(m)
		return true
	}
	var dead []cuda.Ptr
	for seq := uint64(1); seq <= n; seq++ {
		p, err := r.Malloc(PageBytes, 0)
		if err != nil {
			t.Fatal(err)
		}
		r.Op(Op{Seq: seq, Slots: []uint32{uint32(seq)}})
		for move() {
		}
		r.Progress(0, seq)
		dead = append(dead, p)
	}
	for _, p := range dead {
		if err := r.Free(p); err != nil {
			t.Fatal(err)
		}
	}
	if r.ReservePlain(2 * PageBytes) {
		t.Fatal("there is room although dead ranges fill the budget")
	}
	births := make([]birth, n)
	for i := range births {
		births[i] = birth{r.history.Now() + 1, 2 * PageBytes}
	}
	for range 4 { // without a look from who waits
		r.plan = plan{valid: true, epoch: r.epoch, version: r.history.Version(), births: births, soon: n, wanted: map[int64][]int64{}}
		if move(); r.RoomBytes() < 2*PageBytes {
			t.Fatalf("there is room for %d bytes, and plain memory asked for %d", r.RoomBytes(), 2*PageBytes)
		}
	}
	if !r.ReservePlain(2 * PageBytes) {
		t.Error("there is no room in the end")
	}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
}
