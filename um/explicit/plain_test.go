package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/um"
)

// TestRoomForPlainMemoryIsNotTakenAgain: what dead ranges have left for plain memory stays free until
// it is taken, whatever else is wanted. The thread that waits for it looks now and then,
// and never when the engine goes from one move to the next.
func TestRoomForPlainMemoryIsNotTakenAgain(t *testing.T) {
	const n = 8
	b := newBystander()
	r := New(Config{BudgetBytes: n * PageBytes, HostBudgetBytes: 64 * PageBytes, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 32}, Ahead: true}, b)
	next := cuda.Handle(77)
	move := func() bool {
		m, ok := r.Next(um.In)
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
		r.Op(um.Op{Seq: seq, Slots: []uint32{uint32(seq)}})
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
		births[i] = birth{r.History.Now() + 1, 2 * PageBytes}
	}
	for range 4 { // without a look from who waits
		r.plan = plan{valid: true, epoch: r.Epoch(), version: r.History.Version(), births: births, soon: n, wanted: map[int64][]int64{}}
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

// corpses are a runtime with n tensors of a page, of which all but the first are dead, the last ten used on a stream of
// their own, where their operations are not done; the handles that there are; and what carries moves in out.
func corpses(t *testing.T, n int) (r *Runtime, handles map[cuda.Handle]bool, moves func()) {
	b := newBystander()
	r = New(Config{BudgetBytes: int64(n) * PageBytes, HostBudgetBytes: int64(n) * PageBytes, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 40}, Ahead: true}, b)
	handles = map[cuda.Handle]bool{}
	next := cuda.Handle(77)
	moves = func() {
		for m, ok := r.Next(um.In); ok; m, ok = r.Next(um.In) {
			for _, h := range m.Release {
				if !handles[h] {
					t.Fatalf("handle %d is released, and is none", h)
				}
				delete(handles, h)
			}
			if m.Handle == 0 && m.Kind != MoveTrim {
				next++
				m.Handle = next
				handles[next] = true
			}
			r.Done(m)
		}
	}
	var all []cuda.Ptr
	for i := range n {
		stream := i / (n - 10)
		p, err := r.Malloc(PageBytes, stream)
		if err != nil {
			t.Fatal(err)
		}
		r.Op(um.Op{Seq: uint64(i + 1), Stream: stream, Slots: []uint32{uint32(i + 1)}})
		moves()
		all = append(all, p)
	}
	r.Progress(0, uint64(n-10))
	for _, p := range all[1:] {
		if err := r.Free(p); err != nil {
			t.Fatal(err)
		}
	}
	return r, handles, moves
}

// TestEmptyCache: dead memory and spare handles are given back, but for what an operation still uses,
// which goes when that is done.
func TestEmptyCache(t *testing.T) {
	const n = 200
	r, handles, moves := corpses(t, n)
	for _, want := range []int{1 + 10, 1} {
		r.EmptyCache()
		if moves(); r.Emptying() || len(handles) != want || r.ReservedBytes() != int64(want)*PageBytes {
			t.Errorf("emptying %t, %d handles of %d pages live or in use, %d bytes reserved", r.Emptying(), len(handles), want, r.ReservedBytes())
		}
		if err := r.Check(); err != nil {
			t.Error(err)
		}
		r.Progress(1, n)
	}
}

// TestEmptyCacheWhileSwapping: while something is off the device, what coming allocations want stays.
func TestEmptyCacheWhileSwapping(t *testing.T) {
	const n, wanted = 100, 30
	r, handles, moves := corpses(t, n)
	r.Progress(1, n)
	births := make([]int64, wanted)
	for i := range births {
		births[i] = r.History.Now() + 1
	}
	r.stats.HostBytes = PageBytes // as if something were there
	r.EmptyCache()
	r.plan = plan{valid: true, epoch: r.Epoch(), version: r.History.Version(), wanted: map[int64][]int64{PageBytes: births}}
	if moves(); r.Emptying() || len(handles) != 1+wanted {
		t.Errorf("emptying %t, %d handles; 1 page is live, %d are wanted", r.Emptying(), len(handles), wanted)
	}
}
