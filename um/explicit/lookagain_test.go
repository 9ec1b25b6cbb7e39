package explicit

import (
	"testing"

	"github.com/penstock-gpu/penstock/cuda"
	"github.com/penstock-gpu/penstock/evict"
	"github.com/penstock-gpu/penstock/um"
)

// keeper is a process that does not give a dead range back as long as it says so.
type keeper struct {
	*bystander
	keeps bool
}

func (k *keeper) Recall(cuda.Ptr) bool { return !k.keeps }

// TestLookAgain: what could not be had is not asked for again until something happens; where that is not seen, looking again finds it.
func TestLookAgain(t *testing.T) {
	k := &keeper{newBystander(), true}
	r := New(Config{BudgetBytes: 8 << 20, HostBudgetBytes: 64 << 20, Addresses: cuda.Range{Base: 1 << 44, Bytes: 1 << 30}, Victims: evict.LRU}, k)
	p, err := r.Malloc(8<<20, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.Op(um.Op{Seq: 1, Slots: []uint32{1}, Name: "kernel"})
	m, ok := r.Next(um.In)
	if !ok {
		t.Fatal("nothing is mapped")
	}
	m.Handle = 77
	r.Done(m)
	r.Progress(0, 1)
	if _, err := r.Hold(p); err != nil { // the job may take it again
		t.Fatal(err)
	}
	if _, err := r.Malloc(6<<20, 0); err != nil {
		t.Fatal(err)
	}
	r.Op(um.Op{Seq: 2, Stream: 1, Name: "one that runs"}) // so nothing is brought into host memory instead
	r.Op(um.Op{Seq: 3, Slots: []uint32{2}, Name: "kernel"})
	for range 2 {
		if m, ok := r.Next(um.In); ok {
			t.Fatalf("%v although the only memory is not given back", m.Kind)
		}
	}
	k.keeps = false // which nobody tells
	if m, ok := r.Next(um.In); ok {
		t.Fatalf("%v without anything having happened", m.Kind)
	}
	r.LookAgain()
	if m, ok = r.Next(um.In); !ok || m.Kind != MoveMap {
		t.Fatal("nothing is mapped for the launch that waits")
	}
	if n := r.Stats().LooksAgain; n != 1 {
		t.Errorf("looked again %d times", n)
	}
}
